"""The lock file: which concrete set each node has, until somebody asks to move. Pure.

``gpustate.lock`` beside the policy is JSON (``gpustate.lock/1``, ``schema/lock.json``), the same bytes for
the same content, so that it is reviewed and merged like code. A set says what it was solved from:
what the policy wanted, for which distribution and GPUs, out of which repositories; and what it is: every
package of the driver's own, in full versions, with hashes where the index gives them.

Surprising: it holds no package outside of the driver; compilers and headers go their own way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats import driverset, schemas, strict_json
from gpustate.formats.masking import masked_data
from gpustate.formats.words import named
from gpustate.solve.packages import Package, Repository
from gpustate.solve.problem import DriverRequest
from gpustate.solve.solver import Solution

FORMAT = "gpustate.lock/1"
NAME = "gpustate.lock"
_FIX = "solve again"


@dataclass(frozen=True, slots=True)
class Platform:
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
    wanted: DriverRequest
    situation: Platform
    packages: tuple[Package, ...]
    nodes: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """Full version of every package."""
        return {package.name: package.version for package in self.packages}

    def matches(self, wanted: DriverRequest) -> bool:
        """It was solved for the same word of the policy."""
        return without_node_parts(self.wanted) == without_node_parts(wanted)

    def without_nodes(self) -> LockedSet:
        """The set alone: nodes that have the same one have the same of this."""
        return replace(self, nodes=()) if self.nodes else self

    def same_set(self, other: LockedSet) -> bool:
        """Everything but the nodes is the same."""
        return self.without_nodes() == other.without_nodes()


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


def without_node_parts(wanted: DriverRequest) -> DriverRequest:
    """What the policy says of the driver, without what follows from the node."""
    return replace(wanted, fabric_manager=False)


def lock_solution(solution: Solution, wanted: DriverRequest, situation: Platform) -> LockedSet:
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


def merge_sets(sets: Mapping[str, LockedSet], matrix: str = "") -> Lock:
    """A lock from the set of each node: what is the same is written once."""
    groups: dict[LockedSet, list[str]] = {}
    for node, one in sets.items():
        groups.setdefault(one.without_nodes(), []).append(node)
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


def wanted_data(wanted: DriverRequest) -> dict[str, Any]:
    """What was wanted, without what is as it is by default."""
    default = DriverRequest()
    rows = ((one.name, getattr(wanted, one.name)) for one in fields(DriverRequest))
    return {name: value for name, value in rows if value != getattr(default, name)}


# --- reading -------------------------------------------------------------------------------


def from_text(text: str, place: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it is none, with the key that is wrong.
    """
    data = strict_json.read(text, place, PolicyError, said="is no lock file", fix=_FIX)
    schemas.check_format(data, FORMAT, place=place, error=PolicyError, fix=_FIX)
    schemas.check(data, "gpustate.solve", "lock.json", place=place, error=PolicyError, fix=_FIX)
    sets = tuple(_set(row, f"sets[{n}]", place) for n, row in enumerate(data["sets"]))
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
    return Lock(sets, data["matrix"])


def _set(row: Mapping[str, Any], path: str, place: str) -> LockedSet:
    def fail(key: str, message: str) -> PolicyError:
        return PolicyError(f"{path}.{key}: {message}", place=place, fix=_FIX)

    repositories = [Repository(**one) for one in row["repositories"]]
    packages: list[Package] = []
    for number, one in enumerate(row["packages"]):
        if one["repository"] >= len(repositories):
            raise fail(
                f"packages[{number}].repository", f"there is no repository {one['repository']}"
            )
        packages.append(
            Package(
                one["name"],
                one["version"],
                repositories[int(one["repository"])],
                one["architecture"],
                sha256=one.get("sha256", ""),
                size=int(one.get("size", 0)),
            )
        )
    if len({package.name for package in packages}) != len(packages):
        raise fail("packages", "has a package twice")
    for package in packages:
        if package.driver not in ("", row["driver"]):
            raise fail(
                "packages", f"{package} does not belong to driver {row['driver']}: a mixed set"
            )
    situation = row["for"]
    return LockedSet(
        row["driver"],
        row["module_type"],
        row["scheme"],
        DriverRequest(**row["wanted"]),
        Platform(
            situation["distribution"],
            situation["release"],
            situation["machine"],
            tuple(situation["gpus"]),
        ),
        tuple(packages),
        tuple(row["nodes"]),
    )
