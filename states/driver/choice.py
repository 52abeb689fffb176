"""Which driver a node gets: from what is wanted, what is installed, what apt offers, and its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.observed import Observed
from gpustate.text import driverset
from gpustate.text.dpkg import version_key
from gpustate.text.driverset import Target


@dataclass(frozen=True, slots=True)
class Wanted:
    """The policy's word."""

    version: str | None
    branch: int | None
    module_type: str
    full: bool
    precompiled: bool


def choose(wanted: Wanted, seen: Observed) -> tuple[Target, None] | tuple[None, str]:
    """The set of packages for a node, or why there is none, with the next move."""
    if wanted.precompiled and seen.os_id != "ubuntu":
        return None, "precompiled modules come from Ubuntu's archive only; set precompiled = False"
    available = {name: tuple(versions) for name, versions in seen.offers.items()}
    for name, version in seen.packages.items():
        available[name] = tuple(dict.fromkeys((*available.get(name, ()), version)))
    choices = driverset.choices(
        seen.os_id, available, full=wanted.full, prebuilt=wanted.precompiled
    )
    installed = driverset.complete_set(seen.os_id, seen.packages)
    if wanted.version is not None:
        choices = [choice for choice in choices if choice[1] == wanted.version]
    elif wanted.branch is not None:
        choices = [choice for choice in choices if driverset.branch_of(choice[1]) == wanted.branch]
    elif installed is not None:
        choices = [choice for choice in choices if choice[1] == installed[1]]
    if installed is not None:
        # The same driver under the names that are there already, where both are to be had.
        choices.sort(key=lambda choice: choice[0].name != installed[0].name)
        choices.sort(key=lambda choice: version_key(choice[1]), reverse=True)
    problem = ""
    for scheme, version, kind in choices:
        fitting, why = module_type(seen.gpus, driverset.branch_of(version), wanted.module_type)
        if fitting == kind:
            target = driverset.target(
                scheme,
                version,
                kind,
                full=wanted.full,
                installed=seen.packages,
                available=available,
                prebuilt=tuple(seen.built),
                use_prebuilt=wanted.precompiled,
            )
            return target, None
        problem = (
            problem
            or why
            or f"driver {version} is offered with {kind} modules only, wanted {fitting}"
        )
    return None, problem or _nothing(wanted, seen, available)


def _nothing(wanted: Wanted, seen: Observed, available: driverset.Versions) -> str:
    what = (
        f"driver {wanted.version}"
        if wanted.version
        else f"branch {wanted.branch}"
        if wanted.branch
        else "a driver"
    )
    every = driverset.choices(seen.os_id, available, full=wanted.full, prebuilt=wanted.precompiled)
    offered = list(dict.fromkeys(choice[1] for choice in every))
    for version in seen.pinned_away:
        if wanted.version == version or wanted.branch == driverset.branch_of(version):
            return (
                f"apt offers driver {version}, and a pin forbids it; see apt-cache policy libcuda1 and "
                "/etc/apt/preferences.d on the node"
            )
    if offered:
        return f"apt does not offer {what} as a whole set; it offers {', '.join(offered[:8])}"
    return f"apt does not offer {what} at all; add driver-repository to the policy, or repair its source"
