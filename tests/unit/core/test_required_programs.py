"""Programs that what a state writes refers to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate.core.queries import Answer
from gpustate.core.required_programs import (
    MissingProgramsQuery,
    ReferringFilesQuery,
    lacking,
    relied_on,
)


def test_what_is_not_there_or_nobody_may_execute_is_missing(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / name) for name in ("a b", "c", "d"))
    for path, mode in ((paths[0], 0o755), (paths[1], 0o644)):
        Path(path).touch(mode)
    query = MissingProgramsQuery(paths)
    done = subprocess.run(["sh", "-c", query.script()], capture_output=True, check=True)
    assert query.parse(Answer(0, done.stdout)) == {paths[1], paths[2]}


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


def test_only_files_that_gpustate_changed_are_looked_into(tmp_path: Path) -> None:
    kept = tmp_path / "originals"
    kept.mkdir()
    for name, text in (
        ("a b", "x = '/usr/bin/ctk'"),
        ("c", "y"),
        ("d", "/usr/bin/ctk"),
        ("gone", ""),
    ):
        (tmp_path / name).write_text(text)
        if name != "d":
            (kept / f"{name[0]}.path").write_text(str(tmp_path / name))
    (tmp_path / "gone").unlink()
    query = ReferringFilesQuery(("/ctk", "it's"))
    done = subprocess.run(
        ["sh", "-c", query.script()], capture_output=True, check=True, env={"G": str(tmp_path)}
    )
    assert (query.parse(Answer(0, done.stdout)), done.stderr) == ((str(tmp_path / "a b"),), b"")


def test_what_a_file_names_stays_until_its_state_goes() -> None:
    referring = {"/etc/a": "alpha", "/etc/b": "beta"}
    assert relied_on({}, "gamma", ()) is None
    assert relied_on(referring, "gamma", ("alpha", "beta")) is None
    assert relied_on(referring, "gamma", ("alpha",)) == (
        "/etc/b still names programs of gamma: take beta away with it (both in one policy), or before it"
    )
