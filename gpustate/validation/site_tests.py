"""A site's own testinfra tests, on the same nodes and over the same connections.

They run in their own process, so that a test that hangs, exits or changes the interpreter does no harm. The
process is killed if a test takes too long, and the remaining tests are reported as not run.

Sources:
    testinfra documentation: the fixture ``host``, ``testinfra_hosts``; pytest documentation, exit codes.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

from gpustate.core.inventory import Inventory
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.errors import GpustateError, UsageError
from gpustate.formats.words import cut, listed

PASSED, FAILED, SKIPPED, ERROR, NOT_RUN = "passed", "failed", "skipped", "error", "not run"

#: Name among a node's states for its failed tests.
STATE = "site-tests"
#: Seconds after its limit until a test is killed with its process.
_GRACE_S = 10.0
_LONGEST = 500


@dataclass(slots=True)
class SiteTest:
    """Result of one test on one node; ``node`` is empty for a test without the fixture ``host``."""

    test: str
    node: str = ""
    outcome: str = NOT_RUN
    evidence: str = ""
    duration_s: float = 0.0

    @property
    def bad(self) -> bool:
        """The test did not pass."""
        return self.outcome in (FAILED, ERROR, NOT_RUN)

    def data(self) -> dict[str, Any]:
        """The test for documents."""
        return {
            "test": self.test,
            "node": self.node,
            "outcome": self.outcome,
            "evidence": self.evidence,
            "duration_s": round(self.duration_s, 3),
        }


def add(result: NodeResult, tests: Sequence[SiteTest]) -> None:
    """Mark a node as failed because of its tests; the validator's result is kept."""
    bad = [test for test in tests if test.node == result.name and test.bad]
    if not bad:
        return
    words = listed([f"{test.test} {test.outcome}" for test in bad], 1)
    reason = f"tests of this site: {words}"
    result.states.append(StateResult(STATE, Outcome.FAILED, reason=reason, validating=True))
    if result.status is NodeStatus.OK:
        result.status, result.reason = NodeStatus.FAILED, f"{STATE}: {reason}"


@dataclass(slots=True)
class _Run:
    """Results that the process has reported so far."""

    tests: dict[str, SiteTest] = field(default_factory=dict[str, SiteTest])
    running: str = ""
    since: float = 0.0
    ended: bool = False

    def take(self, line: bytes) -> None:
        """Add one line."""
        event = json.loads(line)
        kind, name = event["e"], event.get("id", "")
        if kind == "collected":
            self.tests[name] = SiteTest(event["test"], event["node"])
        elif kind == "start":
            self.running, self.since = name, time.monotonic()
        elif kind == "result":
            test = self.tests.setdefault(name, SiteTest(event["test"], event["node"]))
            # A test that passed and whose cleanup failed has failed, not the reverse.
            if test.outcome == NOT_RUN or event["outcome"] in (FAILED, ERROR):
                test.outcome, test.evidence = event["outcome"], cut(event["evidence"], _LONGEST)
            test.duration_s += event["duration_s"]
        elif kind == "finish":
            self.running = ""
        elif kind == "end":
            self.ended = True


def check(folder: str) -> Path:
    """Check before any node is reached that the tests can run.

    Raises:
        UsageError: no such folder, no tests in it, a test that is no Python, or nothing to run it with.
    """
    path = Path(folder)
    place = f"--tests {folder}"
    if not path.exists():
        raise UsageError(
            "no such directory", place=place, fix="name the directory of your testinfra tests"
        )
    for module in ("pytest", "testinfra"):
        if util.find_spec(module) is None:
            raise UsageError(
                f"needs {module}, which is not installed",
                place=place,
                fix="install it: pip install 'gpustate[tests]'",
            )
    files = sorted(_files(path))
    if not files:
        raise UsageError(
            "the directory has no tests", place=place, fix="name their files test_*.py or *_test.py"
        )
    for file in files:
        _parse(file)
    return path


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for pattern in ("test_*.py", "*_test.py"):
        yield from path.rglob(pattern)


def _parse(file: Path) -> None:
    try:
        ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise UsageError(
            f"is not valid Python: {error.msg}",
            place=f"{file}:{error.lineno or 1}",
            fix="fix it, then run gpustate validate again",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"is not valid Python: {error}", place=str(file)) from None
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", place=str(file)) from error


def run(
    folder: Path, inventory: Inventory, *, limit_s: float, stop: Callable[[], bool] = lambda: False
) -> list[SiteTest]:
    """Run the tests of a folder on every node of an inventory.

    Args:
        folder: checked by :func:`check`.
        inventory: where, and how each node is reached.
        limit_s: how long one test may take.
        stop: asked between tests.

    Raises:
        GpustateError: the tests could not be begun.
    """
    request = pickle.dumps(
        (str(folder.resolve()), tuple(inventory.nodes), dict(inventory.groups), limit_s)
    )
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpustate.validation.site_tests_process", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    finally:
        os.close(write_end)
    observed = _Run()
    with process, os.fdopen(read_end, "rb", buffering=0) as pipe:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(request)
            process.stdin.close()
            hung = _listen(pipe, observed, limit_s + _GRACE_S, stop)
        except OSError as error:
            raise GpustateError(f"the tests could not be started ({error.strerror})") from error
        finally:
            if not observed.ended:
                process.kill()
        output = process.stderr.read().decode("utf-8", "replace").strip()
    return _results(observed, hung, limit_s, output, str(folder))


def _listen(pipe: Any, observed: _Run, limit_s: float, stop: Callable[[], bool]) -> bool:
    """Collect results until the process ends; return whether it was killed because of a test."""
    partial_line = b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while not stop():
            if ready.select(0.2):
                data = pipe.read(65536)
                if not data:
                    return False
                *lines, partial_line = (partial_line + data).split(b"\n")
                for line in lines:
                    observed.take(line)
            elif observed.running and time.monotonic() - observed.since > limit_s:
                return True
    return False


def _results(
    observed: _Run, hung: bool, limit_s: float, output: str, folder: str
) -> list[SiteTest]:
    if observed.running and not observed.ended:
        test = observed.tests[observed.running]
        test.outcome = ERROR
        test.evidence = (
            f"it did not finish within {limit_s:g} s and was killed with its process"
            if hung
            else f"the test process exited during it: {output.splitlines()[-1] if output else 'no output'}"
        )
    for test in observed.tests.values():
        if test.outcome == NOT_RUN:
            test.evidence = "the tests were stopped before it"
    if not observed.tests:
        last = output.splitlines()[-1] if output else "no output"
        raise GpustateError(
            "no test was collected" if observed.ended else f"the test process exited: {last}",
            fix=f"list the tests: pytest --collect-only {folder}",
        )
    return list(observed.tests.values())
