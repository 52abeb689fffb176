"""Run ``gpustate`` many times and import it once.

Importing the program and its libraries takes a second of processor time, more than most commands need for
their work, and the tests on nodes run some thousand commands. So one process imports everything and forks
for each command; the child gets the caller's arguments, environment, folder and files, and runs the program's own
entry point. A command whose interpreter would start differently (``PYTHON...``, locale) is run as a
process of its own.

Run as a file it is the server: ``forkserver.py DESCRIPTOR`` takes requests from a socket until that is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

GPUSTATE = str(Path(sys.executable).with_name("gpustate"))
#: Rooms that commands on nodes import on the way.
_PACKAGES = (
    "cli",
    "states",
    "remote",
    "engine",
    "policies",
    "diagnosis",
    "inventory",
    "gpu_operator",
    "rollout",
    "schedulers",
    "cluster",
)
#: What the interpreter itself reads at its start.
_START = ("PYTHON", "LC_", "LANG")
_LARGEST = 1 << 20


def _start_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_START)}


# --- the caller's side ----------------------------------------------------------------------------


class ForkServer:
    """The server as its caller sees it; it ends with the caller."""

    def __init__(self) -> None:
        self._settings = _start_settings(os.environ)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it; commands that still run go on."""
        self._control.close()
        self._process.wait()

    def _ended(self) -> NoReturn:
        raise AssertionError(f"the fork server ended: {self._process.poll()}")

    def start(self, words: Sequence[str], prepare: str = "") -> Command:
        """Start ``gpustate``.

        Args:
            words: of the command line.
            prepare: a Python file that the new process runs before the program.
        """
        argv = [GPUSTATE, *words]
        request = {
            "argv": argv,
            "cwd": os.getcwd(),
            "environment": dict(os.environ),
            "prepare": prepare,
        }
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(ours)
            nothing = stack.enter_context(open(os.devnull, "rb"))
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            with theirs, self._lock:
                files = [theirs.fileno(), nothing.fileno(), out.fileno(), err.fileno()]
                socket.send_fds(self._control, [json.dumps(request).encode()], files)
            pid = int(ours.recv(64) or self._ended())
            nothing.close()
            return Command(argv, pid, ours, out, err, stack.pop_all())

    def run(self, words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run ``gpustate`` as :func:`subprocess.run` would.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        if _start_settings(os.environ) != self._settings:
            argv = [GPUSTATE, *words]
            return subprocess.run(
                argv, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
            )
        return self.start(words).wait(timeout_s)


@dataclass(slots=True)
class Command:
    """A command that was started.

    Args:
        argv: its words.
        pid: its process.
    """

    argv: list[str]
    pid: int
    _end: socket.socket
    _out: IO[str]
    _err: IO[str]
    _open: contextlib.ExitStack

    def kill(self) -> None:
        """End it with SIGKILL; it may have ended already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Whether it has ended."""
        return bool(select.select([self._end], [], [], 0)[0])

    def wait(self, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """How it ended.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        with self._open:
            ended = select.select([self._end], [], [], timeout_s)[0]
            if not ended:
                self.kill()
            for file in (self._out, self._err):
                file.seek(0)
            if not ended:
                error = subprocess.TimeoutExpired(self.argv, timeout_s)
                error.add_note(f"so far: {self._out.read()[-2000:]}\n{self._err.read()[-4000:]}")
                raise error
            code = int(self._end.recv(64) or -1)
            return subprocess.CompletedProcess(self.argv, code, self._out.read(), self._err.read())


_server: ForkServer | None = None
_starting = threading.Lock()


def run(words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run ``gpustate`` by this process's server, which is started by the first command."""
    return _running().run(words, timeout_s)


def start(words: Sequence[str], prepare: str = "") -> Command:
    """Start ``gpustate`` by the same server; see :meth:`ForkServer.start`."""
    return _running().start(words, prepare)


def _running() -> ForkServer:
    global _server
    with _starting:
        if _server is None:
            _server = ForkServer()
        return _server


# --- the server's side ----------------------------------------------------------------------------


def _preload() -> None:
    for name in _PACKAGES:
        package = importlib.import_module(f"gpustate.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("gpustate.compat.store").load()


def _command(request: dict[str, Any], files: list[int]) -> None:
    """Become the command; never returns."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["argv"]
    if request["prepare"]:
        runpy.run_path(request["prepare"])
    from gpustate.cli.main import entry

    entry()


def _answer(request: dict[str, Any], files: list[int]) -> None:
    """Run one command and report its process and how it ended."""
    result = socket.socket(fileno=files[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _command(request, files[1:])
    result.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        result.send(str(os.waitstatus_to_exitcode(status)).encode())


def serve(control: socket.socket) -> None:
    """Fork for each request until the caller has ended."""
    _preload()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, files, _, _ = socket.recv_fds(control, _LARGEST, 4)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            try:
                _answer(json.loads(data), files)
            finally:
                os._exit(1)
        for file in files:
            os.close(file)


if __name__ == "__main__":
    # As for the program itself: the folder of the script, not of this file.
    sys.path[0] = str(Path(GPUSTATE).parent)
    serve(socket.socket(fileno=int(sys.argv[1])))
