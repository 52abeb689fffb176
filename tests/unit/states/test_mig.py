"""The state mig against a node in memory whose driver is played: costs, refusals, who is in the way."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, PciGpu
from gpustate.core.building import build, parameters
from gpustate.core.file_queries import FileStat, FileTexts
from gpustate.core.queries import Answer
from gpustate.errors import PolicyError
from gpustate.formats.kubelet_devices import CHECKPOINT
from gpustate.formats.nvml_report import Gpu, MigDevice, MigInstance, NvmlFacts
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.mig import tables
from gpustate.mig.live import uses_of
from gpustate.ops import Reboot
from gpustate.plan.document import change_data
from gpustate.plan.overview import change_line
from gpustate.probes.gpu_clients import GpuClientsQuery, GpuProcess
from gpustate.states.mig import MigLayoutApplied, scripts
from gpustate.states.mig.probing import FILES
from gpustate.testing import FakeNode, check_contract

STEPLESS = {"mig": "its default, all-disabled, is what these GPUs are"}

H100, A100 = ("2330", "hopper"), ("20b2", "ampere")
WHOLE = ((0, 3, 0),)
JOB = GpuProcess(4242, "python3", "alice", "job.scope", "trainer-0", (0,), ((0, 1, -1), (0, 1, 0)))


def gpu(number: int = 0, kind: tuple[str, str] = H100, **fields: Any) -> Gpu:
    base = Gpu(
        index=number,
        pci=f"0000:{number + 1:02x}:00.0",
        minor=number,
        name="NVIDIA TEST",
        device_id=kind[0],
        architecture=kind[1],
        mig_current=False,
        mig_pending=False,
    )
    return replace(base, **fields)


def divided(*instances: MigInstance, **fields: Any) -> Gpu:
    return gpu(mig_current=True, mig_pending=True, mig_instances=instances, **fields)


def halves() -> Gpu:
    return divided(MigInstance(1, "3g.40gb", 0, WHOLE), MigInstance(2, "3g.40gb", 4, WHOLE))


def node(
    *gpus: Gpu,
    holders: tuple[GpuProcess, ...] = (),
    files: dict[str, str] | None = None,
    said: str = "state=/var/lib/gpustate\n",
    units: dict[str, str] | None = None,
    enabled: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    image: bool = False,
) -> FakeNode:
    made = FakeNode(
        facts=NodeFacts(systemd=not image, image=image),
        units=units,
        modules=modules,
        shell={"state=": (0, said)},
        answers={
            "GpuFacts": NvmlFacts(source="nvml", gpus=gpus),
            "GpuClientsQuery": holders,
            FileTexts(FILES): {f"/var/lib/gpustate/mig/{k}": v for k, v in (files or {}).items()},
        },
    )
    made.enabled |= set(enabled)
    return made


def told(state: MigLayoutApplied, fake: FakeNode) -> tuple[dict[str, Disruption], str | None]:
    """Cost of each change, and the refusal."""
    observed = state.probe(fake)
    return {c.field: c.disruption for c in state.plan(observed).changes}, state.refuse(observed)


def test_a_node_that_is_as_asked_is_asked_nothing_more() -> None:
    fake = node(gpu(), gpu(1))
    assert told(MigLayoutApplied(), fake) == ({}, None)
    assert not [query for query in fake.queries if isinstance(query, GpuClientsQuery)]


def test_same_devices_at_other_placements_are_no_drift_of_the_boot_layout() -> None:
    state = MigLayoutApplied("all-balanced")
    placements = (
        (("3g.40gb", 4), ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3)),
        (("3g.40gb", 4), ("2g.20gb", 2), ("1g.10gb", 0), ("1g.10gb", 1)),
    )
    here, elsewhere = (
        divided(
            *(
                MigInstance(number, profile, start, ((0, int(profile[0]), 0),))
                for number, (profile, start) in enumerate(instances, 1)
            )
        )
        for instances in placements
    )
    record = state.desired(state.probe(node(here))).saved
    assert record
    assert "saved" not in told(state, node(elsewhere, files={"layout": record}))[0]
    for damaged in (record.replace(" 14 ", " 19 "), record.replace(" on", " off"), record[:-40]):
        assert damaged != record
        assert "saved" in told(state, node(elsewhere, files={"layout": damaged}))[0]


def test_hopper_is_divided_without_a_reset_and_ampere_with_one() -> None:
    hopper, _ = told(MigLayoutApplied("all-balanced"), node(gpu()))
    ampere, _ = told(MigLayoutApplied("all-balanced"), node(gpu(kind=A100)))
    assert (hopper["modes"], ampere["modes"]) == (Disruption.DRAIN, Disruption.RESET)
    assert {"instances", "saved", "before", "program", "unit", "enabled"} < set(hopper)


@pytest.mark.parametrize(
    ("said", "modules", "why"),
    [
        ("no_reset=0000:01:00.0\n", (), "passed through"),
        ("", ("nvidia_drm",), "nvidia_drm is loaded"),
        ("tried=00000000:01:00.0\n", (), "did not work"),
    ],
)
def test_a_gpu_that_cannot_be_reset_costs_a_reboot_that_the_plan_knows(
    said: str, modules: tuple[str, ...], why: str
) -> None:
    state = MigLayoutApplied("all-balanced")
    fake = node(gpu(kind=A100), said="state=/s\n" + said, modules=modules)
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert plan.disruption is Disruption.REBOOT
    assert why in "".join(change.why for change in plan.changes)
    steps = list(state.apply(observed, plan))
    assert isinstance(steps[-1], Reboot)
    assert "-mig 1" in steps[-2].script()
    # Hopper needs no reset, so there is nothing that could not be had.
    assert told(state, node(gpu(), said="state=/s\n" + said, modules=modules))[0]["modes"] < 4


def test_instances_that_only_come_cost_nothing_and_nobody_is_looked_for() -> None:
    fake = node(divided(MigInstance(1, "3g.40gb", 0, WHOLE)))
    costs, refusal = told(MigLayoutApplied("all-3g.40gb"), fake)
    assert (costs["instances"], refusal) == (Disruption.NONE, None)
    assert not [query for query in fake.queries if isinstance(query, GpuClientsQuery)]


def test_a_service_that_is_known_is_stopped_by_name_and_costs_a_restart() -> None:
    fake = node(
        divided(MigInstance(1, "3g.40gb", 0, WHOLE)), units={"nvidia-dcgm.service": "active"}
    )
    state = MigLayoutApplied("all-3g.40gb")
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert plan.disruption is Disruption.RESTART
    assert plan.restarted == ("nvidia-dcgm.service",)
    text = "\n".join(
        step.script()
        for step in state.apply(observed, plan)
        if "apply the MIG layout" in step.label
    )
    assert "stop_clients" in text
    assert "kubelet" not in text


def test_who_uses_what_would_go_is_named_and_is_a_refusal() -> None:
    state = MigLayoutApplied("all-7g.80gb")
    costs, refusal = told(state, node(halves(), holders=(JOB,)))
    assert costs["instances"] is Disruption.DRAIN
    assert refusal is not None
    assert "pid 4242 (python3, user alice, pod trainer-0)" in refusal
    assert "GPU instance 1 of GPU 0" in refusal
    notes = state.plan(state.probe(node(halves(), holders=(JOB,)))).notes
    assert any("used by pid 4242" in note for note in notes)


def test_what_is_in_use_is_kept_and_its_user_is_in_nobodys_way() -> None:
    upper = replace(JOB, parts=((0, 2, -1), (0, 2, 0)))
    state, fake = MigLayoutApplied("all-balanced"), node(halves(), holders=(upper,))
    costs, refusal = told(state, fake)
    assert (costs["instances"], refusal) == (Disruption.NONE, None)
    assert "3g.40gb at 4" in state.desired(state.probe(fake)).instances["0"]


def test_a_known_service_that_has_it_open_is_no_refusal() -> None:
    dcgm = replace(JOB, unit="nvidia-dcgm.service", pod="")
    assert told(MigLayoutApplied("all-7g.80gb"), node(halves(), holders=(dcgm,)))[1] is None
    mine = replace(JOB, unit="acme.service", pod="")
    state = MigLayoutApplied("all-7g.80gb", clients=("acme.service",))
    assert told(state, node(halves(), holders=(mine,)))[1] is None


def test_a_mode_waits_for_everybody_who_has_the_gpu_open() -> None:
    other = GpuProcess(7, "python3", "bob", "session-3.scope", "", (0,), ())
    state = MigLayoutApplied("all-balanced")
    refusal = told(state, node(gpu(), holders=(other,)))[1]
    assert refusal is not None
    assert "pid 7 (python3, user bob, unit session-3.scope) has GPU 0" in refusal
    daemon = replace(other, unit="nvidia-persistenced.service")
    assert told(state, node(gpu(), holders=(daemon,)))[1] is None
    assert told(state, node(gpu(kind=A100), holders=(daemon,)))[1] is None
    elsewhere = replace(other, gpus=(5,))
    assert told(state, node(gpu(), holders=(elsewhere,)))[1] is None


def test_pods_on_gpus_of_which_nothing_is_taken_stay() -> None:
    def given(uid: str, *names: str) -> dict[str, Any]:
        return {"PodUID": uid, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": [*names]}}

    rows = [
        given("first", "GPU-0"),
        given("second", "GPU-1"),
        given("both", "GPU-1", "GPU-0"),
        given("part", "MIG-1"),
        given("shared", "GPU-1::3"),
        given("privileged", "GPU-1"),
        {**given("network", "0000:3b:00.1"), "ResourceName": "rdma/hca"},
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": rows, "RegisteredDevices": {}}})
    devices = (MigDevice("MIG-1"),)
    layout = divided(MigInstance(1, "7g.80gb", 0, ((0, 7, 0),)), mig_devices=devices)
    gpus = (gpu(uuid="GPU-0"), replace(layout, index=1, pci="0000:02:00.0", minor=1, uuid="GPU-1"))
    opens = replace(JOB, pod="privileged-0", pod_uid="privileged", parts=())
    state = MigLayoutApplied("all-7g.80gb", in_use="drain")
    fake = node(*gpus, holders=(opens,))
    assert state.plan(state.probe(fake)).spared_pods == set()
    fake.files[CHECKPOINT] = text
    observed = state.probe(fake)
    assert state.plan(observed).disruption is Disruption.DRAIN
    assert state.plan(observed).spared_pods == {"second", "part"}
    for damaged in ("", "{", "[]", '{"Data": {"PodDeviceEntries": [{"DeviceIDs": ["a"]}]}}'):
        fake.files[CHECKPOINT] = damaged
        assert state.plan(state.probe(fake)).spared_pods == set()


def test_a_reboot_may_be_asked_for_where_something_is_in_use() -> None:
    state = MigLayoutApplied("all-7g.80gb", in_use="reboot")
    fake = node(halves(), holders=(JOB,))
    costs, refusal = told(state, fake)
    assert (costs["instances"], refusal) == (Disruption.REBOOT, None)
    observed = state.probe(fake)
    steps = list(state.apply(observed, state.plan(observed)))
    assert isinstance(steps[-1], Reboot)
    assert [step.label for step in steps if "layout" in step.label]


def test_what_does_not_fit_is_refused_before_anything(tmp_path: Path) -> None:
    path = tmp_path / "mig.yaml"
    path.write_text(
        "version: v1\nmig-configs:\n  big:\n    - devices: all\n      mig-enabled: true\n"
        "      mig-devices:\n        3g.40gb: 2\n        1g.10gb: 1\n"
    )
    state = MigLayoutApplied("big", file=str(path))
    refusal = told(state, node(gpu()))[1]
    assert refusal is not None
    assert "9 memory slices requested, but the GPU has 8" in refusal
    assert f"{path}:4" in refusal


def test_a_saved_plan_needs_the_file_no_more_and_another_file_is_read_anew(tmp_path: Path) -> None:
    text = "version: v1\nmig-configs:\n  one:\n    - devices: all\n      mig-enabled: false\n"
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(text)
    second.write_text(text.replace("one", "two"))
    kept = parameters(MigLayoutApplied("one", file=str(first)))
    first.unlink()
    assert build(MigLayoutApplied, kept) == build(MigLayoutApplied, kept)
    changed = build(MigLayoutApplied, {**kept, "file": str(second), "config": "two"})
    assert parameters(changed)["contents"] == {str(second): second.read_text()}
    with pytest.raises(PolicyError, match=r"b\.yaml: no configuration 'one'"):
        build(MigLayoutApplied, {**kept, "file": str(second)})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": "all-1g.11gb"}, "did you mean"),
        ({"config": 3}, "wanted text"),
        ({"file": "/nonexistent/mig.yaml"}, "/nonexistent/mig.yaml: no such file"),
        ({"clients": ["kubelet.service"]}, "the kubelet is never stopped"),
        ({"clients": ["rm -rf /"]}, "clients"),
        ({"clients": "dcgm"}, "clients"),
        ({"in_use": "kill"}, "in_use"),
        ({"contents": 7}, "contents"),
    ],
)
def test_wrong_parameters_are_told_in_a_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        build(MigLayoutApplied, values)


LOST = Gpu(index=1, error=15)
SECOND = PciGpu("0000:02:00.0", "2330", "030200", "nvidia")


@pytest.mark.parametrize("until", [0, 2_000_000_000])
def test_a_lost_gpu_leaves_the_layout_of_the_others_alone(until: int) -> None:
    state = MigLayoutApplied("all-balanced")
    record = state.desired(state.probe(node(gpu(), gpu(1), gpu(2)))).saved or ""
    fake = node(gpu(), gpu(2), LOST, files={"layout": record})
    fake.node_facts = replace(fake.node_facts, pci=(SECOND,))
    entry = Entry("", SECOND.address, "lost", until, 0, "me")
    fake.answers["ExcludedGpusQuery"] = Quarantine((entry,), 1_000_000_000)
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert state.refuse(observed) is None
    assert set(observed.modes) == {"0", "2"}
    divide = next(step for step in state.apply(observed, plan) if "apply the MIG" in step.label)
    saved = state.desired(observed).saved or ""
    warned = [line for line in plan.warnings if line.startswith("GPU 1 (0000:02:00.0) does not ")]
    assert bool(warned) is not bool(until)
    if until:
        assert "02:00.0" not in saved
    else:
        assert sorted(saved.splitlines()) == sorted(record.splitlines())
        assert "lost=00000000:02:00.0 sh " in divide.script()


def test_another_manager_a_silent_nvml_and_gpus_that_are_all_lost_are_refusals() -> None:
    manager = "nvidia-mig-manager.service"
    fake = node(gpu(), units={manager: "inactive"}, enabled=(manager,))
    assert "applies another MIG layout" in str(told(MigLayoutApplied("all-balanced"), fake)[1])
    lost = node(gpu(1, error=15))
    assert "GPU 0000:02:00.0: error 15" in str(told(MigLayoutApplied("all-balanced"), lost)[1])
    silent = node()
    silent.answers["GpuFacts"] = NvmlFacts(error=9, error_text="driver not loaded")
    assert "driver not loaded" in str(told(MigLayoutApplied("all-balanced"), silent)[1])


def test_services_that_an_interrupted_run_left_stopped_are_started() -> None:
    state = MigLayoutApplied()
    fake = node(gpu(), files={"stopped": "nvidia-dcgm.service\n"})
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert plan.fields == {"stopped"}
    assert [step.label for step in state.apply(observed, plan)] == [
        "restart the services stopped for MIG"
    ]


def test_a_capability_without_its_node_is_made_at_no_cost_and_left_alone_by_removal() -> None:
    said = (
        "state=/var/lib/gpustate\ncap=/dev/nvidia-caps/nvidia-cap12 235:12 1 292 gpu0/mig/gi1\n"
        "cap=/dev/nvidia-caps/nvidia-cap13 235:13 1 292 gpu0/mig/gi1/ci0\n"
        "found=/dev/nvidia-caps/nvidia-cap13|character special file|1ff|d\n"
    )
    state, fake = MigLayoutApplied(), node(gpu(), said=said)
    observed = state.probe(fake)
    assert observed.device_nodes == (
        "/dev/nvidia-caps/nvidia-cap12 is missing (gpu0/mig/gi1)",
        "/dev/nvidia-caps/nvidia-cap13 is 511:13, not 235:13 (gpu0/mig/gi1/ci0)",
    )
    plan = state.plan(observed)
    assert (plan.fields, plan.disruption) == ({"device_nodes"}, Disruption.NONE)
    (step,) = state.apply(observed, plan)
    assert "mknod" in step.script()
    gone = MigLayoutApplied(ensure="absent")
    assert not gone.plan(gone.probe(fake))


def test_what_runs_at_boot_is_written_again_where_others_may_change_it() -> None:
    wanted = MigLayoutApplied("all-balanced")
    fake = node(gpu())
    observed = wanted.desired(wanted.probe(fake))
    files = {"layout": observed.saved or "", "restore": observed.program or ""}
    fake = node(halves(), files=files)
    assert not wanted.plan(wanted.probe(fake)).fields & {"saved", "program"}
    fake.answers["FileStats"] = {
        f"/var/lib/gpustate/mig/{name}": FileStat("file", mode, 0, 0, 1)
        for name, mode in (("layout", 0o644), ("restore", 0o777))
    }
    assert wanted.plan(wanted.probe(fake)).fields & {"saved", "program"} == {"program"}


@pytest.mark.parametrize("before", [None, "", "gpu ? on\n"])
def test_what_is_not_known_any_more_is_told_and_not_made_up(before: str | None) -> None:
    files = {"layout": "x", "restore": "y"} | ({} if before is None else {"before": before})
    for state in (MigLayoutApplied("all-1g.10gb"), MigLayoutApplied(ensure="absent")):
        observed = state.probe(node(halves(), files=files))
        plan = state.plan(observed)
        assert "the original MIG layout is unknown" in plan.warnings[0]
        assert state.absent or "before" not in plan.fields
        assert not state.absent or not plan.fields & {"modes", "instances"}


def test_removal_goes_back_to_what_was_there_and_leaves_what_never_was_ours() -> None:
    before = "# x\ngpu 00000000:01:00.0 on\ninstance 00000000:01:00.0 0 0 7g.80gb 7g.80gb\n"
    state = MigLayoutApplied(ensure="absent")
    observed = state.probe(node(halves(), files={"before": before, "layout": "x", "restore": "y"}))
    assert state.desired(observed).instances == {"0": ("7g.80gb at 0",)}
    labels = [step.label for step in state.apply(observed, state.plan(observed))]
    assert labels[-1] == "remove the MIG layout and its boot service"
    assert "apply the MIG layout" in labels
    untouched = state.probe(node(halves()))
    assert not state.plan(untouched)


def test_an_image_is_left_alone_and_says_so() -> None:
    state = MigLayoutApplied("all-balanced")
    observed = state.probe(node(image=True))
    assert (state.plan(observed).changes, state.refuse(observed)) == ((), None)
    assert "at its first boot" in state.plan(observed).notes[0]


def test_the_own_validation_at_boot_is_in_nobodys_way() -> None:
    text = "holder=9|python3|0|root||0::/system.slice/gpustate-validate.service| /dev/nvidia0\n"
    assert GpuClientsQuery().parse(Answer(0, text.encode())) == ()


def test_holders_are_read_with_their_capabilities_and_pods() -> None:
    uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    text = (
        "cap=12 gpu0/mig/gi1/access\ncap=13 gpu0/mig/gi1/ci0/access\n"
        f"holder=77|python3|1000|alice|trainer-0|0::/kubepods/pod{uid}/cri-1.scope|"
        " /dev/nvidia0 /dev/nvidiactl /dev/nvidia-caps/nvidia-cap12 /dev/nvidia-caps/nvidia-cap13\n"
        "holder=8|dcgm|0|root||0::/system.slice/nvidia-dcgm.service| /dev/nvidia1\nholder=x|\n"
    )
    found = GpuClientsQuery().parse(Answer(0, text.encode()))
    assert [(h.pid, h.pod, h.unit, h.gpus, h.parts) for h in found] == [
        (8, "", "nvidia-dcgm.service", (1,), ()),
        (77, "trainer-0", "cri-1.scope", (0,), ((0, 1, -1), (0, 1, 0))),
    ]
    assert [holder.pod_uid for holder in found] == ["", uid]
    assert {(use.instance, use.compute) for use in uses_of(found[1])} == {(1, None), (1, 0)}


@pytest.mark.parametrize("config", ["all-disabled", "all-balanced", "all-3g.40gb"])
def test_it_keeps_the_contract_of_every_state(config: str) -> None:
    check_contract(MigLayoutApplied(config), node(halves(), gpu(1, A100), holders=()))


def test_a_plan_says_what_becomes_of_each_gpu_as_mig_plan_does() -> None:
    state = MigLayoutApplied("all-3g.40gb")
    plan = state.plan(state.probe(node(divided(MigInstance(1, "3g.40gb", 0, WHOLE)))))
    (lines,) = [change.lines for change in plan.changes if change.lines]
    assert lines == ("GPU 0 (TEST):", "    = 3g.40gb at 0 (3g.40gb)", "    + 3g.40gb at 4")
    whole = MigLayoutApplied("all-disabled")
    gone = whole.plan(whole.probe(node(divided(MigInstance(7, "3g.40gb", 0, WHOLE)))))
    (lines,) = [change.lines for change in gone.changes if change.lines]
    assert lines[1:] == ("    - 3g.40gb at 0", "    ~ MIG mode off")
    made = change_data(next(change for change in gone.changes if change.lines))
    assert change_line(made) == "instances:"
    assert made["lines"] == list(lines)


def test_a_layout_that_the_gpus_cannot_have_is_refused_before_there_is_a_driver() -> None:
    def forecast(state: MigLayoutApplied, device_id: str) -> str | None:
        gpus = (PciGpu("0000:07:00.0", device_id, "030200", None),)
        return state.forecast(FakeNode(facts=NodeFacts(pci=gpus)), "").refusal

    refused = forecast(MigLayoutApplied("all-1g.5gb"), "20b2")
    assert refused is not None
    assert "GPU 0 (A100-SXM4-80GB): cannot have 7 x 1g.5gb: 1g.5gb is not a profile" in refused
    assert forecast(MigLayoutApplied("all-1g.10gb"), "20b2") is None
    assert forecast(MigLayoutApplied("all-1g.5gb"), "26b9") is None, "has no MIG: not changed"
    unknown = next(iter(tables.UNKNOWN))
    assert forecast(MigLayoutApplied("all-1g.5gb"), unknown) is None, "only its driver knows"
    board = "version: v1\nmig-configs:\n  all:\n    - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}, device-filter: '0x20B210DE:0x147F10DE'}\n"
    filtered = MigLayoutApplied("all", file="f", contents={"f": board})
    assert forecast(filtered, "20b2") is None, "only the driver knows the board"


def test_a_layout_that_waits_for_the_driver_says_whether_it_differs_now() -> None:
    fake = node(divided(MigInstance(1, "3g.40gb", 0, WHOLE)))

    def condition(config: str) -> str:
        state = MigLayoutApplied(config)
        worst = state.worst_case(state.probe(fake), NodeFacts())
        assert worst is not None
        return worst[1]

    assert condition("all-disabled") == "the layout still differs then, as it does now"
    whole = node(divided(*(MigInstance(n, "3g.40gb", 4 * n, WHOLE) for n in (0, 1))))
    state = MigLayoutApplied("all-3g.40gb")
    same = state.worst_case(state.probe(whole), NodeFacts())
    assert same is not None
    assert "reload has deleted the layout" in same[1]


@pytest.mark.parametrize("status", [0, 3])
def test_a_specification_that_no_service_writes_is_written_as_the_state_cdi_writes_it(
    tmp_path: Path, status: int
) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "nvidia.yaml").write_text("old")
    log = tmp_path / "log"
    (tmp_path / "nvidia-ctk").write_text(
        f'#!/bin/sh\necho "$2" >>{log}\n[ $1 = cdi ] || exit 0\n'
        f'echo broken >&2; [ {status} = 0 ] || exit {status}\necho new >"${{3#--output=}}"\n'
    )
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    for name in ("nvidia-ctk", "systemctl", "nvidia-smi"):
        (tmp_path / name).chmod(0o755)
    script = scripts.FUNCTIONS.replace("/var/run/cdi", str(folder))
    script = script.replace("/run/gpustate-cdi", f"{tmp_path}/t")
    done = subprocess.run(
        ["sh", "-ec", f"folder() {{ :; }}; {script}\ntrap 'echo ended' EXIT; refresh_cdi"],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert log.read_text().split() == ["create-device-nodes", "generate"]
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ended"), done.stderr
    assert os.listdir(folder) == ["nvidia.yaml"]
    assert (folder / "nvidia.yaml").read_text() == ("old" if status else "new\n")
    assert (
        ("could not be written again" in done.stdout) == ("broken" in done.stderr) == bool(status)
    )
