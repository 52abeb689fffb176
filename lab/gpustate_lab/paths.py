"""The folders of labs and caches, and locks on them.

``GPUSTATE_LAB_DIR`` and ``GPUSTATE_LAB_CACHE`` override the folders. The process that releases a lock removes
its file. A process that was waiting then holds a lock on a removed file: it compares the file it opened with the
one at the path, and tries again. So two processes never lock two different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpustate.errors import LabError

STATE_VARIABLE = "GPUSTATE_LAB_DIR"
CACHE_VARIABLE = "GPUSTATE_LAB_CACHE"
#: Of all labs of a machine, whatever their state folder.
SUBNET_LOCK = Path("/run/lock/gpustate-lab.subnet")


def state_dir() -> Path:
    return Path(os.environ.get(STATE_VARIABLE) or "/var/lib/gpustate-lab")


def cache_dir() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or "/var/cache/gpustate-lab")


def repository_dir() -> Path:
    """Return the folder of the simulated packages, which every lab's server publishes."""
    return cache_dir() / "repository"


#: Seconds that a wait for a lock goes unmentioned.
_SILENT_S = 3.0


@contextmanager
def locked(path: Path, *, wait_s: float, what: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel releases it when the process dies.

    The file is removed with the lock. A killed process leaves an empty file, which the next one locks.
    """
    began = time.monotonic()
    deadline, told = began + wait_s, False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another process has locked {what} for {wait_s:.0f} s",
                        place=str(path),
                        fix="wait until it ends, or stop it",
                    ) from None
                if not told and time.monotonic() > began + _SILENT_S:
                    print(f"waiting for another process that has locked {what}", file=sys.stderr)
                    told = True
                time.sleep(0.2)
                continue
            if not _leads_to(path, handle.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _leads_to(path: Path, descriptor: int) -> bool:
    """Whether a path still refers to the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(temporary, mode)
    os.replace(temporary, path)
