"""The table of supported systems in README.md and docs/support.md. ``python tests/support/supporttable.py`` writes it.

It stands between two marks, and is made from :mod:`gpustate.support`, and for runtimes from what states and their tests
on nodes declare.
"""

from __future__ import annotations

import re
from pathlib import Path

import distributions
import statetable

from gpustate import registry, support
from gpustate.support import Kind, Level, Support

TOP = Path(__file__).parents[2]
PAGES = (TOP / "README.md", TOP / "docs/support.md")
_MARKED = re.compile(r"(?<=<!-- support: from gpustate/support.py -->\n).*?(?=<!-- end -->)", re.S)
_MADE = re.compile(r"(?<=<!-- from tests/support/distributions.py -->\n).*?(?=<!-- end -->)", re.S)

_LEVELS = {statetable.REAL_NODE: Level.REAL, statetable.SIMULATED: Level.SIMULATED}
_NOTES = {Level.SIMULATED: "a program that answers as the runtime does"}


def runtimes() -> list[Support]:
    """A line for each state that sets up a runtime, the best tested first."""
    found: list[Support] = []
    modules = sorted((TOP / "tests/node").glob("test_*.py"))
    for name, cls in registry.states().items():
        if not cls.supported_runtime:
            continue
        shown = [(module, statetable.declared(module).get(name)) for module in modules]
        proofs = {
            f"node/{m.name}": _LEVELS[how[0]] for m, how in shown if how and how[0] in _LEVELS
        }
        level = min(proofs.values(), key=list(Level).index, default=Level.RECORDED)
        tests = tuple(test for test, one in proofs.items() if one is level)
        note = _NOTES.get(level, "")
        found.append(Support(Kind.RUNTIME, cls.supported_runtime, (name,), level, tests, note))
    return sorted(found, key=lambda row: (list(Level).index(row.level), row.name.lower()))


def rows() -> list[Support]:
    """The whole table."""
    first = [row for row in support.TABLE if row.kind is Kind.DISTRIBUTION]
    return [*first, *runtimes(), *(row for row in support.TABLE if row not in first)]


def written(text: str) -> str:
    """A page with the table of today.

    Raises:
        ValueError: it does not have the marks once.
    """
    page, count = _MARKED.subn(lambda _: f"\n{support.markdown(rows())}\n", text)
    if count != 1:
        raise ValueError("the marks of the table are not there once")
    return _MADE.sub(lambda _: f"\n{distributions.markdown()}\n", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text("utf-8")), encoding="utf-8")
