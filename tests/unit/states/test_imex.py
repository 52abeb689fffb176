"""IMEX, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from goingback import rolled_back
from pydantic import ValidationError

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.formats.pci_gpus import meant_for
from gpustate.states.imex import CONFIG_PATH, NODES_PATH, UNIT, ImexRunning
from gpustate.testing import FakeNode, converge

STEPLESS = {"imex": "no rack joins these GPUs across nodes"}

CLUSTER = "5e1b0a8e-0000-4000-8000-00000000cafe"
DOMAIN = f"{CLUSTER}.32766"
NODES = ("10.0.0.1", "10.0.0.2")
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n"
OFFERED = {"nvidia-imex": [("595.91.07-1", "vendor"), ("580.65.06-1", "vendor")]}
GB200 = tuple(PciGpu(f"0000:{n + 16:02x}:00.0", "2941", "030200", None) for n in range(4))
WAIT = "wait until IMEX is ready"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"imex": "the list of nodes, the package, its hold"}


def gpus(state: str = "completed") -> NvmlFacts:
    done = state == "completed"
    made = (
        Gpu(
            n,
            fabric_state=state,
            fabric_status="success" if done else "",
            fabric_cluster=CLUSTER if done else "",
            fabric_clique=32766 if done else None,
        )
        for n in range(4)
    )
    return NvmlFacts(source="nvml", driver_loaded=True, gpus=tuple(made))


def said(node: FakeNode) -> tuple[int, str]:
    lines = ["address=10.0.0.1", "address=tray1", "channels=1", "library=580.65.06"]
    if node.unit_states.get(UNIT) == "active":
        lines.append("status=READY")
    if "masked" in node.vars:
        lines.append("masked=1")
    return 0, "\n".join(lines)


def rack(**more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": NodeFacts(pci=GB200),
        "files": {"/proc/driver/nvidia/version": VERSION},
        "candidates": OFFERED,
        "answers": {"BridgesQuery": 0, "GpuFacts": gpus()},
        "shell": {"nvidia-imex-ctl": said},
        "runs": {
            WAIT: lambda _: None,
            "stop and mask": mask,
            "unmask": lambda n: n.vars.pop("masked", None),
        },
    }
    return FakeNode(**{**settings, **more})  # type: ignore[arg-type]


def mask(node: FakeNode) -> None:
    node.vars["masked"] = True  # type: ignore[index]
    node.unit_states[UNIT] = "inactive"
    node.enabled.discard(UNIT)


def test_the_domain_picks_the_list() -> None:
    other = CLUSTER.replace("cafe", "beef") + ".1"
    one = rack()
    state = ImexRunning(domains={DOMAIN.upper(): NODES, other: ("10.9.9.9",)})
    _, second = converge(state, one)
    assert one.files[NODES_PATH] == "10.0.0.1\n10.0.0.2\n"
    assert not second


@pytest.mark.parametrize(
    ("state", "more", "told"),
    [
        (ImexRunning(), {}, f"which nodes are in NVLink domain {DOMAIN}"),
        (
            ImexRunning(domains={DOMAIN.replace("cafe", "beef"): NODES}),
            {},
            f"is in NVLink domain {DOMAIN}",
        ),
        (ImexRunning(nodes=("10.0.0.7",)), {}, "none of the 1 nodes of the domain is this one"),
        (
            ImexRunning(nodes=NODES),
            {"answers": {"BridgesQuery": 0, "GpuFacts": gpus("in progress")}},
            "not up (in progress on 4 of 4 GPUs)",
        ),
        (
            ImexRunning(nodes=NODES),
            {"candidates": {}},
            "no repository offers nvidia-imex 580.65.06",
        ),
        (
            ImexRunning(nodes=NODES),
            {"files": {"/proc/driver/nvidia/version": VERSION.replace("580.65.06", "535.309.01")}},
            "IMEX comes with branch 550",
        ),
        (ImexRunning(nodes=NODES), {"files": {}}, "no driver is loaded"),
    ],
)
def test_what_cannot_work_is_refused_with_the_next_move(
    state: ImexRunning, more: dict[str, Any], told: str
) -> None:
    observed = state.probe(rack(**more))
    assert told in (state.refuse(observed) or state.plan(observed).refusal or "")


@pytest.mark.parametrize("managed_by", ["host", "compute-domains"])
def test_a_drop_in_that_runs_nothing_is_named_where_the_service_is_to_run(managed_by: str) -> None:
    nodes = NODES if managed_by == "host" else ()
    state, one = ImexRunning.model_validate({"nodes": nodes, "managed_by": managed_by}), rack()
    path = f"/etc/systemd/system/{UNIT}.d/x.conf"
    one.files[path] = "[Service]\nExecStart=\nExecStart=/bin/false\n"
    refused = state.refuse(state.probe(one)) or ""
    assert (f"{path} sets the command of {UNIT} to /bin/false" in refused) == (managed_by == "host")


@pytest.mark.parametrize("installed", [False, True])
def test_ubuntus_build_does_not_replace_one_that_a_pin_forbids(installed: bool) -> None:
    path = "/etc/apt/preferences.d/20-imex"
    state = ImexRunning(nodes=NODES)
    observed = replace(
        state.probe(rack()),
        offered=(("nvidia-imex-580", "580.65.06-0ubuntu0.24.04.1"),),
        forbidden={f"nvidia-imex {v}-1": path for v in ("595.91.07", "580.65.06")},
    )
    if installed:
        observed = replace(observed, package="nvidia-imex", version="580.65.06-1")
    refusal = state.plan(observed).refusal or ""
    named = f"apart from what pins in {path} forbid (nvidia-imex 580.65.06-1); remove these pins"
    assert (named in refusal) is not installed
    alone = replace(observed, forbidden={})
    assert state.plan(alone).refusal is None, "where nothing else is offered"


def test_another_list_costs_a_drain_and_the_same_list_with_comments_nothing() -> None:
    state, one = ImexRunning(nodes=NODES), rack()
    list(converge(state, one))
    one.files[NODES_PATH] = "# rack 7\n10.0.0.1\n10.0.0.2\n"
    assert not state.plan(state.probe(one))
    one.files[NODES_PATH] = "10.0.0.2\n10.0.0.1\n"
    plan = state.plan(state.probe(one))
    assert plan.fields == {"nodes"}
    assert plan.disruption is Disruption.DRAIN
    kinds = [type(step) for step in state.apply(state.probe(one), plan)]
    assert kinds == [ops.PutText, ops.RestartUnit, ops.RunLive]


def test_a_daemon_that_is_not_ready_is_waited_for_and_not_restarted() -> None:
    state, one = ImexRunning(nodes=NODES), rack()
    list(converge(state, one))
    one.shells["nvidia-imex-ctl"] = (0, "address=10.0.0.1\nchannels=1\nstatus=WAITING_FOR_RECOVERY")
    plan = state.plan(state.probe(one))
    assert plan.fields == {"status"}
    assert plan.disruption is Disruption.NONE
    (step,) = state.apply(state.probe(one), plan)
    assert step.label == WAIT


def test_without_its_command_service_a_daemon_is_not_asked() -> None:
    state, one = ImexRunning(nodes=NODES), rack()
    list(converge(state, one))
    one.files[CONFIG_PATH] = "IMEX_CMD_ENABLED=0\n"
    one.shells["nvidia-imex-ctl"] = (0, "address=10.0.0.1\nchannels=1\nstatus=no answer")
    assert not state.plan(state.probe(one))


def test_a_configuration_that_names_another_list_is_set_to_ours() -> None:
    one = rack(
        files={
            "/proc/driver/nvidia/version": VERSION,
            CONFIG_PATH: "IMEX_NODE_CONFIG_FILE=/srv/nodes\n",
        }
    )
    one.runs["set IMEX_NODE_CONFIG_FILE"] = lambda n: n.files.update(
        {CONFIG_PATH: f"IMEX_NODE_CONFIG_FILE={NODES_PATH}\n"}
    )
    first, second = converge(ImexRunning(nodes=NODES), one)
    assert "config" in first.fields
    assert not second


def test_under_compute_domains_the_package_is_there_and_the_service_off_and_masked() -> None:
    one = rack(units={UNIT: "active"})
    one.enabled.add(UNIT)
    state = ImexRunning(managed_by="compute-domains")
    first, second = converge(state, one)
    assert one.installed == {"nvidia-imex": "580.65.06-1"}
    assert one.unit_states[UNIT] == "inactive"
    assert first.disruption is Disruption.DRAIN
    assert not second
    _, back = converge(ImexRunning(nodes=NODES), one)
    assert one.unit_states[UNIT] == "active"
    assert not back


def test_under_compute_domains_a_rack_that_is_not_up_is_no_reason_to_refuse() -> None:
    state = ImexRunning(managed_by="compute-domains")
    one = rack(answers={"BridgesQuery": 0, "GpuFacts": gpus("in progress")})
    assert state.refuse(state.probe(one)) is None


def test_a_missing_channel_is_told() -> None:
    one = rack(shell={"nvidia-imex-ctl": (0, "address=10.0.0.1\nchannels=0")})
    (plan,) = converge(ImexRunning(nodes=NODES), one, rounds=0)
    assert "NVreg_CreateImexChannel0" in plan.notes[0]


def test_the_nodes_are_given_once() -> None:
    with pytest.raises(ValidationError, match="set twice"):
        ImexRunning(nodes=NODES, domains={DOMAIN: NODES})


@pytest.mark.parametrize(
    ("gpus", "nodes", "comes"),
    [("4xGB200", NODES, True), ("4xGB200", (), True), ("", NODES, False)],
)
def test_an_image_gets_it_when_it_is_for_trays(
    gpus: str, nodes: tuple[str, ...], comes: bool
) -> None:
    one = rack(facts=NodeFacts(image=True, pci=meant_for(gpus)), files={})
    state = ImexRunning(nodes=nodes)
    _, second = converge(state, one)
    assert bool(one.installed) is comes
    assert (UNIT in one.enabled) is (comes and bool(nodes))
    assert not second
    assert bool(list(state.first_boot(state.probe(one)))) is (comes and bool(nodes))


def test_a_list_of_nodes_with_another_mode_is_written_again_and_nothing_restarts() -> None:
    one, state = rack(), ImexRunning(nodes=NODES)
    list(converge(state, one))
    one.modes[NODES_PATH] = 0o666
    one.done.clear()
    first, second = converge(state, one)
    assert (first.fields, first.disruption) == ({"nodes_file"}, Disruption.NONE)
    assert [step.label for step in one.done] == [f"write {NODES_PATH}"]
    assert not second
    # Without a list in the policy the file is the administrator's.
    one.modes[NODES_PATH] = 0o666
    assert not ImexRunning().plan(ImexRunning().probe(one))


def test_a_rollback_restores_the_list() -> None:
    one, other = (ImexRunning(nodes=nodes) for nodes in (("10.0.0.1", "10.0.0.2"), ("10.0.0.1",)))
    rolled_back(rack(), None, one)
    rolled_back(rack(), one, other)
