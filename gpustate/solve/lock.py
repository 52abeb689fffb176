"""The lock file: the exact driver set of each node, until an update is requested. Pure.

``gpustate.lock`` next to the policy is JSON (``gpustate.lock/1``, ``schema/lock.json``), the same bytes for
the same content, so that it is reviewed and merged like code. A set records its inputs (the policy's request,
distribution, GPUs, repositories) and its packages: every driver package in its full version, with hashes
where the index has them.

Surprising: it pins driver packages only; compilers and kernel headers are not pinned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats import driverset, schemas, strict_json
from gpustate.formats.masking import mask_data
from gpustate.formats.words import quote_name
from gpustate.solve.packages import Package, Repository
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import Solution

FORMAT = "gpustate.lock/1"
NAME = "gpustate.lock"
_FIX = "solve again"


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform that a set was solved for.

    Args:
        distribution: as NVIDIA writes it: ``debian12``.
        release: code name: ``bookworm``.
        machine: ``x86_64``.
        gpus: PCI device ids, sorted, each once.
    """

    distribution: str = ""
    release: str = ""
    machine: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockedSet:
    """One driver set and the nodes that have it.

    Args:
        driver: driver version.
        module_type: open or proprietary.
        scheme: package naming scheme.
        wanted: the policy's request at the time.
        situation: platform it was solved for.
        packages: the driver's packages, sorted by name.
        nodes: names, sorted.
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
        """Whether it was solved for the same request of a policy."""
        return without_node_parts(self.wanted) == without_node_parts(wanted)

    def without_nodes(self) -> LockedSet:
        """The set without its nodes, to compare and group sets."""
        return replace(self, nodes=()) if self.nodes else self

    def same_set(self, other: LockedSet) -> bool:
        """Whether two sets differ at most in their nodes."""
        return self.without_nodes() == other.without_nodes()


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file.

    Args:
        sets: driver sets; a node is in one of them at most.
        matrix: digest of the compatibility matrix that accepted them.
    """

    sets: tuple[LockedSet, ...] = ()
    matrix: str = ""

    def of(self, node: str) -> LockedSet | None:
        """The set of a node; ``None`` when it is not locked."""
        return self.by_node().get(node)

    def by_node(self) -> dict[str, LockedSet]:
        """Sets by node."""
        return {node: one for one in self.sets for node in one.nodes}


def without_node_parts(wanted: DriverRequest) -> DriverRequest:
    """A request without the parts that follow from the node."""
    return replace(wanted, fabric_manager=False)


def lock_solution(solution: Solution, wanted: DriverRequest, situation: Platform) -> LockedSet:
    """Turn a solution into a locked set: driver packages only."""
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
    """Build a lock file from the set of each node; equal sets are merged."""
    groups: dict[LockedSet, list[str]] = {}
    for node, one in sets.items():
        groups.setdefault(one.without_nodes(), []).append(node)
    whole = [replace(one, nodes=tuple(sorted(nodes))) for one, nodes in groups.items()]
    return Lock(tuple(sorted(whole, key=lambda one: one.nodes)), matrix)


# --- writing -------------------------------------------------------------------------------


def to_text(lock: Lock) -> str:
    """The text of a lock file: the same bytes for the same lock."""
    data = {"format": FORMAT, "matrix": lock.matrix, "sets": [set_data(one) for one in lock.sets]}
    return json.dumps(mask_data(data), indent=2, ensure_ascii=True) + "\n"


def set_data(one: LockedSet) -> dict[str, Any]:
    """A set as JSON data."""
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
    """A request as JSON data, without default values."""
    default = DriverRequest()
    rows = ((one.name, getattr(wanted, one.name)) for one in fields(DriverRequest))
    return {name: value for name, value in rows if value != getattr(default, name)}


# --- reading -------------------------------------------------------------------------------


def from_text(text: str, place: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it is not a lock file, or does not fit its schema.
    """
    data = strict_json.read(text, place, PolicyError, said="is not a lock file", fix=_FIX)
    schemas.check_format(data, FORMAT, place=place, error=PolicyError, fix=_FIX)
    schemas.check(data, "gpustate.solve", "lock.json", place=place, error=PolicyError, fix=_FIX)
    sets = tuple(_set(row, f"sets[{n}]", place) for n, row in enumerate(data["sets"]))
    seen: dict[str, int] = {}
    for number, one in enumerate(sets):
        for node in one.nodes:
            if node in seen:
                raise PolicyError(
                    f"node {quote_name(node)} is in sets[{seen[node]}] and in sets[{number}]",
                    place=place,
                    fix="remove one of them, or solve again",
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
            raise fail(f"packages[{number}].repository", f"unknown repository {one['repository']}")
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
        raise fail("packages", "has a duplicate package")
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
