"""Killed before and after every write by scontrol, the next run ends with every node of Slurm done and in service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import shares
from rolloutbed import finish
from slurmpoints import WORDS, SlurmBed

pytestmark = [pytest.mark.long, pytest.mark.node]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    made = SlurmBed(tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()


def test_the_run_after_a_killed_one_ends_with_every_node_done_and_resumed(bed: SlurmBed) -> None:
    words, kinds = WORDS, ("DRAIN", "UNDRAIN", "Reason")
    bed.reset()
    ran = bed.run(*words)
    assert ran.code == 0, ran.text
    assert bed.slurm_wrong() == []
    writes = bed.writes
    assert {f"{kind} {one.name} 1" for kind in kinds for one in bed.machines} <= set(writes)
    points = [(write, when) for write in writes for when in ("before", "after")]
    for write, when in shares.share("rollout points, Slurm", points, most=6):
        bed.reset()
        bed.killed(write, when, *words)
        again = bed.run(*words)
        assert again.code == 0, f"killed {when} {write}: {again.text}"
        assert bed.slurm_wrong() == [], f"killed {when} {write}: {again.text}"


def test_a_drain_of_someone_else_during_the_hold_stays(bed: SlurmBed) -> None:
    bed.reset()
    machine = bed.machines[0]
    machine.stop_at("1")
    hold = bed.hold(machine)
    command = bed.start("-l", "n0")
    assert hold.wait(60.0)
    path = bed.head.folder / "slurm.json"
    nodes = json.loads(path.read_text())
    nodes["n0"] |= {"reason": "disk swap", "user": "bob"}
    path.write_text(json.dumps(nodes))
    hold.never_again()
    hold.go()
    hold.close()
    ran = finish(command)
    assert ran.code == 0, ran.text
    assert re.search(r" by bob since \S+: disk swap", ran.text)
    assert json.loads(path.read_text())["n0"]["state"] == "drained"
    assert not [write for write in bed.writes if write.startswith(("UNDRAIN", "Reason"))]


def test_a_second_controller_is_refused_as_long_as_the_first_is_at_work(bed: SlurmBed) -> None:
    bed.reset()
    machine = bed.machines[0]
    machine.stop_at("1")
    hold = bed.hold(machine)
    first = bed.start("-l", "n0")
    assert hold.wait(60.0)
    writes = bed.writes
    second = bed.run("-l", "n1")
    assert second.code == 8, second.text
    assert "changes nodes of Slurm at" in second.text, (
        "n1 is nobody's, but the cluster is the first's"
    )
    assert bed.writes == writes
    hold.never_again()
    hold.go()
    hold.close()
    assert finish(first).code == 0
    third = bed.run()
    assert third.code == 0, third.text
    assert bed.slurm_wrong() == []
