"""GPU topology for Slurm: local cores in Slurm's numbering, NVLinks between GPUs.

Slurm counts cores, not the kernel's CPUs: two threads are one core, and cores are numbered socket by
socket as hwloc finds them. On a machine with two sockets whose CPUs alternate between them, CPU 2 is
core 1.

Sources:
    Slurm, gres.conf(5): Cores, Links; kernel, Documentation/admin-guide/cputopology.rst;
    nvidia-smi(1), topo -m: NV# is the number of NVLinks between two GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpustate.formats.numbers import parse_uint

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MOST_CPUS = 65536


@dataclass(frozen=True, slots=True)
class Cpu:
    """One CPU of the kernel that is online."""

    number: int
    package: int
    core: int  # unique within its package
    node: int = 0  # NUMA node


def expand(text: str) -> frozenset[int]:
    """The numbers of a list such as ``0-3,8``; empty for invalid text."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        low, high = parse_uint(first), parse_uint(last or first)
        if low is not None and high is not None and low <= high < _MOST_CPUS:
            numbers.update(range(low, high + 1))
    return frozenset(numbers)


def core_numbers(cpus: Iterable[Cpu], local: Iterable[int]) -> str:
    """Slurm's numbers of the cores that CPUs belong to, as ``0-15,32-47``; empty: all, or none."""
    all_cpus = list(cpus)
    groups: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in all_cpus:
        groups.setdefault((cpu.package, cpu.core), []).append(cpu)
    first_of: dict[int, int] = {}
    first_in_node: dict[tuple[int, int], int] = {}
    for cpu in all_cpus:
        first_of[cpu.package] = min(first_of.get(cpu.package, cpu.number), cpu.number)
        place = cpu.package, cpu.node
        first_in_node[place] = min(first_in_node.get(place, cpu.number), cpu.number)

    def order(key: tuple[int, int]) -> tuple[int, int, int]:
        members = groups[key]
        return (
            first_of[key[0]],
            first_in_node[key[0], members[0].node],
            min(cpu.number for cpu in members),
        )

    local_numbers = set(local)
    chosen = [
        index
        for index, key in enumerate(sorted(groups, key=order))
        if any(cpu.number in local_numbers for cpu in groups[key])
    ]
    return "" if len(chosen) == len(groups) else _ranges(chosen)


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def links(text: str, count: int) -> tuple[tuple[int, ...], ...] | None:
    """NVLinks from each GPU to each, -1 for itself, out of ``nvidia-smi topo -m``.

    Returns:
        ``None`` where the table is not one of ``count`` GPUs, or no two of them are linked.
    """
    rows: list[tuple[int, ...]] = []
    for line in _ESCAPES.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if not re.fullmatch(r"GPU\d+", cells[0]) or cells[0] != f"GPU{len(rows)}":
            continue
        row = [_linked(cell) for cell in cells[1 : count + 1]]
        if len(row) < count or any(link_count is None for link_count in row):
            return None
        rows.append(tuple(link_count for link_count in row if link_count is not None))
    if len(rows) != count or any(row[index] != -1 for index, row in enumerate(rows)):
        return None
    return tuple(rows) if any(link_count > 0 for row in rows for link_count in row) else None


def _linked(cell: str) -> int | None:
    if cell == "X":
        return -1
    if cell.startswith("NV"):
        return parse_uint(cell[2:])
    return 0 if cell in ("SYS", "NODE", "PHB", "PXB", "PIX") else None
