"""The packages that the states of a policy would install, and those missing for it.

This is computed twice: from the repositories when a bundle is built, and from the bundle's content before a node
is changed with it. The states themselves declare their packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpustate.core.facts import NodeFacts
from gpustate.core.packages import Offer, PackageRoot, Versions
from gpustate.core.state import AnyState
from gpustate.documents import JsonView
from gpustate.graph.build import build
from gpustate.graph.order import order

Root = PackageRoot
#: Under this name a bundle lists the headers of kernels.
KERNELS = "kernels"


@dataclass(frozen=True, slots=True)
class RequiredPackages:
    """Required packages.

    Args:
        by_state: names and versions; packages for kernels are under :data:`KERNELS`.
        problem: why a package is unavailable, with its name.
        missing_headers: kernels without available headers, with the package that would have them.
        pins: text of the preferences with which apt installs them.
    """

    by_state: Mapping[str, tuple[Root, ...]] = field(default_factory=dict[str, tuple[Root, ...]])
    problem: str = ""
    missing_headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pins: str = ""


def required_packages(
    states: Sequence[AnyState],
    facts: NodeFacts,
    versions: Versions,
    kernels: Sequence[str] = (),
    observed: JsonView | None = None,
) -> RequiredPackages:
    """The packages that the states of a policy would install on an empty node.

    Args:
        states: with the node's parameters.
        facts: distribution, and the GPUs if known.
        versions: returns available versions.
        kernels: releases that need headers, if no node was observed.
        observed: observations by state; ``None`` while a bundle is built.
    """
    states_by_name = {state.name: state for state in states if not state.absent}
    packages_by_state: dict[str, tuple[Root, ...]] = {}
    headers: dict[Root, None] = {}
    missing_headers: dict[str, str] = {}
    chosen: dict[str, object] = {}
    pins = ""
    for name in order(build(list(states_by_name.values()))):
        offer = Offer(facts, versions, tuple(kernels), dict(chosen))
        needed = states_by_name[name].required_packages(offer, (observed or {}).get(name))
        if needed.missing:
            return RequiredPackages(problem=needed.missing)
        packages_by_state[name] = needed.packages
        headers |= dict.fromkeys(needed.headers)
        missing_headers |= needed.missing_headers
        chosen |= needed.facts
        pins += needed.pins
    packages_by_state[KERNELS] = tuple(headers)
    return RequiredPackages(
        {name: rows for name, rows in packages_by_state.items() if rows},
        missing_headers=missing_headers,
        pins=pins,
    )
