"""The process that runs a site's testinfra tests: pytest with a fixture ``host`` over gpustate's own sessions.

Told on standard input what to run; tells on a pipe, one JSON line an event, what became of it. testinfra's
own plugin is left out, for it would connect by itself; its host and its modules are the same.

Surprising: the limit of one test is an alarm that raises within it. A test that catches everything can
live on, which is why the process that started this one ends it some seconds later.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from testinfra.backend import base
from testinfra.host import Host

from gpustate import shell
from gpustate.core.inventory import InventoryNode
from gpustate.errors import GpustateError
from gpustate.remote.session import Session

#: The reader masks secrets and cuts the text further.
_LONGEST = 20_000
_RUN = """d=$(mktemp -d) || exit 97
sh -c @COMMAND@ >"$d/o" 2>"$d/e" </dev/null; r=$?
base64 -w0 "$d/o"; echo; base64 -w0 "$d/e"; echo; rm -rf "$d"; exit $r"""


class TooLong(Exception):
    """A test exceeded its limit."""


class Backend(base.BaseBackend):
    """Runs commands of tests over the session of the inventory, with its sudo settings."""

    NAME = "gpustate"

    def __init__(self, node: InventoryNode, limit_s: float) -> None:
        super().__init__(node.name)
        self.session = Session(node)
        self.limit_s = limit_s

    def run(self, command: str, *args: str, **kwargs: Any) -> base.CommandResult:
        """Run one command line of a test."""
        line = self.get_command(command, *args)
        script = shell.fill(_RUN, COMMAND=shlex.quote(line))
        answer = self.session.shell(script, timeout_s=self.limit_s)
        out, _, err = answer.text.partition("\n")
        return self.result(
            answer.status,
            line.encode(),
            base64.b64decode(out.strip()),
            base64.b64decode(err.strip()),
        )


class Plugin:
    """The fixture ``host`` for every node, and the results of tests."""

    def __init__(
        self,
        nodes: Sequence[InventoryNode],
        groups: Mapping[str, Sequence[str]],
        limit_s: float,
        pipe: Any,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.groups = groups
        self.limit_s = limit_s
        self.pipe = pipe
        self.hosts: dict[str, Host] = {}

    def send(self, event: str, **more: Any) -> None:
        """Send one line to the parent process."""
        line = json.dumps({"e": event, **more})
        self.pipe.write(line.encode() + b"\n")
        self.pipe.flush()

    @pytest.fixture(scope="module")
    def host(self, request: pytest.FixtureRequest) -> Host:
        """testinfra's host, over the inventory's own connection."""
        name = request.param
        if name not in self.hosts:
            self.hosts[name] = Host(Backend(self.nodes[name], self.limit_s))
        return self.hosts[name]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test with ``host`` runs once on each node, or on those its module names."""
        if "host" not in metafunc.fixturenames:
            return
        hosts = getattr(metafunc.module, "testinfra_hosts", None)
        names = (
            list(self.nodes)
            if hosts is None
            else self.named(hosts, getattr(metafunc.module, "__name__", "a module"))
        )
        metafunc.parametrize("host", names, ids=names, scope="module", indirect=True)

    def named(self, hosts: Any, module: str) -> list[str]:
        """Nodes in ``testinfra_hosts``: names and groups, with or without a connection prefix."""
        matches: dict[str, None] = {}
        for entry in [hosts] if isinstance(hosts, str) else list(hosts):
            name = str(entry).rpartition("://")[2].rpartition("@")[2].partition("?")[0]
            inside = list(self.nodes) if name == "all" else self.groups.get(name, ())
            if name not in self.nodes and name != "all" and name not in self.groups:
                raise pytest.UsageError(
                    f"{module}: testinfra_hosts names {entry!r}, which is not in the inventory"
                )
            matches.update(dict.fromkeys([name] if name in self.nodes else inside))
        return [name for name in matches if name in self.nodes]

    # --- results -----------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Report every test before the first one runs."""
        for item in session.items:
            self.send("collected", id=item.nodeid, **_place(item.nodeid, _node(item)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a file that cannot be imported as a failed test."""
        if report.failed:
            place = _place(report.nodeid or "collection", "")
            self.send(
                "result",
                id=report.nodeid,
                outcome="error",
                evidence=_last(report),
                duration_s=0.0,
                **place,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Run one test with its fixtures, within the limit."""
        self.send("start", id=item.nodeid)

        def ring(number: int, frame: object) -> None:
            raise TooLong(f"it did not finish within {self.limit_s:g} s")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.send("finish", id=item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report the result of one phase of a test."""
        if report.passed and report.when != "call":
            return
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        node = dict(report.user_properties).get("gpustate-node", "")
        self.send(
            "result",
            id=report.nodeid,
            outcome=outcome,
            evidence="" if report.passed else _last(report),
            duration_s=report.duration,
            **_place(report.nodeid, str(node)),
        )

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note the node, for the report."""
        item.user_properties.append(("gpustate-node", _node(item)))


def _node(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return str(call.params.get("host", "")) if call is not None else ""


def _place(nodeid: str, node: str) -> dict[str, str]:
    """A test's name without the node that pytest puts into it."""
    test = nodeid
    for text, new in ((f"[{node}]", ""), (f"[{node}-", "["), (f"-{node}]", "]")):
        test = test.replace(text, new) if node else test
    return {"test": test, "node": node}


def _last(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Place of the failure, actual and expected value, on one line."""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    # After the first line pytest writes the values of the assertion.
    reported = (lines if crash is not None else errors[:1] or lines[:1]) or ["no output"]
    message = " ".join(re.sub(r"^\+\s+(?=where |and )", "", line) for line in reported)
    for before in ("gpustate.errors.", "gpustate.validation.site_tests_process."):
        message = message.removeprefix(before)
    return f"{_line(report)}{message}"[:_LONGEST]


def _line(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The line in the test's own file, not in code that it called; empty if there is none."""
    file = report.nodeid.partition("::")[0].rpartition("/")[2]
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    places = [getattr(entry, "reprfileloc", None) for entry in entries]
    own_places = [at for at in places if at is not None and at.path.rpartition("/")[2] == file]
    return f"{file}:{own_places[-1].lineno}: " if own_places and file else ""


def main() -> int:
    """Run the tests that standard input describes."""
    with os.fdopen(int(sys.argv[1]), "wb") as pipe:
        folder, nodes, groups, limit_s = pickle.load(sys.stdin.buffer)  # from our own parent
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        plugin = Plugin(nodes, groups, limit_s, pipe)
        words = [folder, "-q", "--tb=short", "--continue-on-collection-errors"]
        words += ["-p", "no:pytest11.testinfra", "-p", "no:cacheprovider"]
        # Names of tests are relative to it.
        words += ["--rootdir", folder if os.path.isdir(folder) else os.path.dirname(folder)]
        try:
            code = int(pytest.main(words, plugins=[plugin]))
        except GpustateError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        plugin.send("end", code=code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
