"""The MPS control daemon as a service, its limits, its proof, and what it must not be put on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from policyconflicts import conflict

from gpustate import Disruption, NodeFacts, PciGpu, ops
from gpustate.core.file_queries import FileStat
from gpustate.errors import RefusedError
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.states.mig import MigLayoutApplied
from gpustate.states.mps import CONTROL, PACKAGE, UNIT, UNIT_PATH, MpsRunning
from gpustate.testing import FakeNode, check_contract, converge

PIPES = "/tmp/nvidia-mps"
UUIDS = [f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in (1, 2)]
GPUS = tuple(
    Gpu(
        n,
        UUIDS[n],
        f"0000:{n:02x}:00.0",
        n,
        "NVIDIA L40S",
        memory_mib=46068,
        compute_capability="8.9",
    )
    for n in (0, 1)
)
NVML = NvmlFacts(source="nvml", driver_loaded=True, driver_version="580.65.06", gpus=GPUS)


class World:
    """What the fake daemon and the fake GPUs would say."""

    def __init__(self, *, control: bool = True, beside: tuple[str, ...] = (), **extra: str) -> None:
        self.beside = beside
        self.control = control
        self.proof = ""
        self.extra = extra
        self.pipes = FileStat("dir", 0o755, 0, 0, 0)

    def holders(self, _fake: FakeNode) -> tuple[int, str]:
        return 0, "".join(f"{row}\n" for row in self.beside)

    def nvml(self, fake: FakeNode, nvml: NvmlFacts) -> NvmlFacts:
        text = fake.files.get(UNIT_PATH, "") if fake.unit_states.get(UNIT) == "active" else ""
        modes = {
            uuid: "Exclusive_Process" if f"-i {uuid} -c EXCLUSIVE_PROCESS" in text else "Default"
            for uuid in UUIDS
        }
        gpus = (replace(gpu, compute_mode=modes.get(gpu.uuid, "Default")) for gpu in nvml.gpus)
        return replace(nvml, gpus=tuple(gpus))

    def look(self, fake: FakeNode) -> tuple[int, str]:
        active = fake.unit_states.get(UNIT) == "active"
        text = fake.files.get(UNIT_PATH, "")
        there = self.control or PACKAGE in fake.installed
        lines = ["control=1"] if there else []
        if active:
            share = text.partition("set_default_active_thread_percentage ")[2].partition(" ")[0]
            lines.append(f"threads={share or 100}.0")
        lines += [f"{key}={value}" for key, value in self.extra.items()]
        if self.proof:
            lines.append(f"proof={self.proof}")
        return 0, "\n".join(lines) + "\n"


def node(world: World, nvml: NvmlFacts = NVML, **units: str) -> FakeNode:
    def prove(fake: FakeNode) -> None:
        observed = MpsRunning(**parameters).probe(fake)
        world.proof = str(MpsRunning(**parameters).desired(observed).proven)

    parameters: dict[str, Any] = {}
    fake = FakeNode(
        facts=NodeFacts(systemd=True, pci=(PciGpu("0000:00:00.0", "26b9", "030200", "nvidia"),)),
        units={name + ".service": state for name, state in units.items()},
        candidates={PACKAGE: [("595.91.07-1", "o"), ("580.65.06-1", "o")]},
        shell={"GPUSTATE_IMAGE": world.look, "--query-compute-apps": world.holders},
        answers={
            "GpuFacts": lambda fake: world.nvml(fake, nvml),
            "FileStats": lambda _: {PIPES: world.pipes},
        },
        runs={
            "accessible to all users": lambda _: setattr(
                world, "pipes", FileStat("dir", 0o755, 0, 0, 0)
            ),
            "remove the daemon's files": lambda _: None,
            "validate MPS": prove,
            "remove the MPS validation program": lambda fake: setattr(world, "proof", ""),
        },
    )
    fake.vars = {"parameters": parameters}
    return fake


def run(fake: FakeNode, **parameters: Any) -> tuple[Any, Any]:
    held: Any = fake.vars["parameters"]
    held.clear()
    held.update({k: v for k, v in parameters.items() if k != "ensure"})
    first, last = converge(MpsRunning(**parameters), fake)
    return first, last


def test_the_daemon_runs_with_a_share_for_each_client_and_is_proven() -> None:
    world = World()
    fake = node(world)
    first, last = run(fake, clients=4)
    assert {"unit_text", "active", "at_boot", "exclusive", "proven"} <= first.fields
    assert first.disruption == Disruption.RESTART
    assert not last
    unit = fake.files[UNIT_PATH]
    assert f"ExecStart={CONTROL} -d" in unit
    assert "echo set_default_device_pinned_mem_limit 1 11517M" in unit
    assert "echo set_default_active_thread_percentage 25" in unit
    assert f"ExecStopPost=-/usr/bin/nvidia-smi -i {UUIDS[0]} -c DEFAULT" in unit
    assert [step.label for step in fake.done][-1] == "validate MPS with two clients"


def test_other_limits_restart_it_and_prove_again() -> None:
    world = World()
    fake = node(world)
    run(fake, clients=4)
    first, last = run(fake, clients=2)
    assert {"unit_text", "threads", "proven"} == first.fields
    assert not last


def test_clients_that_run_now_cost_a_drain_and_are_counted() -> None:
    fake = node(World(client="4711"))
    first, _ = run(fake)
    assert first.disruption == Disruption.DRAIN
    assert any("ends 1 client," in change.why for change in first.changes)


def test_who_is_on_the_gpus_beside_mps_is_named() -> None:
    first, _ = run(node(World(beside=("99, /usr/bin/python3", "98, nvidia-cuda-mps-server"))))
    assert first.notes[0].endswith("MPS now: 99 /usr/bin/python3")
    assert first.disruption == Disruption.DRAIN


def test_some_gpus_only_are_put_into_exclusive_mode_and_shown_to_it() -> None:
    fake = node(World())
    _, last = run(fake, gpus=[UUIDS[1]])
    assert f"CUDA_VISIBLE_DEVICES={UUIDS[1]}\n" in fake.files[UNIT_PATH]
    assert f"-i {UUIDS[0]} -c" not in fake.files[UNIT_PATH]
    assert not last


def test_debian_s_package_comes_in_the_driver_s_version() -> None:
    fake = node(World(control=False))
    _, last = run(fake)
    assert fake.installed[PACKAGE] == "580.65.06-1"
    assert not last
    *_, last = run(fake, ensure="absent")
    assert PACKAGE not in fake.installed
    assert not last


@pytest.mark.parametrize(
    ("pipes", "found"),
    [
        (FileStat("dir", 0o700, 0, 0, 0), "owner 0:0, mode 0700"),
        (FileStat("dir", 0o755, 1000, 7, 0), "owner 1000:7, mode 0755"),
        (FileStat("dir", 0o777, 0, 0, 0), ""),
        (FileStat("link", 0o777, 0, 0, 0, target="/run/mps"), ""),
    ],
)
def test_a_pipe_folder_that_keeps_clients_away_is_mended_without_a_restart(
    pipes: FileStat, found: str
) -> None:
    world = World()
    fake = node(world)
    run(fake)
    world.pipes = pipes
    fake.done.clear()
    first, last = run(fake)
    assert [(change.field, change.before) for change in first.changes] == (
        [("folder", found)] if found else []
    )
    assert first.disruption == Disruption.NONE
    assert not any(isinstance(step, ops.RestartUnit) for step in fake.done)
    assert not last


def test_a_file_where_a_folder_belongs_is_refused() -> None:
    row = "/var/log/nvidia-mps/.gpustate|/var/log/nvidia-mps|folder|a file"
    with pytest.raises(RefusedError, match="/var/log/nvidia-mps is a file, and a folder belongs"):
        MpsRunning().probe(node(World(odd=row)))


def test_a_folder_of_somebody_else_is_refused_and_one_that_a_newer_daemon_filled_is_not() -> None:
    world = World(strange="passwd")
    fake = node(world)
    state = MpsRunning(pipe_folder="/etc")
    assert state.refuse(state.probe(fake)) == (
        "/etc holds passwd, which no MPS daemon created; set pipe_folder to a folder used by MPS "
        "only"
    )
    fake.files[UNIT_PATH] = "[Service]\nEnvironment=CUDA_MPS_PIPE_DIRECTORY=/etc\n"
    assert state.refuse(state.probe(fake)) is None


@pytest.mark.parametrize(
    ("mig", "parameters", "device", "refused"),
    [
        ({"config": "all-balanced"}, {}, "2330", True),
        ({"config": "all-disabled"}, {}, "2330", False),
        ({"config": "all-balanced"}, {"gpus": [UUIDS[0]]}, "2330", False),
        ({"config": "all-balanced"}, {}, "26b9", False),
        ({"config": "all-enabled"}, {}, "20b2", True),
        ({"config": "all-balanced", "ensure": "absent"}, {}, "2330", False),
    ],
)
def test_it_is_refused_beside_a_division_of_the_gpus_before_that_begins(
    mig: dict[str, Any], parameters: dict[str, Any], device: str, refused: bool
) -> None:
    facts = NodeFacts(pci=(PciGpu("0000:1b:00.0", device, "030200", None),))
    others: dict[str, Any] = {"mig": MigLayoutApplied(**mig)}
    reason = conflict(MpsRunning(**parameters), others, facts)
    assert (reason is not None) is refused
    assert not refused or "gives the GPU 0000:1b:00.0 MIG mode" in str(reason)


@pytest.mark.parametrize(
    ("nvml", "parameters", "world", "units", "words"),
    [
        (NVML, {}, World(), {"kubelet": "active"}, "a kubelet runs here"),
        (NVML, {}, World(daemon="812"), {}, "another MPS control daemon runs (pid 812)"),
        (
            NVML,
            {},
            World(daemon="812|/srv/m"),
            {},
            "echo quit | CUDA_MPS_PIPE_DIRECTORY=/srv/m nvidia-cuda-mps-control",
        ),
        (NVML, {"gpus": [UUIDS[0][:-1] + "9"]}, World(), {}, "no GPU GPU-"),
        (replace(NVML, gpus=()), {}, World(), {}, "no GPU on this node"),
        (NvmlFacts(error=9), {}, World(), {}, "driver not loaded"),
        (
            replace(NVML, driver_version="570.1"),
            {},
            World(control=False),
            {},
            "no repository offers",
        ),
        (
            replace(NVML, gpus=(replace(GPUS[0], mig_current=True),)),
            {},
            World(),
            {},
            "GPU 0 has MIG enabled",
        ),
        (
            replace(NVML, gpus=(replace(GPUS[0], compute_capability="6.1"),)),
            {"clients": 17},
            World(),
            {},
            "takes 16 clients",
        ),
    ],
)
def test_where_it_cannot_run_it_says_why_and_changes_nothing(
    nvml: NvmlFacts, parameters: dict[str, Any], world: World, units: dict[str, str], words: str
) -> None:
    state = MpsRunning(**parameters)
    observed = state.probe(node(world, nvml, **units))
    assert words in str(state.refuse(observed))
    assert not state.plan(observed)


def test_it_keeps_the_contract() -> None:
    check_contract(MpsRunning(), node(World()))
    check_contract(MpsRunning(clients=8, gpus=(UUIDS[0],), exclusive=False), node(World()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Environment=CUDA_MPS_PIPE_DIRECTORY=/run/other", "PIPE_DIRECTORY=/run/other, and jobs"),
        ('Environment="A=b" "CUDA_MPS_PIPE_DIRECTORY=/run/other"', "x.conf has gpustate-mps"),
        (
            "ExecStart=\nExecStart=-/bin/false",
            "x.conf sets the command of gpustate-mps.service to -/bin/false",
        ),
        ("Environment=CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", ""),
        ("Environment=MY_CUDA_MPS_PIPE_DIRECTORY=/run/other", ""),
        ("# Environment=CUDA_MPS_PIPE_DIRECTORY=/run/other", ""),
    ],
)
def test_a_drop_in_that_takes_the_daemon_from_its_clients_is_refused(text: str, words: str) -> None:
    fake, state = node(World()), MpsRunning()
    fake.files[f"{UNIT_PATH}.d/x.conf"] = f"[Service]\n{text}\n"
    said = state.refuse(state.probe(fake)) or ""
    assert (words in said) if words else not said


def test_a_daemon_that_answers_and_has_ended_since_is_nobody_elses() -> None:
    state = MpsRunning()
    assert state.refuse(state.probe(node(World(threads="100.0")))) is None


def test_a_pipe_folder_that_a_policy_names_may_be_a_drop_ins() -> None:
    fake, state = node(World()), MpsRunning(pipe_folder="/run/other")
    text = "[Service]\nEnvironment=CUDA_MPS_PIPE_DIRECTORY=/run/other\n"
    fake.files[f"{UNIT_PATH}.d/x.conf"] = text
    assert state.refuse(state.probe(fake)) is None


def test_a_drop_in_of_somebody_else_has_it_proven_again() -> None:
    fake = node(World())
    _, last = run(fake)
    assert not last
    text = "[Service]\nEnvironment=CUDA_MPS_LOG_DIRECTORY=/elsewhere\n"
    fake.files[f"{UNIT_PATH}.d/x.conf"] = text
    first, last = run(fake)
    assert first.fields == {"proven"}
    assert not last
