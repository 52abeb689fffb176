"""``--quick`` leaves out the slow tests, which are listed in ``slow.txt``, which ``--list-slow`` writes anew.

    pytest -m "not node" --list-slow        alone, on an idle machine: as many minutes as the tests take on one processor

A test that is listed nowhere runs, and random inputs are a fifth of a run of all tests (:func:`shares.tries`).
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import shares

SLOW = Path(__file__).with_name("slow.txt")
#: Seconds of processor time of a test, on average of its parameters, from which it is slow.
LIMIT_S = 0.1
#: Marks of what is left out besides.
MARKS = ("node", "proof", "long")
_spent: dict[str, list[float]] = defaultdict(list)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="no nodes, checkers or slow tests")
    parser.addoption("--list-slow", action="store_true", help=f"write {SLOW.name} anew")


def name(item: pytest.Item) -> str:
    """A test without its parameters, as the list has it."""
    return item.nodeid.partition("[")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--quick``, leave out what is slow."""
    if config.getoption("--quick"):
        slow = frozenset(SLOW.read_text("utf-8").splitlines())
        later = [i for i in items if name(i) in slow or any(map(i.get_closest_marker, MARKS))]
        shares.leave_out(config, items, later)


def _processor_s() -> float:
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With ``--list-slow``, measure a test, its processes included."""
    if not item.config.getoption("--list-slow"):
        return (yield)
    began = _processor_s()
    try:
        return (yield)
    finally:
        _spent[name(item)].append(_processor_s() - began)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ``--list-slow``, write the list. Properties are not in it: with ``--quick`` they try less."""
    if session.config.getoption("--list-slow"):
        slow = [
            test
            for test, times in _spent.items()
            if sum(times) / len(times) > LIMIT_S and not test.startswith("tests/property/")
        ]
        SLOW.write_text("".join(f"{test}\n" for test in sorted(slow)), "utf-8")
