"""What every state went through on real nodes, counted from what ``gpustate`` said there.

Tests on nodes run the command line through :func:`commands.gpustate`; each document it answers with is
read here, and per state the parts of its cycle are noted: it was applied, a second apply found nothing
to do, what damaged it was seen, the next apply fixed it, it was removed. That a removal restores the
start is asserted by the test itself. A run of the whole suite fails where a registered state has a part
missing and no reason for that in ``PARTLESS`` of its tests (see :mod:`declarations`).

A change counts as fixed damage only where the same policy had been applied to the same disk before and
nothing was left to do: then it is the node that moved.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import declarations
import pytest
import yaml

APPLIED, SETTLED, DAMAGED, MENDED, REMOVED = PARTS = (
    "applied",
    "applied again with nothing to do",
    "seen damaged",
    "fixed",
    "removed",
)
BLOCKED = "blocked: needs a console"


@dataclass
class Cycles:
    """The parts that were seen, by state."""

    seen: dict[str, set[str]] = field(default_factory=dict)
    _settled: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def note(self, verb: str, policy: str, disk: str, node: str, state: str, outcome: str) -> None:
        """Note one state's outcome.

        Args:
            verb: of the command line.
            policy: its text; another text is another wish.
            disk: names the lab and the disk that the node has now.
            node: name of the node.
            state: name of the state.
            outcome: as the document has it.
        """
        parts = self.seen.setdefault(state, set())
        key = (disk, node, state)
        before = self._settled.get(key) == policy
        if verb == "drift":
            if outcome == "would change" and before:
                parts.add(DAMAGED)
            return
        self._settled.pop(key, None)
        done = ("changed", BLOCKED)  # all that can be done without a person
        if verb == "remove":
            parts |= {REMOVED} if outcome in done else set()
        elif outcome == BLOCKED:
            parts.add(APPLIED)
        elif outcome in ("changed", "unchanged"):
            self._settled[key] = policy
            if outcome == "unchanged":
                parts |= {SETTLED} if before else set()
            else:
                parts |= {DAMAGED, MENDED} if before else {APPLIED}

    def missing(self, states: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Parts without a reason to be missing, by state."""
        partless = declarations.collected("PARTLESS")
        rows = {
            state: tuple(
                part
                for part in PARTS
                if part not in self.seen.get(state, ())
                and part not in partless.get(state, ((),))[0]
            )
            for state in sorted(states)
        }
        return {state: parts for state, parts in rows.items() if parts}


CYCLES = Cycles()
#: The same of nodes that answer as Ubuntu; all parts are seen with ``--proof``.
ON_UBUNTU = Cycles()


def heard(words: Iterable[object], out: str) -> None:
    """Read one command line of a test and what it printed; anything but JSON of a run is let be."""
    said = [str(word) for word in words]
    if said[0] not in ("apply", "drift", "remove") or "-i" not in said:
        return
    if not out.startswith("{"):
        return
    inventory = Path(said[said.index("-i") + 1])
    try:
        policy = hashlib.sha256(Path(said[1]).read_bytes()).hexdigest()
    except OSError:
        return
    for node in json.loads(out).get("nodes", ()):
        filled = inventory.parent / "nodes" / node["name"] / "filled"
        if filled.exists():
            disk = f"{inventory} {filled.stat().st_mtime_ns}"
            for row in node.get("states", ()):
                note = (said[0], policy, disk, node["name"], row["state"], row["outcome"])
                CYCLES.note(*note)
                if is_ubuntu(inventory, node["name"]):
                    ON_UBUNTU.note(*note)


@functools.cache
def is_ubuntu(inventory: Path, name: str) -> bool:
    """The node has an image of Ubuntu."""
    groups = yaml.safe_load(inventory.read_text("utf-8"))["all"]["children"]
    return any(group.startswith("ubuntu") and name in groups[group]["hosts"] for group in groups)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands over what it saw; the whole suite must have seen everything."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["cycles"] = [
            {state: sorted(parts) for state, parts in cycles.seen.items()}
            for cycles in (CYCLES, ON_UBUNTU)
        ]
    elif _whole(session.config) and _missing() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process saw."""
    output = getattr(node, "workeroutput", {}).get("cycles", ({}, {}))
    for cycles, seen in zip((CYCLES, ON_UBUNTU), output, strict=True):
        for state, parts in seen.items():
            cycles.seen.setdefault(state, set()).update(parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many states went through their whole cycle on nodes, and what is missing of the others."""
    if not CYCLES.seen:
        return
    missing = CYCLES.missing(CYCLES.seen)
    terminalreporter.section("states on nodes")
    whole = len(CYCLES.seen) - len(missing)
    terminalreporter.line(f"{whole} of {len(CYCLES.seen)} states: {', '.join(PARTS)}")
    for state, parts in (_missing() if _whole(terminalreporter.config) else missing).items():
        terminalreporter.line(f"{state}: not seen: {', '.join(parts)}")
    if not ON_UBUNTU.seen:
        return
    missing = ON_UBUNTU.missing(ON_UBUNTU.seen)
    whole = len(ON_UBUNTU.seen) - len(missing)
    terminalreporter.line(f"on Ubuntu: {whole} of {len(ON_UBUNTU.seen)} states")
    for state, parts in missing.items() if terminalreporter.config.option.proof else ():
        terminalreporter.line(f"on Ubuntu: {state}: not seen: {', '.join(parts)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """What alone makes a run fail is its last word."""
    if not hasattr(config, "workerinput") and _whole(config) and (missing := _missing()):
        for state, parts in missing.items():
            print(f"failed: no test on a node has {state} {', '.join(parts)}")


def _whole(config: pytest.Config) -> bool:
    """No test was picked out, and there are nodes here."""
    picked = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False)
    everything = config.args_source is not pytest.Config.ArgsSource.ARGS
    return bool(CYCLES.seen) and everything and not picked


def _missing() -> dict[str, tuple[str, ...]]:
    from gpustate import registry

    return CYCLES.missing(registry.states())
