"""What the matrix says of sets of facts that its sources decide."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpustate import compat
from gpustate.cli.matrix import known_facts

DATA = Path(__file__).parents[2] / "data"
CASES = yaml.load((DATA / "matrix.yaml").read_text("utf-8"), yaml.CSafeLoader)
MACHINES = yaml.load((DATA / "machines.yaml").read_text("utf-8"), yaml.CSafeLoader)["machines"]


def ids(results: tuple[compat.Result, ...]) -> set[str]:
    return {result.rule.id for result in results}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["set"])
def test_facts_have_the_verdicts_of_their_sources(case: dict[str, str | list[str]]) -> None:
    report = compat.check(known_facts(tuple(str(case["set"]).split())))
    assert ids(report.blocks) == set(case.get("block", ()))
    assert ids(report.warnings) == set(case.get("warn", ()))
    assert ids(report.informs) >= set(case.get("inform", ()))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine["name"])
def test_an_ordinary_machine_works_as_its_source_says(machine: dict[str, str | bool]) -> None:
    report = compat.check(known_facts(tuple(str(machine["set"]).split())))
    blocks = ids(report.blocks)
    if machine["works"]:
        assert not blocks
    else:
        assert machine["rule"] in blocks | ids(report.warnings)
        assert blocks <= {machine["rule"]}, "nothing else is wrong with it"


def test_the_machines_are_sixty_and_of_all_kinds() -> None:
    assert len(MACHINES) >= 60
    assert sum(machine["works"] for machine in MACHINES) >= 30
    assert all(machine["source"] and (machine["works"] or machine["rule"]) for machine in MACHINES)
