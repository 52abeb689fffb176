"""Enumerated points: all of them with ``--proof``, otherwise one of each kind and a share.

A test that could be run at hundreds of points (every journal entry, every message) lists them all and asks for its
share. Without ``--proof`` that share is small, and the same in every run, so that a red run is red for everybody.
``GPUSTATE_SHARE=WORD`` draws another one. Which points were taken is printed at the end of the run.

What takes longer than a run of all tests may is marked ``long``: it runs when its file is asked for by name, and
with ``make proof``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

TAKEN: dict[str, str] = {}
#: Folders and files of tests that are handed out first. What waits for nodes leaves a processor to the type
#: checkers; at the end they would keep one process busy while the others have nothing left.
LONGEST_FIRST = {"proof": 0, "test_checks.py": 1, "node": 2}
#: Tests on Ubuntu's images (marked ``ubuntu``) that a run takes; with ``--proof`` all on the first image, and so
#: many on the others.
ON_UBUNTU, ON_OTHER_UBUNTU = 1, 6
_everything = False
_quick = False


def pytest_configure(config: pytest.Config) -> None:
    """Learn whether everything or only the quick is asked for, before tests are collected."""
    global _everything, _quick
    _everything, _quick = bool(config.getoption("--proof")), bool(config.getoption("--quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--proof`` takes every enumerated point, and the tests that take long."""
    parser.addoption("--proof", action="store_true", help="every enumerated point; takes hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked ``proof`` and ``long`` to ``make proof``; begin with what takes long."""
    if not _everything:
        named = {Path(word.partition("::")[0]).name for word in config.args}
        later = [
            item
            for item in items
            if item.get_closest_marker("proof")
            or (item.get_closest_marker("long") and item.path.name not in named)
        ]
        leave_out(config, items, later)
    leave_out(config, items, _not_on_ubuntu(items))
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def leave_out(
    config: pytest.Config, items: list[pytest.Item], later: Collection[pytest.Item]
) -> None:
    """Take tests out of a run."""
    config.hook.pytest_deselected(items=later)
    left_out = set(later)
    items[:] = [item for item in items if item not in left_out]


def _not_on_ubuntu(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests on Ubuntu's images that this run leaves out."""
    points: dict[str, pytest.Item] = {}
    for item in items:
        marker = item.get_closest_marker("ubuntu")
        if marker is not None and not (_everything and marker.args[0]):
            points[_name(item)] = item
    if not points:
        return []
    most = ON_OTHER_UBUNTU if _everything else ON_UBUNTU
    taken = set(share("tests on Ubuntu", sorted(points), most=most, always=True))
    return [item for name, item in points.items() if name not in taken]


def _name(item: pytest.Item) -> str:
    """A test's name in shares: without folders, which are other ones on each machine."""
    return f"{item.path.name}::{item.name}"


def _turn(item: pytest.Item) -> int:
    """When a test's file is handed out."""
    names = (item.path.name, item.path.parent.name)
    return min(LONGEST_FIRST.get(name, len(LONGEST_FIRST)) for name in names)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands over which points it took."""
    if output := getattr(session.config, "workeroutput", None):
        output["taken"] = TAKEN


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add which points a process took; what two of them counted is told for each."""
    for what, text in getattr(node, "workeroutput", {}).get("taken", {}).items():
        TAKEN[what] = text if TAKEN.get(what, text) == text else f"{TAKEN[what]}; {text}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which points were taken."""
    if TAKEN:
        taken = "all" if _everything else f"share {seed()}".strip()
        terminalreporter.section(f"enumerated points ({taken})")
        for what, text in sorted(TAKEN.items()):
            terminalreporter.line(f"{what}: {text}")


def seed() -> str:
    """What the share depends on: ``GPUSTATE_SHARE``."""
    return os.environ.get("GPUSTATE_SHARE", "")


def everything() -> bool:
    """Every point was asked for."""
    return _everything


def tries(whole: int, usual: int) -> int:
    """How many random inputs a test tries: ``whole`` with ``--proof``, a fifth of ``usual`` with ``--quick``."""
    if _everything:
        return whole
    return max(3, usual // 5) if _quick else usual


def share(
    what: str,
    points: Sequence[T],
    *,
    most: int,
    kind: Callable[[T], Hashable] = lambda point: None,
    always: bool = False,
) -> list[T]:
    """Take a share of enumerated points, in their own order.

    Args:
        what: name under which the end of the run tells what was taken.
        points: all of them.
        most: how many without ``--proof``; one of each kind is taken in any case.
        kind: points of one kind may stand in for each other.
        always: with ``--proof`` too.
    """
    if (_everything and not always) or len(points) <= most:
        TAKEN[what] = f"all {len(points)}"
        return list(points)
    drawn = sorted(
        range(len(points)),
        key=lambda i: hashlib.sha256(f"{seed()} {what} {points[i]}".encode()).digest(),
    )
    first: dict[Hashable, int] = {}
    for i in drawn:
        first.setdefault(kind(points[i]), i)
    taken = list(first.values())
    taken += [i for i in drawn if i not in set(taken)][: max(0, most - len(taken))]
    chosen = [points[i] for i in sorted(taken)]
    TAKEN[what] = f"{len(chosen)} of {len(points)}: {', '.join(str(point) for point in chosen)}"
    return chosen
