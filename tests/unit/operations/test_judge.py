"""Operations of pyinfra's own: from the same facts gpustate plans what pyinfra's dry run says, in one exec."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyinfracases import CASES, Case, filled
from pyinfrajudge import ours, verdict


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.id)
def test_the_plan_is_what_pyinfra_itself_would_do_and_takes_one_exec(
    one: Case, tmp_path: Path
) -> None:
    one.prepare(tmp_path)
    arguments = filled(one.arguments, tmp_path)
    wanted = verdict(one.operation, arguments, one.answers)
    planned, told, execs = ours(one.operation, arguments, one.answers)
    assert told == wanted
    assert bool(planned.commands) == one.drifted
    assert execs <= one.execs


def test_there_are_at_least_twenty_operations_that_hold_and_twenty_that_do_not() -> None:
    assert len({one.operation for one in CASES if not one.drifted}) >= 20
    assert len({one.operation for one in CASES if one.drifted}) >= 20


def test_what_one_node_taught_the_next_one_is_asked_at_once(tmp_path: Path) -> None:
    """On the first node a fact comes up because of another's answer; on the second it is known to."""
    arguments = {"folder": str(tmp_path), "name_file": f"{tmp_path}/name"}
    (tmp_path / "name").write_text("x\n")
    first = ours("pyinfradeploys.follows", arguments, {})
    second = ours("pyinfradeploys.follows", arguments, {})
    assert (first[1], first[2]) == ([f"touch {tmp_path}/x"], 2)
    assert (second[1], second[2]) == ([f"touch {tmp_path}/x"], 1)
