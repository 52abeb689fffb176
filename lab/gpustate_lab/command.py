"""Run programs on the controller with a timeout and a one-line error, and report the progress of long work."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpustate.errors import LabError

PROGRESS_EVERY_S = 10.0

_running: set[subprocess.Popen[str]] = set()


def search_path() -> str:
    """Return PATH with the sbin directories, which ``su`` omits."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def tail(text: str, lines: int = 4) -> str:
    """Return the last non-empty lines as one line."""
    nonempty = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(nonempty[-lines:]) or "no output"


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 60.0,
    check: bool = True,
    input_text: str | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` and wait; a timeout or interruption kills its process group.

    Args:
        argv: program and arguments, no shell.
        timeout_s: in seconds.
        check: raise a LabError on a non-zero exit status.
        input_text: standard input.
        env: replaces the environment.
        log: receives both output streams, which are then missing in the result.
    """
    sink = log.open("a") if log is not None else None
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
            stdout=sink or subprocess.PIPE,
            stderr=subprocess.STDOUT if sink else subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(env) if env is not None else {**os.environ, "PATH": search_path()},
            start_new_session=True,
        )
        _running.add(process)
        try:
            out, err = process.communicate(input_text, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end_group(process)
            raise LabError(f"{shlex.join(argv)} timed out after {timeout_s:.0f} s") from None
        except BaseException:
            _end_group(process)
            raise
        finally:
            _running.discard(process)
    except OSError as error:
        raise LabError(f"cannot run {argv[0]}: {error.strerror}") from error
    finally:
        if sink is not None:
            sink.close()
    result = subprocess.CompletedProcess(list(argv), process.returncode, out or "", err or "")
    if check and result.returncode != 0:
        output = (
            log.read_text(errors="replace") if log is not None else result.stderr or result.stdout
        )
        raise LabError(
            f"{shlex.join(argv)} exited with {result.returncode}: {tail(output)}",
            fix=f"read {log}" if log is not None else None,
        )
    return result


@contextmanager
def progress(
    name: str, work: str, say: Callable[[str], None], status: Callable[[], str]
) -> Iterator[None]:
    """Report work when it begins, every few seconds while it lasts, and when it succeeds.

    Args:
        name: begins each line.
        work: what is done, as ``building etcd``.
        say: called with each line.
        status: returns what is being waited for.
    """
    began = time.monotonic()
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(PROGRESS_EVERY_S):
            say(f"{name}: {status()} ({time.monotonic() - began:.0f} s)")

    say(f"{name}: {work}")
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    say(f"{name}: built in {time.monotonic() - began:.0f} s")


def end_running() -> None:
    """Kill all programs that other threads are waiting for."""
    for process in list(_running):
        _kill_group(process)


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _end_group(process: subprocess.Popen[str]) -> None:
    _kill_group(process)
    process.communicate()
