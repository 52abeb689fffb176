"""The lock file: the exact driver set of each node, until an update is requested. Pure.

``gpustate.lock`` next to the policy is JSON (``gpustate.lock/2``, ``schema/lock.json``), the same bytes for
the same content, so that it is reviewed and merged like code. A set records its inputs (the policy's request,
distribution, GPUs) and its packages in their full versions.

Surprising: it pins driver packages only; compilers and kernel headers are not pinned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from gpustate.documents import JsonView
from gpustate.errors import PolicyError
from gpustate.formats import driverset, schemas, strict_json
from gpustate.formats.masking import mask_data
from gpustate.formats.words import quote_name
from gpustate.solve.request import DriverRequest

FORMAT = "gpustate.lock/2"
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
        request: the policy's request at the time.
        platform: platform it was solved for.
        packages: names and full versions of the driver's packages, sorted.
        nodes: names, sorted.
    """

    driver: str
    module_type: str
    request: DriverRequest
    platform: Platform
    packages: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...] = ()

    def without_nodes(self) -> LockedSet:
        """The set without its nodes, to compare and group sets."""
        return replace(self, nodes=())


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file.

    Args:
        sets: driver sets; a node is in one of them at most.
    """

    sets: tuple[LockedSet, ...] = ()

    def by_node(self) -> dict[str, LockedSet]:
        """Sets by node."""
        return {node: locked for locked in self.sets for node in locked.nodes}


def merge_sets(sets: Mapping[str, LockedSet]) -> Lock:
    """Build a lock file from the set of each node; equal sets are merged."""
    groups: dict[LockedSet, list[str]] = {}
    for node, locked in sets.items():
        groups.setdefault(locked.without_nodes(), []).append(node)
    merged = [replace(locked, nodes=tuple(sorted(nodes))) for locked, nodes in groups.items()]
    return Lock(tuple(sorted(merged, key=lambda locked: locked.nodes)))


# --- writing -------------------------------------------------------------------------------


def to_text(lock: Lock) -> str:
    """The text of a lock file: the same bytes for the same lock."""
    data = {"format": FORMAT, "sets": [set_data(locked) for locked in lock.sets]}
    return json.dumps(mask_data(data), indent=2, ensure_ascii=True) + "\n"


def set_data(locked: LockedSet) -> dict[str, object]:
    """A set as JSON data."""
    platform = asdict(locked.platform)
    return {
        "driver": locked.driver,
        "module_type": locked.module_type,
        "wanted": request_data(locked.request),
        "for": {**platform, "gpus": list(locked.platform.gpus)},
        "packages": dict(locked.packages),
        "nodes": list(locked.nodes),
    }


def request_data(request: DriverRequest) -> dict[str, object]:
    """A request as JSON data, without default values."""
    default = DriverRequest()
    rows = ((f.name, getattr(request, f.name)) for f in fields(DriverRequest))
    return {name: v for name, v in rows if v != getattr(default, name)}


# --- reading -------------------------------------------------------------------------------


def from_text(text: str, place: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it is not a lock file, or does not fit its schema.
    """
    data = strict_json.read(text, place, PolicyError, problem="is not a lock file", fix=_FIX)
    schemas.check_format(data, FORMAT, place=place, error=PolicyError, fix=_FIX)
    schemas.check(data, "gpustate.solve", "lock.json", place=place, error=PolicyError, fix=_FIX)
    sets = tuple(_set(row, f"sets[{n}]", place) for n, row in enumerate(data["sets"]))
    numbers: dict[str, int] = {}
    for number, locked in enumerate(sets):
        for node in locked.nodes:
            if node in numbers:
                raise PolicyError(
                    f"node {quote_name(node)} is in sets[{numbers[node]}] and in sets[{number}]",
                    place=place,
                    fix="remove one of them, or solve again",
                )
            numbers[node] = number
    return Lock(sets)


def _set(row: JsonView, path: str, place: str) -> LockedSet:
    for name, version in row["packages"].items():
        versioned = driverset.is_member(name, version) and not driverset.any_version_fits(name)
        if versioned and driverset.driver_version(version) != row["driver"]:
            raise PolicyError(
                f"{path}.packages: {name} {version} does not belong to driver {row['driver']}: a mixed set",
                place=place,
                fix=_FIX,
            )
    platform = {**row["for"], "gpus": tuple(row["for"]["gpus"])}
    return LockedSet(
        row["driver"],
        row["module_type"],
        DriverRequest(**row["wanted"]),
        Platform(**platform),
        tuple(sorted(row["packages"].items())),
        tuple(row["nodes"]),
    )
