"""GPUs out of use: from the inventory, beside those of the command, with an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpustate.core.policy import build
from gpustate.errors import PolicyError
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.states.quarantine import GpusQuarantined, seconds
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {"quarantine": "no GPU is out of use there"}

UUIDS = [f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in (1, 2)]
NVML = NvmlFacts(gpus=tuple(Gpu(n, UUIDS[n], f"0000:0{n}:00.0") for n in (0, 1)))
NOW = seconds("2026-06-01T12:00Z")
COMMAND = Entry(UUIDS[1], "0000:01:00.0", "flaky", NOW + 60, NOW, "somebody")


class World:
    def __init__(self, *entries: Entry, now: int = NOW) -> None:
        self.held = Quarantine(entries, now)

    def node(self, nvml: NvmlFacts = NVML) -> FakeNode:
        return FakeNode(
            answers={"GpuFacts": nvml, "ExcludedGpusQuery": lambda _: self.held},
            shell={"date +%s": (0, f"{NOW}\n")},
            runs={"record which": self.write, "end the quarantine": self.end},
        )

    def write(self, _: FakeNode) -> None:
        observed = self.state.probe(self.node())
        self.held = replace(self.held, entries=self.state._entries(observed), problem="")

    def end(self, _: FakeNode) -> None:
        self.held = replace(self.held, entries=(), problem="")

    def run(self, **parameters: object) -> list[object]:
        state = build(GpusQuarantined, parameters)
        assert isinstance(state, GpusQuarantined)
        self.state = state
        return list(converge(self.state, self.node()))


def of(gpu: str, until: str = "2026-07-01", reason: str = "RMA 4711") -> dict[str, str]:
    return {"gpu": gpu, "reason": reason, "until": until}


def test_a_gpu_of_the_inventory_is_written_down_and_named_in_every_plan() -> None:
    world = World()
    first, second = world.run(gpus=[of(UUIDS[0])])
    assert first
    assert not second
    (entry,) = world.held.entries
    assert (entry.uuid, entry.pci, entry.by) == (UUIDS[0], "0000:00:00.0", "inventory")
    assert entry.until == seconds("2026-07-01T00:00Z")
    told = f"GPU in quarantine: {UUIDS[0]} until 2026-07-01T00:00Z: RMA 4711 (inventory)"
    assert second.warnings == (told,)  # type: ignore[attr-defined]


def test_what_a_command_wrote_stays_until_its_end_and_what_is_over_goes() -> None:
    world = World(COMMAND, replace(COMMAND, uuid=UUIDS[0], pci="", until=NOW))
    first, second = world.run()
    assert first
    assert not second
    assert world.held.entries == (COMMAND,)


def test_what_the_inventory_no_longer_says_goes() -> None:
    world = World(replace(COMMAND, by="inventory"), COMMAND)
    world.run()
    assert world.held.entries == (COMMAND,)


def test_an_end_that_has_passed_is_told() -> None:
    world = World()
    (plan, _) = world.run(gpus=[of(UUIDS[0], "2026-01-01")])
    assert not plan
    assert "ended at 2026-01-01; remove it" in plan.warnings[0]  # type: ignore[attr-defined]


def test_removal_takes_the_inventorys_and_leaves_the_commands() -> None:
    world = World(replace(COMMAND, by="inventory", uuid=UUIDS[0], pci=""), COMMAND)
    world.run(ensure="absent")
    assert world.held.entries == (COMMAND,)


def test_a_gpu_that_is_not_there_is_refused_as_long_as_all_answer() -> None:
    other = UUIDS[0].replace("1", "9")
    state = build(GpusQuarantined, {"gpus": [of(other)]})
    reason = state.refuse(state.probe(World().node()))
    assert reason is not None
    assert f"no GPU {other} on this node; its GPUs are {UUIDS[0]}" in reason
    lost = replace(NVML, gpus=(NVML.gpus[0], Gpu(1, error=15)))
    assert state.refuse(state.probe(World().node(lost))) is None


def test_a_file_that_cannot_be_read_is_written_anew() -> None:
    world = World()
    world.held = Quarantine(problem="quarantine.json cannot be read (x)")
    first, second = world.run()
    assert first
    assert not second


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([of("3")], "gpu"),
        ([of(UUIDS[0], "soon")], "is not a time"),
        ([of(UUIDS[0], reason="")], "reason"),
        ([of(UUIDS[0], reason="a\nb")], "not a line of text"),
        ([of(UUIDS[0]), of(UUIDS[0])], "is listed twice"),
        ([{"gpu": UUIDS[0], "reason": "x"}], "until"),
        ("all", "gpus"),
        ([of(UUIDS[0], "9" * 400)], "is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_node(gpus: object, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as caught:
        build(GpusQuarantined, {"gpus": gpus})
    assert len(str(caught.value)) < 400


def test_it_keeps_the_contract() -> None:
    check_contract(build(GpusQuarantined, {"gpus": [of(UUIDS[0])]}), World(COMMAND).node())


def test_a_file_that_others_may_write_is_written_again() -> None:
    world = World()
    world.run(gpus=[of(UUIDS[0])])
    fake = world.node()
    fake.files["$G/quarantine.json"] = "{}"
    assert world.state.plan(world.state.probe(fake)).fields == {"file"}
    fake.modes["$G/quarantine.json"] = 0o600
    assert not world.state.plan(world.state.probe(fake))
