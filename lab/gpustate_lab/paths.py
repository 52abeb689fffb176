"""Where labs and their caches lie, and locks on those folders.

``GPUSTATE_LAB_DIR`` and ``GPUSTATE_LAB_CACHE`` move them. A lock file is removed by the process that
releases it. A process that was waiting for it then holds a lock on a removed file: it compares the file
that it opened with the one at the path, and tries again. So no two processes hold "the" lock on two
different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpustate.errors import LabError

STATE_VARIABLE = "GPUSTATE_LAB_DIR"
CACHE_VARIABLE = "GPUSTATE_LAB_CACHE"


def state_dir() -> Path:
    return Path(os.environ.get(STATE_VARIABLE) or "/var/lib/gpustate-lab")


def cache_dir() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or "/var/cache/gpustate-lab")


def repository_dir() -> Path:
    """The simulated packages, which every lab's server gives out."""
    return cache_dir() / "repository"


@contextmanager
def locked(path: Path, *, wait_s: float, what: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel releases it when the process dies.

    The file is removed with the lock. A process that is killed leaves it, empty, to the next one.
    """
    deadline = time.monotonic() + wait_s
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another process has been at work on {what} for {wait_s:.0f} s",
                        place=str(path),
                        fix="wait for it, or end it",
                    ) from None
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
    """Whether a path still leads to the file that was opened by it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace ``path`` as a whole, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(temporary, mode)
    os.replace(temporary, path)
