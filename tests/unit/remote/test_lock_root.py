"""Which folders are held for a bake."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpustate.errors import UsageError
from gpustate.remote import chroot

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root bakes, and changes its root")


@pytest.fixture
def inhabited(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chroot(tmp_path)
        os.write(tell, b".")
        signal.pause()
        os._exit(0)
    os.read(told, 1)
    os.close(told)
    os.close(tell)
    yield tmp_path, pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_root_that_something_runs_in_is_not_baked(inhabited: tuple[Path, int]) -> None:
    root, pid = inhabited
    with (
        pytest.raises(UsageError, match=f"a machine or program is running in it .process {pid}."),
        chroot.lock_root(str(root)),
    ):
        pass


def test_a_root_without_a_system_is_not_baked(tmp_path: Path) -> None:
    with pytest.raises(UsageError), chroot.lock_root(str(tmp_path)):
        pass
