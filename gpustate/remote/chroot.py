"""Sessions in the root of an image, for ``gpustate image bake`` and ``@chroot`` inventories.

Probes and node programs are those of a machine; each command runs in its own namespaces (see
:mod:`gpustate.remote.chroot_enter`). pyinfra's ``@chroot`` is not used: it copies files through the
builder's paths, so that an absolute link in the image leads to the builder's own files.

Unlike on a node, programs end with the controller: nothing keeps running when a bake is killed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpustate.core.inventory import InventoryNode
from gpustate.errors import ConnectionFailed, LockHeld, UsageError
from gpustate.ops.program import Entry, Program
from gpustate.remote.channel import Channel, LocalChannel
from gpustate.remote.nodeprogram import LockInfo
from gpustate.remote.session import Session

_ENTER = Path(__file__).with_name("chroot_enter.py")
#: Seconds that removing placeholder files may take at the end of a command.
_CLEANUP_S = 20.0


def argv(root: str, command: str, *, gpus: str = "", guarded: bool = False) -> list[str]:
    """Return the arguments that run a sh command inside a root.

    Args:
        root: the directory.
        command: for ``sh -c``.
        gpus: the GPUs of the machines to come, as ``8xH100``.
        guarded: for package installation: services are not started, and DNS works.
    """
    flags = ["--guarded"] * guarded + [f"--gpus={gpus}"] * bool(gpus)
    return [sys.executable, "-I", "-S", "-B", str(_ENTER), *flags, root, command]


class _ImageChannel(LocalChannel):
    """A channel whose ``close`` waits for the command, so that nothing is left in the image."""

    def close(self) -> None:
        self.close_stdin()
        try:
            self._process.wait(timeout=_CLEANUP_S)
        except subprocess.TimeoutExpired:
            pass
        super().close()


class ImageSession(Session):
    """A session in an image.

    Args:
        node: name, variables and state folder; its connection is not used.
        root: the directory.
        gpus: the GPUs of the machines to come; empty if unknown.
    """

    def __init__(self, node: InventoryNode, root: str, gpus: str = "") -> None:
        super().__init__(node)
        self._root = root
        self._gpus = gpus
        self._guarded = False

    def connect(self) -> None:
        """Do nothing: an image needs no connection."""

    def close(self) -> None:
        """Do nothing: every command ended with its channel."""

    def _open(self, inner: str) -> Channel:
        self.execs += 1
        self._prompt = ""
        return _ImageChannel(argv(self._root, inner, gpus=self._gpus, guarded=self._guarded))

    def run_program(
        self, run: str, program: Program, lock: LockInfo, **options: Any
    ) -> Iterator[Entry]:
        """Run a program as on a node, without starting services."""
        self._guarded = True
        try:
            yield from super().run_program(run, program, lock, **options)
        finally:
            self._guarded = False


class ChrootSession(ImageSession):
    """An image of an inventory, locked from ``connect`` to ``close``.

    Args:
        node: its connection has the directory.
    """

    def __init__(self, node: InventoryNode) -> None:
        super().__init__(node, node.connection.host or "/")
        self._lock = ExitStack()
        self._locked = False

    def connect(self) -> None:
        """Check and lock the image; raise ``ConnectionFailed``."""
        if self._locked:
            return
        try:
            self._lock.enter_context(lock_root(self._root))
        except UsageError as error:
            raise ConnectionFailed(f"{self._root}: {error.message}", fix=error.fix) from error
        self._locked = True

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()
        self._locked = False


@contextmanager
def lock_root(root: str) -> Iterator[None]:
    """Check that a directory is a root that can be baked, and lock it against other bakes.

    Nothing is written for the lock; the kernel releases it with this process.

    Raises:
        UsageError: not a root, or one of another architecture, or this process is not root.
        LockHeld: another bake holds the lock.
    """
    if os.geteuid() != 0:
        raise UsageError("baking an image requires root", fix="run the command with sudo")
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"cannot open the directory ({error.strerror})", place=root) from error
    try:
        if os.path.samestat(os.fstat(folder), os.stat("/")):
            raise UsageError(
                "this is the root of the running system, not of an image",
                place=root,
                fix="use `gpustate apply` with a node of ansible_connection: local",
            )
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld("another bake is running in this root", place=root) from None
        if pid := _process_in(folder):
            raise UsageError(
                f"a machine or program is running in it (process {pid})",
                place=root,
                fix="stop it first, or use `gpustate apply` over SSH",
            )
        _check_root(root)
        yield
    finally:
        os.close(folder)


def _process_in(folder: int) -> str:
    """Return a process that has the directory as its root; empty without one."""
    root_stat = os.fstat(folder)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.samestat(root_stat, os.stat(f"/proc/{pid}/root")):
                return pid
        except OSError:  # the process ended
            continue
    return ""


def _check_root(root: str) -> None:
    completed = subprocess.run(
        argv(root, "[ -r /etc/os-release ] || [ -r /usr/lib/os-release ] || exit 66"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode == 66:
        raise UsageError(
            "no operating system: /etc/os-release is missing",
            place=root,
            fix="install one with debootstrap, or mount the image's root file system",
        )
    if completed.returncode != 0:
        lines = completed.stderr.strip().splitlines()
        why = lines[-1].removeprefix("gpustate-bake: ") if lines else f"exit {completed.returncode}"
        raise UsageError(why, place=root)
