"""``--quick`` leaves out the slow tests, which are listed in ``slow.txt``, which ``--list-slow`` writes anew.

    pytest -m "not node" --list-slow        alone, on an idle machine: as many minutes as the tests take on one processor
    pytest --quick --list-slow              adds what has become slow since

A test that is listed nowhere runs, and random inputs are a fifth of a run of all tests (:func:`shares.tries`).
Nothing of ``tests/node`` and ``tests/proof`` is quick, nor is what compiles the lab's C sources.
"""

from __future__ import annotations

import gc
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import shares

SLOW = Path(__file__).with_name("slow.txt")
#: Seconds of processor time of a test, on average of its parameters, from which it is slow. The time of a fixture is
#: divided among the tests that use it.
LIMIT_S = 0.1
FOLDERS = tuple(Path(__file__).parents[1] / name for name in ("node", "proof"))
MARKS = ("node", "proof", "long")
#: Fixtures that compile.
COMPILED = {"builder", "libraries"}
#: Seconds and runs of each test.
_spent: dict[str, float] = defaultdict(float)
_runs: Counter[str] = Counter()
#: Seconds of the fixtures of modules and sessions, and who uses them.
_fixtures: dict[tuple[str, str], float] = defaultdict(float)
_users: dict[tuple[str, str], list[str]] = defaultdict(list)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="no nodes, checkers or slow tests")
    parser.addoption("--list-slow", action="store_true", help=f"write {SLOW.name} anew")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--quick``, import no tests on nodes."""
    return True if config.getoption("--quick") and collection_path in FOLDERS else None


def name(item: pytest.Item) -> str:
    """A test without its parameters, as the list has it."""
    return item.nodeid.partition("[")[0]


def _listed() -> set[str]:
    return set(SLOW.read_text("utf-8").splitlines())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--quick``, leave out what is slow."""
    if config.getoption("--quick"):
        slow = _listed()
        later = [
            item
            for item in items
            if name(item) in slow
            or any(map(item.get_closest_marker, MARKS))
            or not COMPILED.isdisjoint(getattr(item, "fixturenames", ()))
        ]
        shares.leave_out(config, items, later)


def pytest_collection_finish() -> None:
    """Keep the garbage collector, of this process and of its forks, from walking through all tests again and again."""
    gc.collect()
    gc.freeze()


def _processor_s() -> float:
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[object]:
    """With ``--list-slow``, measure a fixture that several tests share."""
    if fixturedef.scope == "function" or not request.config.getoption("--list-slow"):
        return (yield)
    began = _processor_s()
    try:
        return (yield)
    finally:
        _fixtures[fixturedef.baseid, fixturedef.argname] += _processor_s() - began


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """With ``--list-slow``, measure a test, its processes included."""
    if not item.config.getoption("--list-slow"):
        return (yield)
    began, shared = _processor_s(), sum(_fixtures.values())
    try:
        return (yield)
    finally:
        _spent[name(item)] += _processor_s() - began - (sum(_fixtures.values()) - shared)
        _runs[name(item)] += 1
        for baseid, fixture in _fixtures:
            if item.nodeid.startswith(baseid) and fixture in getattr(item, "fixturenames", ()):
                _users[baseid, fixture].append(name(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ``--list-slow``, write the list. Properties are not in it: with ``--quick`` they try less."""
    if not session.config.getoption("--list-slow"):
        return
    for fixture, tests in _users.items():
        for test in tests:
            _spent[test] += _fixtures[fixture] / len(tests)
    slow = _listed() if session.config.getoption("--quick") else set()
    slow |= {
        test
        for test, runs in _runs.items()
        if not test.startswith("tests/property/") and _spent[test] / runs > LIMIT_S
    }
    SLOW.write_text("".join(f"{test}\n" for test in sorted(slow)), "utf-8")
