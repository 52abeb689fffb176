"""Enumerated points: all of them with ``--proof``, otherwise one of each kind and a share.

A test that could be run at hundreds of points (every journal entry, every message) lists them all
and asks for its share. Without ``--proof`` that share is small, but another one with each commit, so
that the points are walked through as the project moves on; which ones were taken is printed at the end
of the run. ``GPUSTATE_SHARE=WORD`` stands in for the commit, to take another run's share again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

TAKEN: dict[str, str] = {}
#: Folders and files of tests that are handed out first. What waits for nodes leaves a processor to the type
#: checkers; at the end they would keep one process busy while the others have nothing left.
LONGEST_FIRST = {"proof": 0, "test_checks.py": 1, "node": 2}
#: Files of which a run of all tests takes ``TURNS`` with each commit; a file asked for by name is run. What they
#: see of a state's cycle does not count there (:mod:`cycles`), so that no commit depends on its share.
BY_TURNS = frozenset(
    {
        "test_articles.py",
        "test_bake.py",
        "test_bench.py",
        "test_broken_nodes.py",
        "test_broken_rpm_twins.py",
        "test_broken_twins.py",
        "test_bundle_rpm.py",
        "test_busy_server.py",
        "test_certain_refusals.py",
        "test_cluster_dra.py",
        "test_cluster_drain.py",
        "test_cluster_objects.py",
        "test_cluster_pairs.py",
        "test_cluster_versions.py",
        "test_container_link.py",
        "test_crio.py",
        "test_containerd_configurations.py",
        "test_daemon_reload.py",
        "test_distributions.py",
        "test_debian_archive.py",
        "test_kill_points.py",
        "test_lab.py",
        "test_lab_faults.py",
        "test_lab_kubernetes.py",
        "test_lab_sim.py",
        "test_lab_slurm.py",
        "test_network_faults.py",
        "test_package_faults.py",
        "test_random_command_lines.py",
        "test_rollback.py",
        "test_rollout.py",
        "test_rollout_points.py",
        "test_rollout_points_slurm.py",
        "test_rollout_rights.py",
        "test_rpm_components.py",
        "test_rpm_driver.py",
        "test_rpm_logins.py",
        "test_rpm_packages.py",
        "test_runtime_configurations.py",
        "test_saved_objects.py",
        "test_solve.py",
        "test_solve_rpm.py",
        "test_support_bundle.py",
        "test_ubuntu.py",
        "test_ubuntu_release.py",
        "test_ubuntu_upgrades.py",
        "test_verdicts.py",
    }
)
TURNS = 2
#: Of the tests that are marked ``by_turns``, so many; those on Ubuntu's images are counted below.
MARKED = 3
#: Tests on Ubuntu's images (marked ``ubuntu``) that a run takes; with ``--proof`` all on the first image, and so
#: many on the others.
ON_UBUNTU, ON_OTHER_UBUNTU = 1, 6
_everything = False
_by_turns: frozenset[str] = frozenset()


def pytest_configure(config: pytest.Config) -> None:
    """Learn whether everything is asked for, before tests are collected."""
    global _everything
    _everything = bool(config.getoption("--proof"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--proof`` takes every enumerated point, and the tests that take long."""
    parser.addoption("--proof", action="store_true", help="every enumerated point; takes an hour")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked ``proof``, and those whose turn it is not, to ``make proof``; begin with what takes long."""
    if not _everything:
        not_now = _not_now(items)
        later = [
            item for item in items if item.get_closest_marker("proof") or not_now & _turns_of(item)
        ]
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in set(later)]
    later = _not_on_ubuntu(items)
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in set(later)]
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


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


def _turns_of(item: pytest.Item) -> set[str]:
    """The names by which a test, or the file it is in, takes its turn."""
    return {item.path.name, _name(item)}


def _not_now(items: list[pytest.Item]) -> frozenset[str]:
    """Files and tests that wait for another commit's run of all tests; what is asked for by name never waits."""
    global _by_turns
    if not {item.path.name for item in items} >= BY_TURNS:
        return frozenset()
    marked = sorted(
        _name(item)
        for item in items
        if item.get_closest_marker("by_turns")
        and not any(item.get_closest_marker(other) for other in ("proof", "ubuntu"))
    )
    _by_turns = BY_TURNS | frozenset(marked)
    return (
        _by_turns
        - frozenset(share("longer files", sorted(BY_TURNS), most=TURNS))
        - frozenset(share("longer tests", marked, most=MARKED))
    )


def goes_by_turns(item: pytest.Item) -> bool:
    """Another commit's run of all tests may not have it."""
    drawn = item.get_closest_marker("ubuntu") is not None
    return bool(_by_turns) and (drawn or bool(_by_turns & _turns_of(item)))


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
        terminalreporter.section(f"enumerated points ({'all' if _everything else seed()})")
        for what, text in sorted(TAKEN.items()):
            terminalreporter.line(f"{what}: {text}")


@functools.cache
def seed() -> str:
    """What the share depends on: the commit, or ``GPUSTATE_SHARE``."""
    if word := os.environ.get("GPUSTATE_SHARE"):
        return word
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "no-commit"


def everything() -> bool:
    """Every point was asked for."""
    return _everything


def share(
    what: str,
    points: Sequence[T],
    *,
    most: int,
    kind: Callable[[T], Hashable] = lambda point: None,
    always: bool = False,
) -> list[T]:
    """Take this commit's share of enumerated points, in their own order.

    Args:
        what: name under which the end of the run tells what was taken.
        points: all of them; two runs of one commit list the same.
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
