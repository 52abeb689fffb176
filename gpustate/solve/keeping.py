"""Compare a locked set with the set chosen for a node: keep it, replace it, or list newer drivers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpustate.formats import driverset
from gpustate.formats.dpkg import version_key
from gpustate.solve import branches
from gpustate.solve.lock import LockedSet, Platform
from gpustate.solve.request import DriverRequest, OfferedDriver, Solution

#: Why the compatibility matrix blocks a driver version with a module type; nothing if it does not.
Blocks = Callable[[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """What decides on the driver set of one node.

    Args:
        request: the policy's request.
        platform: of the node.
        solution: what the driver's state chooses there.
        blocks: compatibility rules.
    """

    request: DriverRequest
    platform: Platform
    solution: Solution
    blocks: Blocks

    def unavailable(self, locked: LockedSet) -> list[str]:
        """Packages of a set that no repository offers any longer."""
        offers = self.solution.offers
        return [f"{n} {v}" for n, v in locked.packages if v not in offers.get(n, ())]


@dataclass(frozen=True, slots=True)
class Resolution:
    """The driver set of a node.

    Args:
        set: the set; ``None`` when there is none.
        how: ``kept``, ``joined`` (takes the set of identical nodes), ``solved``, ``moved`` or ``none``.
        why: why the locked set is not kept, or why there is none.
        notes: warnings about it.
    """

    set: LockedSet | None
    how: str
    why: str = ""
    notes: tuple[str, ...] = ()


def resolve(
    case: Case, old: LockedSet | None, other_sets: Iterable[LockedSet] = (), *, update: bool = False
) -> Resolution:
    """Resolve the driver set of one node.

    Args:
        case: of the node.
        old: its set in the lock file.
        other_sets: sets of other nodes; an identical node takes theirs.
        update: choose the newest even if there is a locked set.
    """
    why = "" if old is None else _reason_to_move(old, case)
    if not update:
        if old is not None and not why:
            return Resolution(old, "kept", notes=tuple(_warnings(old, case)))
        for locked in other_sets:
            identical = locked.request == case.request and locked.platform == case.platform
            if identical and not case.unavailable(locked):
                return Resolution(locked, "joined", why)
    solution = case.solution
    if solution.problem:
        return Resolution(None, "none", solution.problem)
    blocks = case.blocks(solution.version, solution.module_type)
    if blocks:
        problem = (
            f"driver {solution.version}: {'; '.join(blocks)}; request another version or branch"
        )
        return Resolution(None, "none", problem)
    packages = tuple(sorted(solution.packages.items()))
    locked = LockedSet(
        solution.version, solution.module_type, case.request, case.platform, packages
    )
    if old is None:
        return Resolution(locked, "solved")
    same = locked == old.without_nodes()
    return Resolution(locked, "kept" if same else "moved", why or "updated on request")


def _reason_to_move(old: LockedSet, case: Case) -> str:
    """Why a locked set no longer applies to the node; empty while it does."""
    old_request, new_request = old.request, case.request
    if old_request.text != new_request.text:
        return f"it was locked for {old_request.text}, the policy now requests {new_request.text}"
    if old_request != new_request:
        return "the policy now requests other kernel modules or packages"
    if old.platform != case.platform:
        return "the node's operating system or GPUs differ from those it was locked for"
    return ""


def _warnings(locked: LockedSet, case: Case) -> Iterable[str]:
    unavailable = case.unavailable(locked)
    if unavailable:
        yield f"no repository offers {', '.join(unavailable)} any longer"
    yield from case.blocks(locked.driver, locked.module_type)


@dataclass(frozen=True, slots=True)
class Outdated:
    """A locked set and the newer drivers.

    Args:
        set: the locked set.
        newer: each version once, the newest first.
        notes: warnings about the locked set.
    """

    set: LockedSet
    newer: tuple[OfferedDriver, ...]
    notes: tuple[str, ...]

    @property
    def allowed(self) -> OfferedDriver | None:
        """The newest driver that is not excluded."""
        return next((driver for driver in self.newer if not driver.obstacles), None)


def outdated(locked: LockedSet, case: Case, month: str) -> Outdated:
    """List the drivers newer than a locked set, and why each is allowed or not.

    Args:
        locked: the locked set.
        case: of a node that has it.
        month: the current month, as ``2026-11``, to report branches past their end of support.
    """
    newer: dict[str, OfferedDriver] = {}
    for offered in case.solution.drivers:
        if version_key(offered.version) <= version_key(locked.driver):
            continue
        obstacles = (*offered.obstacles, *case.blocks(offered.version, offered.module_type))
        driver = OfferedDriver(offered.version, offered.module_type, obstacles)
        best = newer.get(driver.version, driver)
        newer[driver.version] = min(
            (best, driver), key=lambda d: (len(d.obstacles), d.module_type != locked.module_type)
        )
    notes = list(_warnings(locked, case))
    end = branches.support_ended(locked.driver, month)
    if end is not None:
        when = "" if end == "past" else f" ({end})"
        notes.append(
            f"branch {driverset.branch_of(locked.driver)} is past its end of support{when}"
        )
    rows = sorted(newer.values(), key=lambda d: version_key(d.version), reverse=True)
    return Outdated(locked, tuple(rows), tuple(notes))


__all__ = ["Case", "Outdated", "Resolution", "outdated", "resolve"]
