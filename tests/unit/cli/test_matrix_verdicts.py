"""What the matrix says of sets of facts that its sources decide."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpustate import compat
from gpustate.cli.matrix import known_facts

CASES = yaml.safe_load((Path(__file__).parents[2] / "data/matrix.yaml").read_text("utf-8"))


def ids(results: tuple[compat.Result, ...]) -> set[str]:
    return {result.rule.id for result in results}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["set"])
def test_facts_have_the_verdicts_of_their_sources(case: dict[str, str | list[str]]) -> None:
    report = compat.check(known_facts(tuple(str(case["set"]).split())))
    assert ids(report.blocks) == set(case.get("block", ()))
    assert ids(report.warnings) == set(case.get("warn", ()))
    assert ids(report.informs) >= set(case.get("inform", ()))
