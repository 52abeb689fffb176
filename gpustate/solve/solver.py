"""Find the driver set for a problem, or what excludes the drivers that come closest to the request. Pure.

The newest driver wins that the policy allows, one origin offers completely, the GPUs support, and the
compatibility matrix does not block. Where there is none, some facts (:class:`Reason`) exclude each offered
driver; the answer is the first fact for each of those that the policy requests, or all if it requests none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from gpustate.formats import driverset
from gpustate.solve.closure import Closure
from gpustate.solve.packages import PIN, Package
from gpustate.solve.problem import Candidate, Problem


@dataclass(frozen=True, slots=True)
class Reason:
    """One fact that excludes drivers.

    Args:
        key: identifies the fact; its first word is the kind: ``policy``, ``gpu``, ``modules``, ``offer``,
            ``set`` or ``rule``.
        text: the fact in words.
    """

    key: str
    text: str = field(compare=False)

    @property
    def kind(self) -> str:
        """First word of the key."""
        return self.key.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Solution:
    """The driver set of a problem.

    Args:
        candidate: the driver.
        packages: its packages, sorted by name, without those left to apt or dnf.
    """

    candidate: Candidate
    packages: tuple[Package, ...]


@dataclass(frozen=True, slots=True)
class NoSolution:
    """There is no driver set.

    Args:
        wanted: the request, in a few words.
        reasons: a fact that excludes each driver closest to the request; empty when none is offered.
        offered: offered drivers, newest first.
    """

    wanted: str
    reasons: tuple[Reason, ...]
    offered: tuple[str, ...]


def solve(problem: Problem) -> Solution | NoSolution:
    """Solve a problem."""
    reasons = Reasons(problem)
    candidates = problem.candidates()
    for candidate in candidates:
        if next(reasons.cheap(candidate), None) is None:
            packages = reasons.packages(candidate)
            if packages is not None:
                return Solution(candidate, packages)
    first = [reason for one in candidates if (reason := next(reasons.all(one), None)) is not None]
    closest = [reason for reason in first if reason.kind not in ("policy", "modules")] or first
    offered = tuple(dict.fromkeys(str(candidate) for candidate in candidates))
    return NoSolution(problem.wanted.text, tuple(dict.fromkeys(closest)), offered)


class Reasons:
    """Finds the facts that exclude candidates of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._blocks = cache(problem.blocks)

    def all(self, candidate: Candidate) -> Iterator[Reason]:
        """Every fact that excludes a candidate on its own; none for an available one."""
        yield from self.cheap(candidate)
        if not list(self._not_offered(candidate)):
            closure = self._closure(candidate)
            if closure.find() is None:
                yield Reason(
                    f"set:{candidate}",
                    f"the packages of driver {candidate} cannot be installed: {closure.problem}",
                )

    def cheap(self, candidate: Candidate) -> Iterator[Reason]:
        """The same without resolving dependencies."""
        yield from self._policy(candidate)
        yield from self._modules(candidate)
        yield from self._not_offered(candidate)
        for rule, text in self._blocks(candidate.version, candidate.module_type):
            yield Reason(f"rule:{rule}", f"compatibility rule {rule}: {text}")

    def packages(self, candidate: Candidate) -> tuple[Package, ...] | None:
        """All packages of a candidate, with optional ones where they are installable; ``None`` without a set."""
        closure = self._closure(candidate)
        found = closure.find()
        if found is None:
            return None
        for name in (*self.problem.extras(candidate), *self.problem.prebuilt(candidate)):
            closure.roots = (*closure.roots, name)
            if name not in self.problem.extras(candidate):
                closure.any_version |= {name}
            more = closure.find()
            if more is None:
                closure.roots = closure.roots[:-1]
            else:
                found = more
        return tuple(sorted((p for p in found if not p.leaf), key=lambda p: p.name))

    def _closure(self, candidate: Candidate) -> Closure:
        return Closure(
            self.problem.universe, candidate.version, candidate.origin, candidate.required
        )

    def _policy(self, candidate: Candidate) -> Iterator[Reason]:
        wanted = self.problem.wanted
        if not self.problem.wants(candidate.version):
            yield Reason("policy:driver", f"the policy requests {wanted.text}")
        if wanted.module_type not in ("auto", candidate.module_type):
            yield Reason(
                "policy:module_type", f"the policy requests {wanted.module_type} kernel modules"
            )

    def _modules(self, candidate: Candidate) -> Iterator[Reason]:
        branch = driverset.branch_of(candidate.version)
        kind, why = self.problem.modules(branch, candidate.module_type)
        if kind is None:
            # One GPU is one fact, whatever branch it excludes.
            text = why.partition("; set ")[0].partition(", not by ")[0]
            yield Reason(f"gpu:{text}", text)
        elif self.problem.wanted.module_type == "auto":
            kind, why = self.problem.modules(branch, "auto")
            if kind is None:
                yield Reason(f"gpu:{why}", why)
            elif kind != candidate.module_type:
                yield Reason(
                    f"modules:{kind}:{branch}",
                    f"the GPUs use {kind} modules in branch {branch} (module_type auto)",
                )

    def _not_offered(self, candidate: Candidate) -> Iterator[Reason]:
        universe, origin = self.problem.universe, candidate.origin
        for name in candidate.required:
            builds = universe.from_origin(name, origin)
            fitting = [p for p in builds if driverset.at_version((p.version,), candidate.version)]
            if fitting and all(p.forbidden for p in fitting):
                forbidden_by = fitting[0].forbidden_by
                kind = "pin" if forbidden_by == PIN else forbidden_by
                yield Reason(
                    f"offer:{origin}:{kind}",
                    f"{forbidden_by} forbids the driver's packages of {origin}",
                )
            elif not fitting:
                versions = universe.versions(name, origin)
                offer = (
                    f"offers {name} at {shorten(versions)} only" if versions else f"has no {name}"
                )
                yield Reason(f"offer:{origin}:{name}", f"{origin} {offer}")


def shorten(words: Sequence[str], most: int = 4) -> str:
    """Join the first few words, with the number of remaining ones."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def describe_conflict(unsolved: NoSolution) -> str:
    """Explain in one line why there is no set."""
    if not unsolved.offered:
        return f"no driver set for {unsolved.wanted}: no repository of the node offers a driver"
    facts = "; ".join(f"({number}) {r.text}" for number, r in enumerate(unsolved.reasons, 1))
    return f"no driver set for {unsolved.wanted}: offered are {shorten(unsolved.offered, 6)}; not possible: {facts}"
