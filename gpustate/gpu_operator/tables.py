"""Tables of the Operator's keys, kinds and variables: text files in ``data`` that explain themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

Rows = tuple[tuple[str, ...], ...]


def text(name: str) -> str:
    """A file of ``data``."""
    folder = resources.files("gpustate.gpu_operator").joinpath("data")
    return folder.joinpath(name).read_text("utf-8")


@cache
def sections(name: str) -> Mapping[str, Rows]:
    """The rows of a file by section, each with its cells, which ``|`` divides; the first is expanded later."""
    by_section: dict[str, list[tuple[str, ...]]] = {}
    rows: list[tuple[str, ...]] = []
    for line in text(name).splitlines():
        if line.startswith("["):
            rows = by_section.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append(tuple(cell.strip() for cell in line.split("|")))
    return {section: tuple(rows) for section, rows in by_section.items()}


def expanded(keys: str) -> Iterator[str]:
    """``{a,b}.c``: ``a.c`` and ``b.c``."""
    before, brace, tail = keys.partition("{")
    names, _, after = tail.partition("}")
    for name in names.split(",") if brace else ():
        yield from expanded(f"{before}{name}{after}")
    if not brace:
        yield keys
