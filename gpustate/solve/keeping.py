"""Compare a locked set with the repositories: keep it, replace it, or list newer drivers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpustate.errors import RefusedError
from gpustate.formats import driverset
from gpustate.formats.dpkg import version_key
from gpustate.solve import branches, lock
from gpustate.solve.lock import LockedSet, Platform
from gpustate.solve.packages import Universe
from gpustate.solve.problem import Candidate, Problem
from gpustate.solve.solver import NoSolution, Reason, Reasons, solve


@dataclass(frozen=True, slots=True)
class Resolution:
    """The driver set of a node.

    Args:
        set: the set; ``None`` when there is none.
        how: ``kept``, ``joined`` (takes the set of identical nodes), ``solved``, ``moved`` or ``none``.
        why: why the locked set is not kept, or why there is none.
        notes: warnings about it.
        unsolved: the conflict, where there is no set.
    """

    set: LockedSet | None
    how: str
    why: str = ""
    notes: tuple[str, ...] = ()
    unsolved: NoSolution | None = field(default=None, compare=False)


def resolve(
    problem: Problem,
    situation: Platform,
    old: LockedSet | None,
    others: Iterable[LockedSet] = (),
    *,
    update: bool = False,
) -> Resolution:
    """Resolve the driver set of one node, or of identical nodes.

    Args:
        problem: request, repositories, GPUs and compatibility.
        situation: platform of the node.
        old: its set in the lock file.
        others: sets of other nodes; an identical node takes theirs.
        update: choose the newest even if there is a locked set.

    Raises:
        RefusedError: a repository offers another file under a locked version.
    """
    why = "" if old is None else _reason_to_move(old, problem, situation)
    if not update:
        if old is not None and not why:
            return Resolution(old, "kept", notes=tuple(_warnings(old, problem)))
        for one in others:
            alike = one.wanted == problem.wanted and one.situation == situation
            if alike and not unavailable(one, problem.universe):
                return Resolution(one, "joined", why)
    found = solve(problem)
    if isinstance(found, NoSolution):
        return Resolution(None, "none", why, unsolved=found)
    locked = lock.lock_solution(found, problem.wanted, situation)
    if old is None:
        return Resolution(locked, "solved")
    return Resolution(
        locked, "kept" if locked.same_set(old) else "moved", why or "updated on request"
    )


def _reason_to_move(old: LockedSet, problem: Problem, situation: Platform) -> str:
    """Why a locked set no longer applies to the node; empty while it does."""
    if not old.matches(problem.wanted):
        before, now = old.wanted, problem.wanted
        if before.text != now.text:
            return f"it was locked for {before.text}, the policy now requests {now.text}"
        return "the policy now requests other kernel modules or packages"
    if old.wanted != problem.wanted:
        return (
            "the fabric manager is now required"
            if problem.wanted.fabric_manager
            else ("the fabric manager is no longer required")
        )
    if old.situation != situation:
        return "the node's operating system or GPUs differ from those it was locked for"
    return ""


def unavailable(one: LockedSet, universe: Universe) -> list[str]:
    """Packages of a set that no repository offers any longer.

    Raises:
        RefusedError: one is offered with another hash.
    """
    gone: list[str] = []
    for package in one.packages:
        builds = [p for p in universe.builds_of(package.name) if p.version == package.version]
        same = [p for p in builds if not p.sha256 or p.sha256 == package.sha256]
        if builds and package.sha256 and not same:
            raise RefusedError(
                f"{package} differs from the locked file: {builds[0].repository} offers "
                f"sha256 {builds[0].sha256[:16]}..., locked is {package.sha256[:16]}...",
                fix="find out why the file changed; to accept it: gpustate solve --update",
            )
        if not [p for p in builds if not p.forbidden]:
            gone.append(str(package))
    return gone


def _warnings(one: LockedSet, problem: Problem) -> Iterable[str]:
    gone = unavailable(one, problem.universe)
    if gone:
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        yield f"no repository offers {', '.join(gone[:3])}{more} any longer"
    for rule, text in problem.blocks(one.driver, one.module_type):
        yield f"blocked by compatibility rule {rule}: {text}"


@dataclass(frozen=True, slots=True)
class Newer:
    """A driver newer than the locked one.

    Args:
        version, module_type, origin: of that driver.
        reasons: why it is excluded; empty when ``solve --update`` may choose it.
    """

    version: str
    module_type: str
    origin: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Outdated:
    """A locked set and the newer drivers.

    Args:
        set: the locked set.
        newer: one of each version, the newest first.
        notes: warnings about the locked set.
    """

    set: LockedSet
    newer: tuple[Newer, ...]
    notes: tuple[str, ...]

    @property
    def allowed(self) -> Newer | None:
        """The newest driver that is not excluded."""
        return next((one for one in self.newer if not one.reasons), None)


def outdated(one: LockedSet, problem: Problem, month: str) -> Outdated:
    """List the drivers newer than a locked set, and why each is allowed or not.

    Args:
        one: the locked set.
        problem: of a node that has it.
        month: the current month, as ``2026-11``, to report branches past their end of support.
    """
    reasons = Reasons(problem)
    current = version_key(one.driver)
    by_version: dict[str, list[Candidate]] = {}
    for candidate in problem.candidates():
        if version_key(candidate.version) > current:
            by_version.setdefault(candidate.version, []).append(candidate)
    newer = [_newer(reasons, one, rows) for rows in by_version.values()]
    notes = list(_warnings(one, problem))
    end = branches.support_ended(one.driver, month)
    if end is not None:
        branch = driverset.branch_of(one.driver)
        when = "" if end == "past" else f" ({end})"
        notes.append(f"branch {branch} is past its end of support{when}")
    return Outdated(one, tuple(newer), tuple(notes))


def _newer(reasons: Reasons, one: LockedSet, rows: list[Candidate]) -> Newer:
    """The least excluded candidate of one version, preferably with the locked module type."""
    found = [(tuple(dict.fromkeys(reasons.all(candidate))), candidate) for candidate in rows]
    why, best = min(
        found,
        key=lambda row: (bool(row[0]), row[1].module_type != one.module_type, len(row[0])),
    )
    return Newer(best.version, best.module_type, best.origin, why)
