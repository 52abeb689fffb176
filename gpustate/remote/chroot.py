"""A node that is a folder: an image's root, reached by commands run inside it.

The same probes and the same node programs run there as on a machine, each command in namespaces of
its own (see :mod:`gpustate.remote.chroot_enter`). pyinfra's ``@chroot`` is not used: it copies files
through the builder's paths, so that an absolute link in the image leads to the builder's own files.

Unlike on a node, a program ends with the controller: nothing of a bake goes on when it is killed.
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
from gpustate.ops import Program
from gpustate.remote.channel import Channel, LocalChannel
from gpustate.remote.session import Session

_ENTER = Path(__file__).with_name("chroot_enter.py")
_EXIT_CANNOT_ENTER = 125
#: Seconds that taking the stand-ins away may need at the end of a command.
_LEAVE_S = 20.0


def argv(root: str, command: str, *, gpus: str = "", guarded: bool = False) -> list[str]:
    """How to run a sh command inside a root.

    Args:
        root: the folder.
        command: for ``sh -c``.
        gpus: those the image is for, as ``8xH100``.
        guarded: it installs packages: no service starts, and names can be resolved.
    """
    flags = ["--guarded"] * guarded + [f"--gpus={gpus}"] * bool(gpus)
    return [sys.executable, "-I", "-S", "-B", str(_ENTER), *flags, root, command]


class _ImageChannel(LocalChannel):
    """Waits for the end of its command, so that nothing is left in the image."""

    def close(self) -> None:
        self.close_stdin()
        try:
            self._process.wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            pass
        super().close()


class ImageSession(Session):
    """One image.

    Args:
        node: its name, variables and state folder; how to connect does not matter.
        root: the folder.
        gpus: those the image is for; empty when nobody said.
    """

    def __init__(self, node: InventoryNode, root: str, gpus: str = "") -> None:
        super().__init__(node)
        self._root = root
        self._gpus = gpus
        self._guarded = False

    def connect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """Every command has ended with its channel."""

    def _open(self, inner: str) -> Channel:
        self.execs += 1
        self._prompt = ""
        return _ImageChannel(argv(self._root, inner, gpus=self._gpus, guarded=self._guarded))

    def run_program(
        self, run: str, program: Program, lock: dict[str, Any], **options: Any
    ) -> Iterator[dict[str, Any]]:
        """As on a node, guarded: services stay off while packages are installed."""
        self._guarded = True
        try:
            yield from super().run_program(run, program, lock, **options)
        finally:
            self._guarded = False


class ChrootSession(ImageSession):
    """An image that an inventory names; it is held from connecting to closing.

    Args:
        node: its connection names the folder.
    """

    def __init__(self, node: InventoryNode) -> None:
        super().__init__(node, node.connection.host or "/")
        self._holding = ExitStack()
        self._held = False

    def connect(self) -> None:
        """Check that it is an image, and keep others out of it; raise ``ConnectionFailed``."""
        if self._held:
            return
        try:
            self._holding.enter_context(held(self._root))
        except UsageError as error:
            raise ConnectionFailed(f"{self._root}: {error.message}", fix=error.fix) from error
        self._held = True

    def close(self) -> None:
        """Let others in again."""
        self._holding.close()
        self._held = False


@contextmanager
def held(root: str) -> Iterator[None]:
    """Check that a folder is a root that can be baked, and keep other bakes out of it.

    Nothing is written for that: the kernel lets go of the lock with this process.

    Raises:
        UsageError: it is not a root, or not one of this machine's architecture; or we are not root.
        LockHeld: another bake is at work there.
    """
    if os.geteuid() != 0:
        raise UsageError("images are baked as root", fix="run it with sudo")
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"cannot be entered ({error.strerror})", place=root) from error
    try:
        if os.path.samestat(os.fstat(folder), os.stat("/")):
            raise UsageError(
                "this is the machine gpustate runs on, not an image",
                place=root,
                fix="use `gpustate apply` with a node of ansible_connection: local",
            )
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld("another bake is at work in this root", place=root) from None
        if pid := _lives_in(folder):
            raise UsageError(
                f"a machine or program runs in it (process {pid})",
                place=root,
                fix="switch it off first, or reach it over SSH with `gpustate apply`",
            )
        _try(root)
        yield
    finally:
        os.close(folder)


def _lives_in(folder: int) -> str:
    """A process that has the folder as its root; empty where there is none."""
    wanted = os.fstat(folder)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.samestat(wanted, os.stat(f"/proc/{pid}/root")):
                return pid
        except OSError:  # it has ended
            continue
    return ""


def _try(root: str) -> None:
    done = subprocess.run(
        argv(root, "[ -r /etc/os-release ] || [ -r /usr/lib/os-release ] || exit 66"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 66:
        raise UsageError(
            "it has no /etc/os-release: no system is installed in it",
            place=root,
            fix="debootstrap one there, or mount the image's root file system",
        )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        why = said[-1].removeprefix("gpustate-bake: ") if said else f"exit {done.returncode}"
        raise UsageError(why, place=root)
