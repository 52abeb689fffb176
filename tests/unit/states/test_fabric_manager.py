"""Fabric Manager, in memory."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from goingback import rolled_back
from pydantic import ValidationError

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.core.queries import Answer
from gpustate.formats.fabric import loaded_version
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.plan import make
from gpustate.probes.fabric import BridgesQuery
from gpustate.states.fabric_manager import CONFIG_PATH, UNIT, FabricManagerRunning, scripts
from gpustate.testing import FakeNode, converge

SWITCH = PciGpu("0000:05:00.0", "22a3", "068000", None)
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n"
OFFERED = {"nvidia-fabricmanager": [("595.91.07-1", "vendor"), ("580.65.06-1", "vendor")]}
MINE = {"nvidia-fabricmanager": "580.65.06-1"}
WAIT = "wait until the fabric"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"fabric-manager": "its configuration, the package, its hold"}


def gpus(state: str = "completed", status: str = "success", count: int = 8) -> NvmlFacts:
    made = (Gpu(n, fabric_state=state, fabric_status=status) for n in range(count))
    return NvmlFacts(source="nvml", driver_loaded=True, gpus=tuple(made))


def pci(device_id: str, count: int = 8) -> tuple[PciGpu, ...]:
    return tuple(PciGpu(f"0000:{n + 16:02x}:00.0", device_id, "030200", None) for n in range(count))


def node(*, switch: bool = True, **more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": NodeFacts(pci=(*pci("2330"), *((SWITCH,) if switch else ()))),
        "files": {"/proc/driver/nvidia/version": VERSION, CONFIG_PATH: "FABRIC_MODE=0\n"},
        "candidates": OFFERED,
        "runs": {WAIT: lambda _: None},
        "answers": {"BridgesQuery": 0, "GpuFacts": gpus() if switch else gpus("", "")},
        "shell": {"nvlsm": (0, "")},
    }
    return FakeNode(**{**settings, **more})  # type: ignore[arg-type]


def b200(**more: object) -> FakeNode:
    settings: dict[str, object] = {
        "facts": NodeFacts(pci=pci("2901")),
        "answers": {"BridgesQuery": 4, "GpuFacts": gpus()},
        "packages": {"nvlsm": "2025.10.11-1"},
        "shell": {"nvlsm": lambda n: (0, "running" if n.unit_states.get(UNIT) == "active" else "")},
    }
    return node(**{**settings, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "command", "refused"),
    [
        ("x.conf", "/bin/false", True),
        ("x.conf", "/usr/bin/nv-fabricmanager -c /etc/own.cfg", False),
        ("x.conf", "/usr/local/bin/wrapped", False),
    ],
)
def test_a_drop_in_that_runs_nothing_is_named_before_anything_is_done(
    name: str, command: str, refused: bool
) -> None:
    path = f"/etc/systemd/system/{UNIT}.d/{name}"
    for switch in (True, False):
        one, state = node(switch=switch), FabricManagerRunning()
        one.files[path] = f"[Service]\nExecStart=\nExecStart={command}\n"
        said = state.refuse(state.probe(one)) or ""
        assert (f"{path} sets the command of {UNIT}" in said) == (refused and switch)


@pytest.mark.parametrize(
    ("name", "version", "driver", "refused"),
    [
        ("nvidia-fabricmanager-580", "580.65.06-0ubuntu0.24.04.1", "-580", True),
        ("nvidia-fabricmanager-580", "580.65.06-0ubuntu1", "-580", True),
        ("nvidia-fabricmanager-580", "580.65.06-0ubuntu0.24.04.1", "-580-server", False),
        ("nvidia-fabricmanager", "580.65.06-1", "-580", False),
    ],
)
def test_the_archives_is_refused_with_a_driver_that_is_not_for_servers(
    name: str, version: str, driver: str, refused: bool
) -> None:
    one = node(
        candidates={name: [(version, "vendor")]},
        packages={f"libnvidia-compute{driver}": "580.65.06-0ubuntu0.24.04.1"},
    )
    state = FabricManagerRunning()
    said = state.plan(state.probe(one)).refusal or ""
    assert ("needs the driver's packages for servers (-server)" in said) == refused
    # One that is there was installed with what it needs.
    one.installed[name] = version
    assert state.plan(state.probe(one)).refusal is None


def test_a_pin_that_leaves_only_the_archives_is_named_before_the_driver_is_installed() -> None:
    """The driver to come is of a mirror, whose Fabric Manager somebody's pin forbids."""
    path = "/etc/apt/preferences.d/20-fm"
    state = FabricManagerRunning()
    observed = replace(
        state.probe(node(files={})),
        offered=(("nvidia-fabricmanager-580", "580.65.06-0ubuntu0.24.04.1"),),
        forbidden={f"nvidia-fabricmanager {v}-1": path for v in ("595.91.07", "580.65.06")},
    )
    coming = {"nvidia-driver-cuda": "580.65.06-1"}
    refusal = make.predict(state, observed, "580.65.06", coming).refusal or ""
    assert (
        "no repository offers nvidia-fabricmanager 580.65.06, the driver's version, apart from what pins in "
        f"{path} forbid (nvidia-fabricmanager 580.65.06-1); remove these pins" in refusal
    )
    servers = {"libnvidia-compute-580-server": "580.65.06-0ubuntu0.24.04.1"}
    plan = make.predict(state, observed, "580.65.06", servers)
    assert plan.refusal is None
    assert [change.after for change in plan.changes] == list(observed.offered[0])


def test_nothing_is_done_without_nvswitches() -> None:
    one = node(switch=False)
    (plan,) = converge(FabricManagerRunning(), one, rounds=0)
    assert not plan
    assert FabricManagerRunning().refuse(FabricManagerRunning().probe(one)) is None


def test_replacing_one_that_runs_costs_a_drain() -> None:
    one = node(packages={"nvidia-fabricmanager": "595.91.07-1"}, units={UNIT: "active"})
    first, second = converge(FabricManagerRunning(), one)
    assert first.disruption is Disruption.DRAIN
    assert one.installed == MINE
    assert not second


def test_a_configuration_file_that_is_gone_comes_back_with_the_package() -> None:
    one = node()
    list(converge(FabricManagerRunning(), one))
    del one.files[CONFIG_PATH]
    state = FabricManagerRunning()
    observed = state.probe(one)
    assert observed.damaged == (f"nvidia-fabricmanager: {CONFIG_PATH} is missing",)
    first, *_ = state.apply(observed, state.plan(observed))
    assert isinstance(first, ops.AptInstall)
    assert first.reinstall


def test_a_node_whose_repositories_lack_the_version_is_refused_by_name() -> None:
    state = FabricManagerRunning()
    assert state.plan(state.probe(node(candidates={}))).refusal == (
        "the node has NVSwitches, and no repository offers nvidia-fabricmanager 580.65.06, the driver's version; use a "
        "repository that has it (NVIDIA's own, or a mirror of it)"
    )
    assert state.plan(state.probe(node(files={}))).refusal == (
        "the node has NVSwitches and no driver is loaded; add the state driver to the policy"
    )
    absent = FabricManagerRunning(ensure="absent")
    assert absent.plan(absent.probe(node(candidates={}))).refusal is None


def test_a_pin_that_forbids_the_drivers_version_is_named_with_its_file() -> None:
    site = "/etc/apt/preferences.d/site"
    one = node()
    one.offered = {
        name: tuple(replace(row, forbidden_by=site) for row in rows)
        for name, rows in one.offered.items()
    }
    state = FabricManagerRunning()
    assert state.plan(state.probe(one)).refusal == (
        "the node has NVSwitches, and no repository offers nvidia-fabricmanager 580.65.06, the driver's version, apart "
        f"from what pins in {site} forbid (nvidia-fabricmanager 580.65.06-1); remove these pins, or use a "
        "repository that has it (NVIDIA's own, or a mirror of it)"
    )
    one.installed |= {"nvidia-fabricmanager": "580.65.06-1"}
    assert state.plan(state.probe(one)).refusal is None, "what is installed stays"


FOREIGN = "# of the site\nLOG_LEVEL=2\n"


@pytest.mark.parametrize("text", [FOREIGN, None])
def test_what_was_there_before_the_package_is_there_after_it(text: str | None) -> None:
    one = node()
    del one.files[CONFIG_PATH]
    if text is not None:
        one.files[CONFIG_PATH] = text
    list(converge(FabricManagerRunning(), one))
    assert one.originals == {CONFIG_PATH: text}
    *_, last = converge(FabricManagerRunning(ensure="absent"), one)
    assert not last
    kinds = [type(step) for step in one.done]
    assert kinds.index(ops.KeepOriginal) < kinds.index(ops.AptInstall)
    # A purge deletes the file, whoever wrote it.
    assert kinds.index(ops.AptRemove) < kinds.index(ops.RestoreOriginal)
    assert one.files.get(CONFIG_PATH) == text


# --- the fabric -----------------------------------------------------------------------------------


def settled(state: FabricManagerRunning, one: FakeNode) -> FakeNode:
    list(converge(state, one))
    one.done.clear()
    return one


def test_a_fabric_that_is_not_complete_is_drift_although_the_service_runs() -> None:
    state, one = FabricManagerRunning(), settled(FabricManagerRunning(), node())
    one.answers["GpuFacts"] = gpus("in progress", "")
    plan = state.plan(state.probe(one))
    assert [(c.field, c.before, c.after) for c in plan.changes] == [
        ("fabric", "in progress on 8 of 8 GPUs", "complete")
    ]
    assert plan.disruption is Disruption.DRAIN
    (step,) = state.apply(state.probe(one), plan)
    assert "restarting nvidia-fabricmanager.service if needed" in step.label


def test_completed_without_success_is_drift_too() -> None:
    state, one = FabricManagerRunning(), settled(FabricManagerRunning(), node())
    one.answers["GpuFacts"] = gpus("completed", "unknown error")
    assert state.plan(state.probe(one)).fields == {"fabric"}


@pytest.mark.parametrize("mode", [1, 2])
def test_in_progress_is_no_fault_in_the_virtualization_modes(mode: int) -> None:
    state = FabricManagerRunning(config={"FABRIC_MODE": mode})
    one = node(
        answers={"BridgesQuery": 0, "GpuFacts": gpus("in progress", "")},
        files={"/proc/driver/nvidia/version": VERSION, CONFIG_PATH: "FABRIC_MODE=0\n"},
        runs={"set FABRIC_MODE": lambda n: n.files.update({CONFIG_PATH: f"FABRIC_MODE={mode}\n"})},
    )
    first, second = converge(state, one)
    assert "config" in first.fields
    assert not second
    assert not any(WAIT in step.label for step in one.done)


def test_a_key_is_asked_for_drifts_and_costs_a_restart_and_others_are_nobodys_business() -> None:
    state = FabricManagerRunning(config={"LOG_LEVEL": 3})
    put = {"set LOG_LEVEL": lambda n: n.files.update({CONFIG_PATH: "LOG_LEVEL=3\nX=1\n"})}
    one = settled(
        state,
        node(
            files={"/proc/driver/nvidia/version": VERSION, CONFIG_PATH: "LOG_LEVEL=4\nX=1\n"},
            runs={WAIT: lambda _: None, **put},
        ),
    )
    assert not state.plan(state.probe(one))
    one.files[CONFIG_PATH] = "LOG_LEVEL=3\nX=2\n"
    assert not state.plan(state.probe(one))
    one.files[CONFIG_PATH] = "LOG_LEVEL=1\n"
    plan = state.plan(state.probe(one))
    assert plan.fields == {"config"}
    assert plan.disruption is Disruption.DRAIN
    assert [type(s).__name__ for s in state.apply(state.probe(one), plan)] == [
        "Run",
        "RestartUnit",
        "RunLive",
    ]


def test_a_key_fabric_manager_does_not_know_is_refused_before_any_node() -> None:
    with pytest.raises(ValidationError, match="did you mean FABRIC_MODE"):
        FabricManagerRunning(config={"FABRIC_MOD": 1})


# --- boards of the B200 generation ----------------------------------------------------------------


def test_a_subnet_manager_that_died_is_repaired_by_a_restart() -> None:
    state, one = FabricManagerRunning(), settled(FabricManagerRunning(), b200())
    one.shells["nvlsm"] = (0, "")
    plan = state.plan(state.probe(one))
    assert plan.fields == {"subnet_manager"}
    assert any(isinstance(s, ops.RestartUnit) for s in state.apply(state.probe(one), plan))


def test_a_b200_board_without_the_subnet_managers_package_is_refused_with_the_next_move() -> None:
    state = FabricManagerRunning()
    why = state.refuse(state.probe(b200(packages={}))) or ""
    assert "add the state nvlsm to the policy" in why


def test_a_driver_that_does_not_know_these_switches_is_refused() -> None:
    state = FabricManagerRunning()
    old = {"/proc/driver/nvidia/version": VERSION.replace("580.65.06", "560.35.03")}
    assert "from branch 570 on" in (state.refuse(state.probe(b200(files=old))) or "")


# --- where it must not run ------------------------------------------------------------------------


def test_a_unit_that_fails_where_there_is_nothing_to_manage_is_disabled() -> None:
    one = node(switch=False, packages=MINE, units={UNIT: "failed"})
    one.enabled.add(UNIT)
    first, second = converge(FabricManagerRunning(), one)
    assert first.fields == {"at_boot"}
    assert first.disruption is Disruption.NONE
    assert one.installed == MINE
    assert UNIT not in one.enabled
    assert not second


def test_one_that_runs_although_no_switch_is_seen_is_left_alone_and_named() -> None:
    one = node(switch=False, packages=MINE, units={UNIT: "active"})
    one.enabled.add(UNIT)
    (plan,) = converge(FabricManagerRunning(), one, rounds=0)
    assert not plan
    assert "left unchanged" in plan.notes[0]


def test_it_is_stopped_on_a_tray_of_a_rack() -> None:
    rack = tuple(replace(g, fabric_cluster="c-1", fabric_clique=1) for g in gpus(count=4).gpus)
    one = node(
        facts=NodeFacts(pci=pci("2941", 4)),
        packages=MINE,
        units={UNIT: "active"},
        answers={"BridgesQuery": 0, "GpuFacts": replace(gpus(), gpus=rack)},
    )
    _, second = converge(FabricManagerRunning(), one)
    assert one.unit_states[UNIT] == "inactive"
    assert not second


def test_gpus_of_a_fabric_that_another_machine_manages_need_nothing_here() -> None:
    one = node(switch=False, answers={"BridgesQuery": 0, "GpuFacts": gpus("in progress", "")})
    (plan,) = converge(FabricManagerRunning(), one, rounds=0)
    assert not plan
    assert "another machine manages" in plan.notes[0]


# --- what runs on a node --------------------------------------------------------------------------

ONE = "    Fabric\n        State                             : {}\n        Status                            : {}\n        CliqueId                          : 0\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ((("Completed", "Success"),) * 8, 0),
        ((("N/A", "N/A"),) * 8, 0),
        ((("Completed", "Success"), ("In Progress", "N/A")), 1),
        ((("Completed", "Unknown Error"),), 1),
        ((("Not Started", "N/A"),), 1),
    ],
)
def test_the_wait_ends_when_every_gpu_is_complete_with_success(
    tmp_path: Path, said: tuple[tuple[str, str], ...], status: int
) -> None:
    (tmp_path / "answer").write_text("".join(ONE.format(*one) for one in said))
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    smi.chmod(0o755)
    (tmp_path / "journalctl").write_text("#!/bin/sh\n")
    (tmp_path / "journalctl").chmod(0o755)
    script = f"set -e; effect() {{ :; }}; PATH={tmp_path}:$PATH\n{scripts.wait(1)}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    if status:
        assert "not complete after 1 s" in done.stdout
        assert said[-1][0] in done.stdout


def sysfs(folder: Path, *devices: tuple[str, str, str, bytes | None]) -> None:
    for number, (vendor, device, kind, vpd) in enumerate(devices):
        place = folder / f"bus/pci/devices/0000:{number:02x}:00.0"
        place.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            (place / name).write_text(f"0x{text}\n")
        if vpd is not None:
            (place / "vpd").write_bytes(vpd)


BRIDGE = ("15b3", "1021", "020700", b"\x82\x10\x00x\x00SMDL=SW_MNG\xff\n\x00")
CARD = ("15b3", "1021", "020700", b"\x82\x10\x00MFDT\x00")


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        ((("10de", "2901", "030200", None), BRIDGE, BRIDGE, CARD), 2),
        ((("10de", "3182", "030200", None), BRIDGE), 1),
        ((BRIDGE,), 1),  # a service VM has the bridges and no GPU
        ((("10de", "2330", "030200", None), BRIDGE), 0),  # not read there
        ((("10de", "2901", "030200", None), CARD), 0),
        ((("10de", "2901", "030200", None), ("15b3", "a2dc", "020000", BRIDGE[3])), 0),
        ((("10de", "2901", "030200", None), ("15b3", "1021", "020700", None)), 0),
        ((), 0),
    ],
)
def test_bridges_are_told_from_network_cards_by_their_vital_product_data(
    tmp_path: Path, devices: tuple[tuple[str, str, str, bytes | None], ...], count: int
) -> None:
    sysfs(tmp_path, *devices)
    query = BridgesQuery()
    done = subprocess.run(
        ["sh", "-c", f"SYS={tmp_path}\n{query.script()}"], capture_output=True, check=True
    )
    assert query.parse(Answer(0, done.stdout)) == count


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERSION, "580.65.06"),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Mon\nGCC version: 12.2.0\n",
            "535.309.01",
        ),
        ("", None),
        (None, None),
    ],
)
def test_the_version_is_found_in_both_forms_of_the_file(
    text: str | None, version: str | None
) -> None:
    assert loaded_version(text) == version


def test_a_rollback_of_its_installation_leaves_nothing() -> None:
    rolled_back(node(), None, FabricManagerRunning())
