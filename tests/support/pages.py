"""Plans with any text in every place that nodes and policies fill, and a browser to look at pages with."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import shortpaths
from filestates import file_state

from gpustate import Disruption, Plan, Policy
from gpustate.core.change import Change
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.plan.document import plan_document

FIRST, SECOND = file_state("first"), file_state("second", needs=("first",))


def plan(text: str, names: tuple[str, ...] = ("gpu1", "gpu2", "gpu3")) -> dict[str, Any]:
    """A plan of four kinds of nodes that says ``text`` wherever somebody else's words can stand."""
    changes = (
        Change("text", f"{text}\n", f"a\n{text}\n", Disruption.RESTART, text, f"/etc/{text}"),
        Change("mapping", {text: text}, {text: None}, Disruption.REBOOT, condition=text),
        Change("items", [text], ["other"]),
        Change("value", None, text, label=f"{text} version"),
    )
    states = [
        StateResult("first", Outcome.PENDING, Plan(changes, (text,)), worst=Disruption.REBOOT),
        StateResult(
            "second",
            Outcome.KNOWN_AFTER,
            known_after=("first",),
            worst=Disruption.DRAIN,
            condition=text,
        ),
    ]
    failed = StateResult("first", Outcome.FAILED, reason=text, evidence=f"{text}\n{text}")
    nodes = [
        NodeResult(name, states=states, notes=[text], workloads=((f"{text}/{name}", text),))
        for name in names
    ]
    nodes += [
        NodeResult("bad1", NodeStatus.FAILED, text, [failed]),
        NodeResult("far1", NodeStatus.UNREACHABLE, text),
        NodeResult("fine1", states=[StateResult("first", Outcome.UNCHANGED)]),
    ]
    policy = Policy(FIRST(path="/etc/x"), SECOND(), name=text or "-", notes=(text,))
    return plan_document(policy, text, nodes, run="run-1", created="2026-11-21T07:55:00Z")


def browser() -> str:
    """Chromium's program; a test that needs it is skipped where it is not, naming the package."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed (Debian package chromium)")
    return found


class Page:
    """One page in a browser of its own, driven over a pipe with the DevTools protocol.

    Args:
        path: the page's file.
        profile: where the browser may keep its things.
    """

    def __init__(self, path: Path, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Above the numbers that the browser expects them at.
        high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 20) for one in (theirs_in, theirs_out)]
        words = [
            *(
                browser(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        actions: list[Any] = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, one, n) for n, one in enumerate(high, 3)]
        # Chromium has a socket in a temporary folder of its own.
        environment = {**os.environ, "TMPDIR": shortpaths.PARENT}
        self._pid = os.posix_spawn(words[0], words, environment, file_actions=actions)
        for one in (theirs_in, theirs_out, *high):
            os.close(one)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri())
        self._wait("Page.loadEventFired")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def run(self, script: str) -> Any:
        """What an expression comes to in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Look at it on paper (``print``), or on a dark screen."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def told(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser said by itself."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self) -> None:
        """End the browser."""
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        self._in.close()
        self._out.close()

    def _wait(self, method: str) -> None:
        while not self.told(method):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], 60)
            assert ready, "the browser has said nothing for a minute"
            more = os.read(self._in.fileno(), 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
