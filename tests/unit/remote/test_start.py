"""Starting a program on a node: once, whoever asks how often, and not on what is no longer so."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filestates import here

from gpustate import ops
from gpustate.core.queries import Shell
from gpustate.errors import ProbeError, StepFailed
from gpustate.ops.program import Entry
from gpustate.remote import nodeprogram
from gpustate.remote.session import Session

EMPTY = gzip.compress(b"")


def lock(run: str) -> nodeprogram.LockInfo:
    since = int(time.time())
    return {
        "run": run,
        "holder": "me@here",
        "pid": 1,
        "reason": "apply",
        "since": since,
        "expires": since + 600,
    }


def start(folder: Path, run: str, after: str | None = None) -> list[Entry]:
    """Run a program that leaves a line in ``folder/count``."""
    steps = (ops.Run(f"echo {run} >>{folder}/count; sleep 0.2", "count"),)
    program = ops.compile_program((ops.Block("s", (), steps),))
    entries = Session(here(folder / "state")).run_program(
        f"{run}-1",
        program,
        lock(run),
        keep_lock=False,
        take_over=None,
        stop=lambda: False,
        after=after,
    )
    return list(entries)


def counted(folder: Path) -> list[str]:
    return (folder / "count").read_text().split()


def test_one_run_asked_for_by_several_at_once_is_done_once_and_told_to_all(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: start(tmp_path, "r"), range(4)))
    assert counted(tmp_path) == ["r"]
    assert all([entry["e"] for entry in entries][-1] == "end" for entries in told)
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"runs"}
    assert [path.name for path in (tmp_path / "state/runs").iterdir()] == ["r-1"]


def test_a_run_that_is_over_is_told_and_not_done_again(tmp_path: Path) -> None:
    first = start(tmp_path, "r", after="none")
    assert start(tmp_path, "r", after="none") == first
    assert counted(tmp_path) == ["r"]


def test_an_order_that_was_overtaken_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    start(tmp_path, "first", after="none")
    start(tmp_path, "second", after="first-1")
    for late in ("none", "first-1"):
        with pytest.raises(StepFailed, match="overtaken second-1"):
            start(tmp_path, "late", after=late)
    assert counted(tmp_path) == ["first", "second"]
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"runs"}
    assert {p.name for p in (tmp_path / "state/runs").iterdir()} == {"first-1", "second-1"}


def test_what_an_attempt_that_died_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "state/runs/dead-1.0123.new"
    left.mkdir(parents=True)
    (left / "program").write_text("half")
    start(tmp_path, "r")
    assert not left.exists()


def test_two_runs_at_once_are_told_the_lock_and_never_a_full_disk(tmp_path: Path) -> None:
    """The one that is faster clears away what the other has written so far."""
    script = nodeprogram.start_script(
        "late-1",
        here(tmp_path / "state"),
        "n-1",
        len(EMPTY),
        lock("late"),
        take_over=None,
        after=None,
    )
    runs = tmp_path / "state/runs"
    cleared = f"rm -rf {runs}/late-1.1.new"
    for place in ("rm -f $W/room", "new_lock=$W/lock\n"):
        assert place in script
        faster = script.replace(place, f"{cleared}; {taken(tmp_path)}; {place}", 1)
        told = subprocess.run(["sh", "-c", faster], input=EMPTY, capture_output=True, check=False)
        assert b"refused lock held" in told.stdout, told.stdout
        assert b"disk" not in told.stdout
        shutil.rmtree(tmp_path / "state/lock")


def test_an_attempt_that_was_cleared_away_by_a_run_that_is_over_was_overtaken(
    tmp_path: Path,
) -> None:
    script = nodeprogram.start_script(
        "late-1",
        here(tmp_path / "state"),
        "n-1",
        len(EMPTY),
        lock("late"),
        take_over=None,
        after=None,
    )
    runs = tmp_path / "state/runs"
    over = f"rm -rf {runs}/late-1.1.new; mkdir {runs}/first-1; rm -f $W/room"
    told = subprocess.run(
        ["sh", "-c", script.replace("rm -f $W/room", over, 1)],
        input=EMPTY,
        capture_output=True,
        check=False,
    )
    assert b"refused overtaken first-1" in told.stdout, told.stdout


def taken(folder: Path) -> str:
    """Sh: somebody else has the lock."""
    at = folder / "state/lock"
    return (
        f"mkdir {at}; echo other >{at}/run; echo '{{}}' >{at}/info; echo 99999999999 >{at}/expires"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="folders get another owner, which takes root")
@pytest.mark.parametrize("damage", ["owner", "mode", "above", "link"])
def test_a_state_folder_that_others_can_change_is_refused(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "above/state"
    folder.mkdir(parents=True)
    if damage == "owner":
        os.chown(folder, 65534, 65534)
    elif damage == "mode":
        folder.chmod(0o777)
    elif damage == "above":
        folder.parent.chmod(0o777)
    else:
        (tmp_path / "link").symlink_to(folder)
        os.lchown(tmp_path / "link", 65534, 65534)
        folder = tmp_path / "link"
    session = Session(here(folder))
    pattern = f"the state folder {folder} is not safe: other users may change"
    with pytest.raises(ProbeError, match=pattern):
        session.answer([Shell("echo x")])
    with pytest.raises(ProbeError, match=pattern):
        session.shell("echo x")
    with pytest.raises(StepFailed, match=pattern):
        list(
            session.run_program(
                "r-1",
                ops.compile_program(()),
                lock("r"),
                keep_lock=False,
                take_over=None,
                stop=lambda: False,
            )
        )


def test_a_link_to_a_state_folder_of_root_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")
    assert Session(here(tmp_path / "state")).answer([Shell("echo x")])[0].text == "x\n"
