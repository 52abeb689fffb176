"""Who holds a lock on a file is named by real locks of a real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpustate.ops.filelocks import FILE_LOCKS

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX if sys.argv[2] == "WRITE" else fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path, kind: str) -> Iterator[int]:
    """A process that holds a lock of that kind; its id."""
    argv = [sys.executable, "-c", HOLD, str(path), kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        yield held.pid
        held.communicate()


def query(kind: str, *paths: Path) -> tuple[int, str]:
    words = ["sh", "-c", f'{FILE_LOCKS}\nfile_lock_holder "$@"', "sh", kind, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("held", "wanted", "found"),
    [("WRITE", "", True), ("READ", "", True), ("WRITE", "WRITE", True), ("READ", "WRITE", False)],
)
def test_the_process_that_holds_a_lock_is_named(
    tmp_path: Path, held: str, wanted: str, found: bool
) -> None:
    free, locked = tmp_path / "free", tmp_path / "locked"
    for path in (free, locked):
        path.touch()
    with holder(locked, held) as pid:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        status, said = query(wanted, tmp_path / "missing", free, locked)
        assert (status, said) == ((0, f"{name} (process {pid})\n") if found else (1, ""))
    assert query(wanted, free, locked) == (1, "")
