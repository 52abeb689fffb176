"""Programs that what a state writes refers to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate.model.asks import Answer
from gpustate.model.programs import AskMissing, lacking


def test_what_is_not_there_or_nobody_may_execute_is_missing(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / name) for name in ("a b", "c", "d"))
    for path, mode in ((paths[0], 0o755), (paths[1], 0o644)):
        Path(path).touch(mode)
    ask = AskMissing(paths)
    done = subprocess.run(["sh", "-c", ask.script()], capture_output=True, check=True)
    assert ask.parse(Answer(0, done.stdout)) == {paths[1], paths[2]}


def test_the_next_move_is_the_state_that_brings_it_or_the_right_name() -> None:
    uses = {"/usr/bin/a": "alpha", "/opt/b": ""}
    assert lacking(uses, (), ()) is None
    assert lacking(uses, ("/usr/bin/a",), ("alpha",)) is None
    assert (
        lacking(uses, ("/usr/bin/a",), ()) == "/usr/bin/a is not there: put alpha into the policy"
    )
    assert lacking(uses, ("/opt/b",), ("alpha",)) == (
        "/opt/b is not there: install it, or name the right one"
    )
