"""Which packages the states of a policy install: what a bundle must have, and what it may lack.

The same question twice: of what repositories offer, when a bundle is built; of what the bundle has,
before a node is changed that is to be set up from it. The states themselves declare the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate.core.facts import NodeFacts
from gpustate.core.packages import Offer, PackageRoot, Versions
from gpustate.core.state import AnyState
from gpustate.graph.build import build
from gpustate.graph.order import order

Root = PackageRoot
#: Under this name a bundle lists the headers of kernels.
KERNELS = "kernels"


@dataclass(frozen=True, slots=True)
class Asked:
    """What states want.

    Args:
        by_state: names and versions; headers of kernels are under :data:`KERNELS`.
        problem: why something cannot be had, with the package that is missing.
        bare: kernels whose headers are not offered, with the package that would have them.
    """

    by_state: Mapping[str, tuple[Root, ...]] = field(default_factory=dict[str, tuple[Root, ...]])
    problem: str = ""
    bare: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def roots(self) -> tuple[Root, ...]:
        """All of them."""
        return tuple(row for rows in self.by_state.values() for row in rows)


def asked(
    states: Sequence[AnyState],
    facts: NodeFacts,
    versions: Versions,
    kernels: Sequence[str] = (),
    observed: Mapping[str, Any] | None = None,
) -> Asked:
    """What the states of a policy would install on a node without any of it.

    Args:
        states: with the node's parameters.
        facts: distribution, and the GPUs, if they are known.
        versions: what is offered.
        kernels: releases that want headers, where no node was observed.
        observed: what the states observed, by name; nothing while a bundle is built.
    """
    wanted = {state.name: state for state in states if not state.absent}
    found: dict[str, tuple[Root, ...]] = {}
    headers: dict[Root, None] = {}
    bare: dict[str, str] = {}
    chosen: dict[str, object] = {}
    for name in order(build(list(wanted.values()))):
        offer = Offer(facts, versions, tuple(kernels), dict(chosen))
        needed = wanted[name].required_packages(offer, (observed or {}).get(name))
        if needed.missing:
            return Asked(problem=needed.missing)
        found[name] = needed.packages
        headers |= dict.fromkeys(needed.headers)
        bare |= needed.bare
        chosen |= needed.facts
    found[KERNELS] = tuple(headers)
    return Asked({name: rows for name, rows in found.items() if rows}, bare=bare)
