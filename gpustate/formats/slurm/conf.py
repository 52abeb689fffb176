"""``slurm.conf`` with its includes, as far as GPUs need it.

Sources:
    Slurm, slurm.conf(5) 22.05 and 26.05: Include, GresTypes, NodeName, Prolog; src/common/parse_config.c: the last of
    equal settings counts, and slurmd and slurmctld end with "Duplicated NodeName"; "Configless Slurm": what nodes get.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

_WORD = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S*)')
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_GRES = re.compile(r"(gpu|shard)(?::([^:,()]+?))??(?::(\d+))?(?:\([^)]*\))?")
_DEPTH = 8
#: Slurm's own limit for a range of a hostlist.
_MOST = 65536
_INSTEAD = "# instead of: "


@dataclass(frozen=True, slots=True)
class Row:
    """A line with settings: its file and number, and ``Key=value`` as written by keys in lower case."""

    place: str
    written: Mapping[str, str]

    @property
    def values(self) -> dict[str, str]:
        """The values alone."""
        return {key: text[len(key) + 1 :].strip('"') for key, text in self.written.items()}


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """The lines with settings, and the files that they are from."""

    rows: tuple[Row, ...]
    files: tuple[str, ...]

    def setting(self, key: str, without: str = "") -> Row | None:
        """The line whose value of ``key`` counts; ``without``: a file that is not looked at."""
        rows = [row for row in self.rows if key in row.values and _file(row) != without]
        return rows[-1] if rows else None

    def nodes(self, names: Collection[str], without: str = "") -> list[Row]:
        """The lines of some nodes, with the values of ``NodeName=DEFAULT``."""
        default: Mapping[str, str] = {}
        node_rows: list[Row] = []
        for row in self.rows:
            listed = row.values.get("nodename", "")
            complete = Row(row.place, {**default, **row.written})
            if listed.upper() == "DEFAULT":
                default = complete.written
            elif _file(row) != without and not {*hosts(listed)}.isdisjoint(names):
                node_rows.append(complete)
        return node_rows

    def node(self, name: str, without: str = "") -> Row | None:
        """The line of a node."""
        return next(iter(self.nodes({name}, without)), None)


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
        elif settings := _WORD.findall(words):
            yield Row(
                f"{path}:{number}", {key.lower(): f"{key}={value}" for key, value in settings}
            )
        number += 1 + line.count("\0")


def instead(row: Row) -> str:
    """The line of a file of our own that says which one of slurm.conf the next takes the place of."""
    return f"{_INSTEAD}{' '.join(row.written.values())}\n"


def replaced(path: str, text: str) -> SlurmConf:
    """The lines that :func:`instead` noted in such a file."""
    lines = re.sub(rf"(?m)^(?!{_INSTEAD}).*", "", text).replace(_INSTEAD, "")
    return read(path, lambda _: lines)


def hosts(names: str) -> list[str]:
    """The names of a hostlist such as ``gpu[01-16,20],head``."""
    host_names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^]]*\])+", names):
        parts = re.split(r"\[([^]]*)\]", item)
        choices = [_numbers(part) if n % 2 else [part] for n, part in enumerate(parts)]
        host_names += map("".join, islice(product(*choices), _MOST))
    return host_names


def _numbers(ranges: str) -> list[str]:
    pairs = re.findall(r"(\d{1,18})(?:-(\d{1,18}))?", ranges)
    return [
        str(number).zfill(len(low))
        for low, high in pairs
        for number in range(int(low), min(int(high or low), int(low) + _MOST) + 1)
    ]


def _parts(gres: str) -> list[str]:
    return re.split(r",(?![^(]*\))", gres)


def with_gpus(configured: str, right: str) -> str:
    """``Gres=`` of a node with the right GPUs, and what else is configured."""
    foreign = [p for p in _parts(configured) if p.split(":")[0] not in ("", "gpu", "shard")]
    return ",".join([right, *foreign])


def _counts(gres: str) -> dict[tuple[str, str], int]:
    matches = map(_GRES.fullmatch, _parts(gres))
    return {(row[1], row[2] or ""): int(row[3] or 1) for row in matches if row}


def gres_fits(configured: str, right: str) -> bool:
    """Whether ``Gres=`` of a node counts its GPUs right, with their types or without any."""
    have, want = _counts(configured), _counts(right)
    plain: dict[tuple[str, str], int] = {}
    for (name, _), count in want.items():
        plain[name, ""] = plain.get((name, ""), 0) + count
    return have in (want, plain)
