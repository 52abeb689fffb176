"""Programs that what a state writes refers to."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from filestates import file_state

from gpustate.core.queries import Answer
from gpustate.probes.required_programs import (
    MissingProgramsQuery,
    ReferringFilesQuery,
    missing_program,
    still_referenced,
)


def test_what_is_not_there_or_nobody_may_execute_is_missing(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / name) for name in ("a b", "c", "d"))
    for path, mode in ((paths[0], 0o755), (paths[1], 0o644)):
        Path(path).touch(mode)
    query = MissingProgramsQuery(paths)
    done = subprocess.run(["sh", "-c", query.script()], capture_output=True, check=True)
    assert query.parse(Answer(0, done.stdout)) == {paths[1], paths[2]}


def policy(*present: str, absent: tuple[str, ...] = ()) -> dict[str, Any]:
    states = {name: file_state(name)() for name in present}
    return states | {name: file_state(name)(ensure="absent") for name in absent}


def test_the_fix_is_the_state_that_installs_it_or_the_right_name() -> None:
    def reasons(path: str, provider: str, missing: tuple[str, ...], *names: str) -> list[str]:
        found = missing_program(path, provider, missing, policy(*names), with_changes=True)
        return [one.reason for one in found]

    a, b = ("/usr/bin/a", "alpha"), ("/opt/b", "")
    assert reasons(*a, ()) == []
    assert reasons(*a, ("/usr/bin/a",), "alpha") == []
    assert reasons(*a, ("/usr/bin/a",)) == ["/usr/bin/a does not exist: add alpha to the policy"]
    assert reasons(*b, ("/opt/b",), "alpha") == [
        "/opt/b does not exist: install it, or name the right one"
    ]


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
    def reasons(referring: dict[str, str], *absent: str) -> list[str]:
        found = still_referenced(referring, "gamma", policy("beta", absent=absent))
        return [one.reason for one in found]

    referring = {"/etc/a": "alpha", "/etc/b": "beta"}
    assert reasons({}) == []
    assert reasons(referring, "alpha", "beta") == []
    assert reasons(referring, "alpha") == [
        "/etc/b still names programs of gamma: remove beta together with it, or before it"
    ]
