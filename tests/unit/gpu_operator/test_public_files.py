"""Operator files as people keep them: read as the Operator reads them, and accused of nothing wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpustate.gpu_operator.lint import lint
from gpustate.policies import operator

_DATA = Path(__file__).parents[2] / "data" / "lint" / "public-files.yaml"
CASES: list[dict[str, Any]] = yaml.load(_DATA.read_text("utf-8"), Loader=yaml.CSafeLoader)
#: What lint says of keys; the other rules have tests of their own.
_OF_KEYS = (
    *("unknown-key", "newer-key", "misnamed-key", "ignored-key", "deprecated-key"),
    *("wrong-type", "wrong-value", "kind", "refused", "companion"),
)


def test_there_are_a_hundred_files_each_with_its_source() -> None:
    assert len(CASES) >= 100
    assert all(case["source"] for case in CASES)
    assert sum(not case["source"].startswith("NVIDIA/gpu-operator ") for case in CASES) >= 55


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["source"])
def test_a_file_that_the_operator_runs_is_not_refused_and_accused_of_what_is_so(
    case: dict[str, Any],
) -> None:
    release = case.get("release")
    policy = operator.read(case["file"], "f.yaml", release=release)
    assert policy.states
    found = lint(case["file"], "f.yaml", release=release).findings
    said = {f"{one.rule} {one.path}".strip() for one in found if one.rule in _OF_KEYS}
    assert sorted(said) == case.get("says", [])
