"""Persistence mode under both ways that the daemon is packaged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustate import NodeFacts, PciGpu
from gpustate.core.building import parameters
from gpustate.core.encode import plain
from gpustate.core.planned import PlannedObservation
from gpustate.core.queries import Candidates
from gpustate.engine.before import RunBefore, StateBefore, way_back
from gpustate.formats.systemd import Unit
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.states.persistenced import (
    DROP_IN_PATH,
    PROGRAM_PATH,
    UNIT,
    UNIT_PATH,
    WANTS_PATH,
    PersistenceModeEnabled,
    drop_in_text,
)
from gpustate.testing import FakeNode, converge

NVIDIA = """[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose

[Install]
WantedBy=multi-user.target
"""
UBUNTU = """[Unit]
StopWhenUnneeded=true
[Service]
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
"""
GPU = PciGpu("0000:1b:00.0", "2330", "030200", "nvidia")


def told(*gpus: Gpu) -> NvmlFacts:
    return NvmlFacts(source="nvml", driver_loaded=True, gpus=gpus)


def node(unit: str | None, *, gpus: tuple[PciGpu, ...] = (GPU,)) -> FakeNode:
    """A node whose GPUs are in persistence mode while the daemon runs in it."""

    def modes(fake: FakeNode) -> NvmlFacts:
        text = fake.files.get(DROP_IN_PATH) or fake.files.get(UNIT_PATH, "")
        on = fake.unit_states.get(UNIT) == "active" and "--no-persistence-mode" not in text
        return told(*(Gpu(0, pci=gpu.address, persistence_mode=on) for gpu in gpus))

    def unwanted(fake: FakeNode) -> None:
        fake.files.pop(WANTS_PATH, None)

    return FakeNode(
        facts=NodeFacts(systemd=True, pci=gpus),
        files={UNIT_PATH: unit, PROGRAM_PATH: ""} if unit else {},
        units={UNIT: "inactive"} if unit else {},
        answers={"GpuFacts": modes},
        runs={
            "disable nvidia-persistenced": unwanted,
            "stop nvidia-persistenced": lambda fake: fake.unit_states.update({UNIT: "inactive"}),
            "enable nvidia-persistenced at boot": lambda fake: fake.files.update({WANTS_PATH: ""}),
        },
    )


def test_ubuntus_unit_gets_a_drop_in_and_is_wanted_at_boot() -> None:
    fake = node(UBUNTU)
    *_, last = converge(PersistenceModeEnabled(), fake)
    assert not last
    assert "StopWhenUnneeded=false" in fake.files[DROP_IN_PATH]
    assert WANTS_PATH in fake.files
    assert UNIT not in fake.enabled, "it cannot be enabled"


def test_a_gpu_that_fell_back_gets_a_restart() -> None:
    fake = node(NVIDIA)
    list(converge(PersistenceModeEnabled(), fake))
    fake.answers["GpuFacts"] = told(Gpu(0, pci=GPU.address, persistence_mode=False))
    state = PersistenceModeEnabled()
    assert state.plan(state.probe(fake)).fields == {"persistent"}


def test_a_drop_in_is_written_only_where_the_unit_is_wrong() -> None:
    assert drop_in_text(NVIDIA, uvm_persistence=False) is None
    assert drop_in_text("", uvm_persistence=True) is None
    added = drop_in_text(NVIDIA, uvm_persistence=True)
    assert added is not None
    assert added.endswith(
        "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose"
        " --persistence-mode --uvm-persistence-mode\n"
    )
    replaced = drop_in_text(UBUNTU, uvm_persistence=False)
    assert replaced is not None
    assert "--no-persistence-mode" not in replaced


def test_gpus_that_do_not_answer_are_left_to_the_validator() -> None:
    fake = node(NVIDIA)
    fake.answers["GpuFacts"] = told(
        Gpu(0, pci="a", persistence_mode=True), Gpu(1, pci="b", error=15)
    )
    assert PersistenceModeEnabled().probe(fake).persistent == {"a": True}


@pytest.mark.parametrize(
    ("mode", "facts"),
    [
        ("", {"confidential": None, "ppcie": None}),
        ("off", {"confidential": False, "ppcie": False}),
        ("devtools", {"confidential": True, "ppcie": False}),
        ("ppcie", {"confidential": True, "ppcie": True}),
    ],
)
def test_the_matrix_gets_the_mode_that_nvml_reports(mode: str, facts: dict[str, object]) -> None:
    fake = node(NVIDIA)
    fake.answers["GpuFacts"] = replace(
        told(Gpu(0, pci=GPU.address, persistence_mode=True)), confidential=mode
    )
    state = PersistenceModeEnabled()
    assert state.matrix_facts(PlannedObservation(state.probe(fake), None)) == facts


def test_an_image_without_gpus_only_enables_it() -> None:
    fake = node(NVIDIA, gpus=())
    first, last = converge(PersistenceModeEnabled(), fake)
    assert first.fields == {"at_boot"}
    assert not last


def test_a_missing_daemon_is_refused_with_the_next_move() -> None:
    state = PersistenceModeEnabled()
    why = state.refuse(state.probe(node(None)))
    assert why is not None
    assert "the state driver installs it" in why
    assert "choose the repository that the driver is from in driver-repository" in why


def sited(name: str, word: str) -> tuple[FakeNode, str]:
    """A node with a drop-in of somebody else, and its path."""
    fake, path = node(NVIDIA), f"{DROP_IN_PATH.rpartition('/')[0]}/{name}"
    fake.files[path] = f"[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-persistenced {word}\n"
    return fake, path


def test_a_drop_in_that_is_read_before_ours_is_set_right() -> None:
    fake, _ = sited("10-site.conf", "--no-persistence-mode --verbose")
    first, last = converge(PersistenceModeEnabled(), fake)
    assert "drop_in_text" in first.fields
    assert not last
    assert "nvidia-persistenced --verbose --persistence-mode\n" in fake.files[DROP_IN_PATH]


def test_a_drop_in_that_is_read_after_ours_and_undoes_it_is_refused() -> None:
    state = PersistenceModeEnabled()
    fake, path = sited("zz-site.conf", "--no-persistence-mode")
    assert f"{path} starts nvidia-persistenced" in (state.refuse(state.probe(fake)) or "")
    for name in ("10-site.conf", "zz-site.conf"):
        fake, path = sited(name, "")
        fake.files[path] = "[Service]\nExecStart=\nExecStart=-/bin/true\n"
        said = f"{path} sets the command of nvidia-persistenced.service to -/bin/true, so it does nothing"
        assert said in (state.refuse(state.probe(fake)) or "")
    harmless, _ = sited("zz-site.conf", "--verbose")
    assert state.refuse(state.probe(harmless)) is None


def test_a_unit_whose_program_is_missing_is_refused_and_the_driver_named() -> None:
    fake = node(NVIDIA)
    del fake.files[PROGRAM_PATH]
    state = PersistenceModeEnabled()
    assert "apply the state driver" in str(state.refuse(state.probe(fake)))
    gone = PersistenceModeEnabled(ensure="absent")
    assert gone.refuse(gone.probe(fake)) is None
    fake.files[UNIT_PATH] = NVIDIA.replace("/usr/bin/", "/opt/bin/")
    assert state.refuse(state.probe(fake)) is None, "it runs another"


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("at_boot", [True, False])
@pytest.mark.parametrize("unit", [NVIDIA, UBUNTU])
def test_a_rollback_restores_a_daemon_that_was_installed_by_hand(
    unit: str, at_boot: bool, active: bool
) -> None:
    fake = node(unit)
    fake.unit_states[UNIT] = "active" if active else "inactive"
    if at_boot:
        fake.files[WANTS_PATH] = ""
    state = PersistenceModeEnabled()
    before = state.probe(fake)
    list(converge(state, fake))
    row = StateBefore(parameters(state), pinned=plain(state.pinned(before)), observed=plain(before))
    (back, *_) = way_back(
        (RunBefore("r", states={state.name: row}),), "r", {state.name: PersistenceModeEnabled}
    ).states
    *_, last = converge(back, fake)
    assert not last
    now = state.probe(fake)
    assert now == before


def test_a_rollback_does_not_start_a_daemon_that_did_not_run_before() -> None:
    """The driver of before may lack what the daemon needs, as nvidia-modprobe, so that a start fails."""
    fake = node(NVIDIA)
    fake.enabled.add(UNIT)
    state = PersistenceModeEnabled()
    row = StateBefore(parameters(state), observed=plain(state.probe(fake)))
    runs = (
        RunBefore("a", states={state.name: StateBefore(parameters(state))}),
        RunBefore("b", states={state.name: row}),
    )
    (back, *_) = way_back(runs, "b", {state.name: PersistenceModeEnabled}).states
    assert not back.plan(back.probe(fake))


def test_a_static_unit_is_not_taken_for_one_that_starts_at_boot() -> None:
    """Ubuntu's has no ``[Install]``: systemd starts it when something wants it, and nothing does."""
    one = node(UBUNTU)
    one.answers["Units"] = {UNIT: Unit(UNIT, "loaded", "inactive", "static")}
    assert not PersistenceModeEnabled().probe(one).at_boot
    one.files[WANTS_PATH] = ""
    assert PersistenceModeEnabled().probe(one).at_boot


def test_repositories_are_not_asked_for_nothing() -> None:
    one = node(NVIDIA)
    PersistenceModeEnabled().probe(one)
    assert not [query for query in one.queries if isinstance(query, Candidates)]
