"""``slurm.conf`` with its includes, as far as GPUs need it.

Sources:
    Slurm, slurm.conf(5) 22.05 and 26.05: Include, GresTypes, NodeName, Prolog; src/common/parse_config.c: the last of
    equal settings counts, and slurmd and slurmctld end with "Duplicated NodeName"; "Configless Slurm": what nodes get.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_WORD = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S*)')
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_GRES = re.compile(r"(gpu|shard)(?::([^:,()]+?))??(?::(\d+))?(?:\([^)]*\))?")
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Row:
    """A line with settings: its file and number, and the values by their keys in lower case."""

    place: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """The lines with settings, and the files that they are from."""

    rows: tuple[Row, ...]
    files: tuple[str, ...]

    def setting(self, key: str, without: str = "") -> Row | None:
        """The line whose value of ``key`` counts; ``without``: a file that is not looked at."""
        rows = [row for row in self.rows if key in row.values and _file(row) != without]
        return rows[-1] if rows else None

    def node(self, name: str, without: str = "") -> Row | None:
        """The line of a node, with the values of ``NodeName=DEFAULT``."""
        defaults: dict[str, str] = {}
        for row in self.rows:
            names = row.values.get("nodename", "")
            if names.upper() == "DEFAULT":
                defaults |= row.values
            elif _file(row) != without and is_listed(names, name):
                return Row(row.place, {**defaults, **row.values})
        return None


def _file(row: Row) -> str:
    return row.place.rpartition(":")[0]


def read(path: str, text_of: Callable[[str], str | None]) -> SlurmConf:
    """Read a file and those that it includes; ``text_of``: of a path, ``None`` where nothing is there."""
    files: list[str] = []
    return SlurmConf(tuple(_rows(path, text_of, files)), tuple(files))


def _rows(path: str, text_of: Callable[[str], str | None], files: list[str]) -> Iterator[Row]:
    files.append(path)
    number = 1
    for line in (text_of(path) or "").replace("\\\n", "\0").split("\n"):
        words = re.sub(r"(?<!\\)#.*", "", line.replace("\0", " "))
        if include := _INCLUDE.match(words):
            if len(files) < _DEPTH:
                yield from _rows(
                    posixpath.join(posixpath.dirname(files[0]), include[1]), text_of, files
                )
        elif values := {key.lower(): value.strip('"') for key, value in _WORD.findall(words)}:
            yield Row(f"{path}:{number}", values)
        number += 1 + line.count("\0")


def is_listed(names: str, name: str) -> bool:
    """Whether a hostlist such as ``gpu[01-16,20],head`` has a name."""
    for item in re.findall(r"(?:[^,\[]|\[[^]]*\])+", names):
        parts = re.split(r"\[([^]]*)\]", item)
        pattern = r"(\d+)".join(re.escape(part) for part in parts[::2])
        match = re.fullmatch(pattern, name)
        if match and all(map(_is_within, parts[1::2], match.groups())):
            return True
    return False


def _is_within(ranges: str, number: str) -> bool:
    pairs = re.findall(r"(\d+)(?:-(\d+))?", ranges)
    wide = len(str(int(number)))
    return any(
        int(low) <= int(number) <= int(high or low) and len(number) == max(len(low), wide)
        for low, high in pairs
    )


def _counts(gres: str) -> dict[tuple[str, str], int]:
    found = (_GRES.fullmatch(part) for part in re.split(r",(?![^(]*\))", gres))
    return {(row[1], row[2] or ""): int(row[3] or 1) for row in found if row}


def gres_fits(configured: str, right: str) -> bool:
    """Whether ``Gres=`` of a node counts its GPUs right, with their types or without any."""
    have, want = _counts(configured), _counts(right)
    plain: dict[tuple[str, str], int] = {}
    for (name, _), count in want.items():
        plain[name, ""] = plain.get((name, ""), 0) + count
    return have in (want, plain)
