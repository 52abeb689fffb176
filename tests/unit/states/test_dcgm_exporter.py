"""The exporter as a host service: its files, when it restarts, and what its answer must have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policyconflicts import conflict

from gpustate import Disruption, ops
from gpustate.core.file_queries import FileStat
from gpustate.core.policy import build
from gpustate.errors import PolicyError
from gpustate.formats import dcgm
from gpustate.formats.dcgm import packages, services
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.dcgm_exporter import (
    COUNTERS_PATH,
    DROP_IN_PATH,
    UNIT,
    UNIT_PATH,
    DcgmExporterRunning,
)
from gpustate.testing import FakeNode, check_contract

NAME = packages.EXPORTERS[0]
GPUS = tuple(
    Gpu(
        n,
        f"GPU-{n}",
        f"0000:0{n + 1}:00.0",
        n,
        "NVIDIA H100 80GB HBM3",
        device_id="2330",
        compute_capability="9.0",
        ecc=True,
        remap_failed=False,
        fabric_state="completed",
    )
    for n in (0, 1)
)
NVML = NvmlFacts(source="nvml", driver_loaded=True, driver_version="580.65.06", gpus=GPUS)


class World:
    """An exporter that reads its files when it is started, as the real one."""

    def __init__(self, **more: Any) -> None:
        self.read: tuple[str, str] | None = None
        self.leaves_out: str = ""
        self.program = self.made = False
        self.unit_of_package = True
        self.listeners: list[str] = []
        settings: dict[str, Any] = {
            "candidates": {NAME: [("4.8.3-1", "vendor"), ("4.8.2-1", "vendor")]},
            "answers": {"GpuFacts": NVML, "FileStats": self.stats},
            "shell": {"MainPID": self.look, "/dev/tcp": self.scrape},
            "runs": {"create the folder": self.make, "if it is empty": lambda _: None},
        }
        self.node = FakeNode(**{**settings, **more})

    def make(self, fake: FakeNode) -> None:
        self.made = True

    def stats(self, fake: FakeNode) -> dict[str, FileStat]:
        return {"/jobs": FileStat("dir", 0o755, 0, 0, 0)} if self.made else {}

    def start(self) -> None:
        text = self.node.files.get(DROP_IN_PATH) or self.node.files.get(UNIT_PATH) or ""
        self.read = (text, self.node.files.get(COUNTERS_PATH, ""))

    def look(self, fake: FakeNode) -> tuple[int, str]:
        there = self.program or bool(fake.installed)
        lines = ["program=1"] if there else []
        lines += ["unit=1"] if there and self.unit_of_package else []
        if fake.unit_states.get(UNIT) == "active" and self.read is not None:
            command = self.read[0].rpartition("ExecStart=")[2].partition("\n")[0]
            mark = self.read[0].partition(f"{services.DIGEST}=")[2].partition("\n")[0]
            lines += [f"words={command}", f"{services.DIGEST}={mark}"]
        lines += [f"listener={row}" for row in self.listeners]
        return 0, "\n".join(lines) + "\n"

    def scrape(self, fake: FakeNode) -> tuple[int, str]:
        if fake.unit_states.get(UNIT) != "active" or self.read is None:
            return 1, ""
        lines = []
        for one in dcgm.read(self.read[1], "x"):
            if (
                one.field.id is not None
                and one.type != "label"
                and one.field.name != self.leaves_out
            ):
                for gpu in GPUS:
                    told = f'gpu="{gpu.index}",UUID="{gpu.uuid}",DCGM_FI_DRIVER_VERSION="580"'
                    lines.append(f"{one.field.name}{{{told}}} 1")
        return 0, "\n".join(lines) + "\n"

    def converge(self, **parameters: Any) -> list[Any]:
        state = build(DcgmExporterRunning, parameters)
        plans = []
        for _ in range(2):
            observed = state.probe(self.node)
            plan = state.plan(observed)
            plans.append(plan)
            for step in state.apply(observed, plan) if plan else ():
                self.node.carry_out(step)
                if isinstance(step, ops.RestartUnit):
                    self.start()
        return plans


def test_it_is_installed_configured_started_and_its_answer_is_whole() -> None:
    world = World()
    first, second = world.converge(job_mapping="/jobs")
    assert world.node.installed == {NAME: "4.8.3-1"}
    assert UNIT in world.node.enabled
    assert "--hpc-job-mapping-dir /jobs" in world.node.files[DROP_IN_PATH]
    assert "-r localhost:5555" in world.node.files[DROP_IN_PATH]
    assert UNIT_PATH not in world.node.files
    assert first.disruption is Disruption.NONE
    assert not second


def test_a_field_that_the_exporters_release_does_not_know_is_left_out_and_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "my.csv"
    file.write_text("DCGM_FI_DEV_SM_CLOCK,gauge,x\nDCGM_FI_DEV_GPU_TEMP_CELSIUS,gauge,x\n")
    world = World()
    first, second = world.converge(counters=str(file), version="4.8.2")
    assert "CELSIUS" not in world.node.files[COUNTERS_PATH]
    (note,) = [one for one in first.notes if "does not support" in one]
    assert "my.csv:2: " in note
    assert "dcgm-exporter 4.8.2" in note
    assert "write DCGM_FI_DEV_GPU_TEMP, the same field" in note
    assert not second
    newer = World()
    newer.converge(counters=str(file))
    assert "DCGM_FI_DEV_GPU_TEMP_CELSIUS" in newer.node.files[COUNTERS_PATH]


def test_a_field_that_no_gpu_can_report_is_left_out_and_named() -> None:
    off = replace(NVML, gpus=tuple(replace(gpu, ecc=False) for gpu in GPUS))
    world = World(answers={"GpuFacts": off})
    first, second = world.converge()
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" not in world.node.files[COUNTERS_PATH]
    assert any("ECC is off" in note and "left out" in note for note in first.notes)
    assert not second
    kept = World(answers={"GpuFacts": off})
    kept.converge(keep_unreportable=True)
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in kept.node.files[COUNTERS_PATH]
    one = replace(NVML, gpus=(GPUS[0], replace(GPUS[1], ecc=False)))
    some = World(answers={"GpuFacts": one})
    first, _ = some.converge()
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in some.node.files[COUNTERS_PATH], "the other one can"
    assert any("ECC is off" in note and "left out" not in note for note in first.notes)


def test_a_comment_in_the_file_is_undone_without_a_restart() -> None:
    world = World()
    world.converge()
    world.node.files[COUNTERS_PATH] += "# mine\n"
    world.node.done.clear()
    first, second = world.converge()
    assert first.fields == {"counters"}
    assert first.disruption is Disruption.NONE
    assert not any(isinstance(step, ops.RestartUnit) for step in world.node.done)
    assert not second


def test_another_interval_costs_a_restart() -> None:
    world = World()
    world.converge()
    first, second = world.converge(interval_ms=10_000)
    assert first.fields == {"drop_in", "running"}
    assert first.disruption is Disruption.RESTART
    assert not second


def test_files_that_were_written_and_never_read_are_read_now() -> None:
    world = World()
    world.converge()
    read = world.read
    world.converge(interval_ms=10_000)
    world.read = read  # killed before the restart
    first, second = world.converge(interval_ms=10_000)
    assert first.fields == {"running"}
    assert not second


def test_a_field_that_is_not_in_the_answer_is_drift_with_the_gpus() -> None:
    world = World()
    world.converge()
    world.leaves_out = "DCGM_FI_DEV_POWER_USAGE"
    first, second = world.converge()
    assert first.fields == second.fields == {"missing"}
    (told,) = first.changes[0].before
    assert told.startswith("DCGM_FI_DEV_POWER_USAGE: GPU 0: missing")
    assert told.endswith("(and on 1 more)")
    assert world.converge(scrape=False) == [replace(first, changes=())] * 2


def test_an_exporter_without_a_unit_gets_one() -> None:
    world = World(candidates={})
    world.program, world.unit_of_package = True, False
    _, second = world.converge()
    assert "[Install]" in world.node.files[UNIT_PATH]
    assert DROP_IN_PATH not in world.node.files
    assert not second


@pytest.mark.parametrize(
    ("world", "parameters", "said"),
    [
        (World(candidates={}), {}, f"no repository offers {NAME}"),
        (World(), {"version": "9.9.9"}, f"no repository offers {NAME} 9.9.9"),
        (World(answers={"GpuFacts": NvmlFacts(error=9)}), {}, "no GPU answers (driver not loaded)"),
        (
            World(answers={"GpuFacts": NVML, "FileStats": {"/jobs": FileStat("file", 0, 0, 0, 0)}}),
            {"job_mapping": "/jobs"},
            "/jobs is not a directory",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_move(
    world: World, parameters: dict[str, object], said: str
) -> None:
    state = build(DcgmExporterRunning, parameters)
    observed = state.probe(world.node)
    reason = state.refuse(observed) or state.plan(observed).refusal
    assert reason is not None
    assert said in reason


def test_a_port_that_somebody_else_has_is_refused_with_who_has_it() -> None:
    world, state = World(), build(DcgmExporterRunning, {"listen": "127.0.0.1:9400"})
    world.listeners = ["0200007F:24B8|7|nc|0|root||0::/a.scope"]
    assert state.refuse(state.probe(world.node)) is None, "another address"
    world.listeners = [f"00000000:24B8|9|dcgm-exporter|0|root||0::/system.slice/{UNIT}"]
    assert state.refuse(state.probe(world.node)) is None, "the exporter itself"
    world.listeners = ["00000000:24B8|812|nginx|0|root||0::/system.slice/nginx.service"]
    assert state.refuse(state.probe(world.node)) == (
        "port 9400 is taken by pid 812 (nginx, user root, unit nginx.service); stop it, or set "
        "another port with listen"
    )
    gone = build(DcgmExporterRunning, {"ensure": "absent"})
    assert gone.refuse(gone.probe(world.node)) is None


def test_a_counters_file_of_ones_own_is_read_once_and_travels_along(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n")
    state = build(DcgmExporterRunning, {"counters": str(path)})
    path.unlink()
    world = World()
    text = state.desired(state.probe(world.node)).counters
    assert text is not None
    assert text.endswith("\nDCGM_FI_DEV_GPU_TEMP, gauge, t\n")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"counters": "no-such-file.csv"}, "no-such-file.csv"),
        ({"listen": "9400"}, "listen"),
        ({"listen": ":99999"}, "no port"),
        ({"listen": "300.1.1.1:9400"}, "no IPv4 address"),
        ({"engine": "a b"}, "engine"),
        ({"job_mapping": "jobs"}, "job_mapping"),
        ({"interval_ms": 1}, "interval_ms"),
        ({"counters": "a", "contents": {"a": "X, gauge, y\n"}}, "is not a DCGM field"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_node(
    parameters: dict[str, object], said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        build(DcgmExporterRunning, parameters)


def test_it_keeps_the_contract() -> None:
    check_contract(build(DcgmExporterRunning, {}), World().node)


def test_a_drop_in_that_is_read_after_ours_is_refused_and_one_before_it_is_not() -> None:
    text = "[Service]\nExecStart=\nExecStart=/bin/false\n"
    for name, refused in (("a.conf", False), ("x.conf", True)):
        theirs = f"/etc/systemd/system/{UNIT}.d/{name}"
        world, state = World(files={theirs: text}), build(DcgmExporterRunning, {})
        reason = state.refuse(state.probe(world.node)) or ""
        assert (f"{theirs} sets the command of {UNIT} to '/bin/false'" in reason) is refused


@pytest.mark.parametrize(
    ("engine", "listens", "right"),
    [
        ("localhost:5555", {}, None),
        ("localhost:5566", {"port": 5566, "address": "ALL"}, None),
        ("localhost:5555", {"port": 5566}, "engine: localhost:5566"),
        ("127.0.0.1:5555", {"address": "10.0.0.4"}, "engine: 10.0.0.4:5555"),
        ("10.0.0.9:5555", {"port": 5566}, None),
        ("", {"port": 5566}, None),
    ],
)
def test_it_asks_the_host_engine_of_the_policy_where_that_listens(
    engine: str, listens: dict[str, Any], right: str | None
) -> None:
    state = DcgmExporterRunning(engine=engine)
    reason = conflict(state, {"dcgm": DcgmRunning(**listens), state.name: state})
    assert (reason is None) if right is None else (right in (reason or ""))
    gone = DcgmRunning(ensure="absent", port=5566)
    assert "removes" in (conflict(state, {"dcgm": gone, state.name: state}) or "")
