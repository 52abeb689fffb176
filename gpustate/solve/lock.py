"""The lock file: which concrete set each node has, until somebody asks to move. Pure.

``gpustate.lock`` beside the policy is JSON (``gpustate.lock/1``, ``schema/lock.json``), the same bytes for
the same content, so that it is reviewed and merged like code. A set says what it was solved from:
what the policy wanted, for which distribution and GPUs, out of which repositories; and what it is: every
package of the driver's own, in full versions, with hashes where the index gives them.

Surprising: it holds no package outside of the driver; compilers and headers go their own way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats import driverset, strict_json
from gpustate.formats.masking import masked_data
from gpustate.formats.words import kind_of, named, shown
from gpustate.solve.packages import Package, Repository
from gpustate.solve.problem import Wanted
from gpustate.solve.solver import Solution

FORMAT = "gpustate.lock/1"
NAME = "gpustate.lock"
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~^_-]*")


@dataclass(frozen=True, slots=True)
class Situation:
    """What a set was solved for.

    Args:
        distribution: NVIDIA's code of it: ``debian12``.
        release: its code name: ``bookworm``.
        machine: ``x86_64``.
        gpus: PCI device ids, sorted, each once.
    """

    distribution: str = ""
    release: str = ""
    machine: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockedSet:
    """One set and the nodes that have it.

    Args:
        driver: version of the driver.
        module_type: open or proprietary.
        scheme: whose names the packages have.
        wanted: what the policy wanted when it was solved.
        situation: what it was solved for.
        packages: of the driver's own, by name.
        nodes: by name, sorted.
    """

    driver: str
    module_type: str
    scheme: str
    wanted: Wanted
    situation: Situation
    packages: tuple[Package, ...]
    nodes: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """Full version of every package."""
        return {package.name: package.version for package in self.packages}

    def serves(self, wanted: Wanted) -> bool:
        """It was solved for the same word of the policy."""
        return policy_part(self.wanted) == policy_part(wanted)

    def but_nodes(self) -> LockedSet:
        """The set alone: nodes that have the same one have the same of this."""
        return replace(self, nodes=()) if self.nodes else self

    def same_set(self, other: LockedSet) -> bool:
        """Everything but the nodes is the same."""
        return self.but_nodes() == other.but_nodes()


@dataclass(frozen=True, slots=True)
class Lock:
    """All sets.

    Args:
        sets: in any order; a node is in one of them at most.
        matrix: digest of the compatibility matrix that accepted them.
    """

    sets: tuple[LockedSet, ...] = ()
    matrix: str = ""

    def of(self, node: str) -> LockedSet | None:
        """The set of a node."""
        return self.by_node().get(node)

    def by_node(self) -> dict[str, LockedSet]:
        """The set of every node that has one."""
        return {node: one for one in self.sets for node in one.nodes}


def policy_part(wanted: Wanted) -> Wanted:
    """What the policy says of the driver, without what follows from the node."""
    return replace(wanted, fabric_manager=False)


def locked(solution: Solution, wanted: Wanted, situation: Situation) -> LockedSet:
    """A solution as it is locked: the driver's own packages only."""
    mine = tuple(
        replace(one, depends=(), conflicts=(), provides=(), rpm=False)
        for one in solution.packages
        if driverset.is_member(one.name, one.version)
    )
    candidate = solution.candidate
    return LockedSet(
        candidate.version,
        candidate.module_type,
        candidate.scheme.name,
        wanted,
        situation,
        mine,
    )


def gathered(sets: Mapping[str, LockedSet], matrix: str = "") -> Lock:
    """A lock from the set of each node: what is the same is written once."""
    groups: dict[LockedSet, list[str]] = {}
    for node, one in sets.items():
        groups.setdefault(one.but_nodes(), []).append(node)
    whole = [replace(one, nodes=tuple(sorted(nodes))) for one, nodes in groups.items()]
    return Lock(tuple(sorted(whole, key=lambda one: one.nodes)), matrix)


# --- writing -------------------------------------------------------------------------------


def to_text(lock: Lock) -> str:
    """The file: the same bytes for the same lock."""
    data = {"format": FORMAT, "matrix": lock.matrix, "sets": [set_data(one) for one in lock.sets]}
    return json.dumps(masked_data(data), indent=2, ensure_ascii=True) + "\n"


def set_data(one: LockedSet) -> dict[str, Any]:
    """One set as plain JSON data."""
    repositories = sorted({package.repository for package in one.packages})
    return {
        "driver": one.driver,
        "module_type": one.module_type,
        "scheme": one.scheme,
        "wanted": wanted_data(one.wanted),
        "for": {
            "distribution": one.situation.distribution,
            "release": one.situation.release,
            "machine": one.situation.machine,
            "gpus": list(one.situation.gpus),
        },
        "repositories": [
            {"origin": r.origin, "suite": r.suite, "component": r.component, "site": r.site}
            for r in repositories
        ],
        "packages": [
            {
                "name": package.name,
                "version": package.version,
                "architecture": package.architecture,
                "repository": repositories.index(package.repository),
                **({"sha256": package.sha256} if package.sha256 else {}),
                **({"size": package.size} if package.size else {}),
            }
            for package in one.packages
        ],
        "nodes": list(one.nodes),
    }


def wanted_data(wanted: Wanted) -> dict[str, Any]:
    """What was wanted, without what is as it is by default."""
    default = Wanted()
    rows = ((one.name, getattr(wanted, one.name)) for one in fields(Wanted))
    return {name: value for name, value in rows if value != getattr(default, name)}


# --- reading -------------------------------------------------------------------------------


def from_text(text: str, place: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it is none, with the key that is wrong.
    """
    data = _Part(
        strict_json.read(text, place, PolicyError, said="is no lock file", fix="solve again"), place
    )
    found = data.get("format", str)
    if found != FORMAT:
        raise PolicyError(
            f"format is {shown(found)}, wanted {FORMAT}", place=place, fix="solve again"
        )
    data.only("format", "matrix", "sets")
    sets = tuple(_set(part) for part in data.parts("sets"))
    seen: dict[str, int] = {}
    for number, one in enumerate(sets):
        for node in one.nodes:
            if node in seen:
                raise PolicyError(
                    f"node {named(node)} is in sets[{seen[node]}] and in sets[{number}]",
                    place=place,
                    fix="take one of them out, or solve again",
                )
            seen[node] = number
    return Lock(sets, data.get("matrix", str))


@dataclass(frozen=True, slots=True)
class _Part:
    """An object of the file, and the way to it."""

    data: Any
    place: str
    path: str = ""

    def fail(self, key: str, message: str) -> PolicyError:
        where = f"{self.path}.{key}" if self.path and key else self.path or key or "the file"
        return PolicyError(f"{where}: {message}", place=self.place, fix="solve again")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        if not isinstance(self.data, dict):
            raise self.fail("", f"is {kind_of(self.data)}, wanted a mapping")
        if key not in self.data:
            if default is None:
                raise self.fail(key, "is not there")
            return default
        value = self.data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = {str: "a string", int: "a number", list: "a list", dict: "a mapping"}
            raise self.fail(key, f"is {kind_of(value)}, wanted {wanted.get(kind, kind.__name__)}")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        value: str = self.get(key, str, default)
        if not _WORD.fullmatch(value) and value != default:
            raise self.fail(key, f"is {shown(value)}, wanted a plain word")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        rows = self.get(key, list)
        for number, row in enumerate(rows):
            if not isinstance(row, str) or not row:
                raise self.fail(f"{key}[{number}]", f"is {kind_of(row)}, wanted a string")
        if len(set(rows)) != len(rows):
            raise self.fail(key, "has something twice")
        return tuple(rows)

    def part(self, key: str) -> _Part:
        self.get(key, dict)
        return _Part(self.data[key], self.place, f"{self.path}.{key}" if self.path else key)

    def parts(self, key: str) -> Iterable[_Part]:
        rows = self.get(key, list)
        above = f"{self.path}.{key}" if self.path else key
        return [_Part(row, self.place, f"{above}[{number}]") for number, row in enumerate(rows)]

    def only(self, *keys: str) -> None:
        for key in self.data:
            if key not in keys:
                raise self.fail("", f"has the key {named(key)}, wanted {', '.join(keys)}")


def _set(part: _Part) -> LockedSet:
    module_type = part.get("module_type", str)
    if module_type not in (driverset.OPEN, driverset.PROPRIETARY):
        raise part.fail("module_type", f"is {shown(module_type)}, wanted open or proprietary")
    driver = part.get("driver", str)
    if not driverset.is_version(driver):
        raise part.fail("driver", f"is {shown(driver)}, wanted a driver version")
    part.only(
        *("driver", "module_type", "scheme", "wanted", "for", "repositories", "packages", "nodes")
    )
    repositories = [_repository(row) for row in part.parts("repositories")]
    packages = tuple(_package(row, repositories) for row in part.parts("packages"))
    if not packages:
        raise part.fail("packages", "is empty")
    if len({package.name for package in packages}) != len(packages):
        raise part.fail("packages", "has a package twice")
    for package in packages:
        if package.driver not in ("", driver):
            raise part.fail(
                "packages", f"has {package}, which is no part of driver {driver}: a mixed set"
            )
    return LockedSet(
        driver,
        module_type,
        part.get("scheme", str),
        _wanted(part.part("wanted")),
        _situation(part.part("for")),
        packages,
        part.words("nodes"),
    )


def _repository(part: _Part) -> Repository:
    part.get("origin", str)
    part.only("origin", "suite", "component", "site")
    return Repository(*(part.get(key, str) for key in ("origin", "suite", "component", "site")))


def _package(part: _Part, repositories: Sequence[Repository]) -> Package:
    number = part.get("repository", int)
    if not 0 <= number < len(repositories):
        raise part.fail("repository", f"is {number}, and there is no such repository")
    sha256 = part.get("sha256", str, "")
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise part.fail("sha256", f"is {shown(sha256)}, wanted 64 hexadecimal digits")
    part.only("name", "version", "architecture", "repository", "sha256", "size")
    return Package(
        part.word("name"),
        part.word("version"),
        repositories[number],
        part.word("architecture", ""),
        sha256=sha256,
        size=part.get("size", int, 0),
    )


def _situation(part: _Part) -> Situation:
    distribution, release, machine = (
        part.get(key, str) for key in ("distribution", "release", "machine")
    )
    part.only("distribution", "release", "machine", "gpus")
    return Situation(distribution, release, machine, part.words("gpus"))


def _wanted(part: _Part) -> Wanted:
    kinds: dict[str, type] = {
        **dict.fromkeys(("version", "channel", "module_type"), str),
        "branch": int,
        **dict.fromkeys(("full", "precompiled", "fabric_manager"), bool),
    }
    part.only(*kinds)
    given = {name: part.get(name, kind) for name, kind in kinds.items() if name in part.data}
    return Wanted(**given)
