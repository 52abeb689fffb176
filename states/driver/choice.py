"""Which driver a node gets: from what is wanted, what is installed, what its repositories offer, and its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpustate.formats import driverschemes, driverset
from gpustate.formats.dpkg import version_key
from gpustate.formats.driverset import Target
from gpustate.solve import branches
from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.observed import Observed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The policy's word."""

    version: str | None
    branch: int | None
    module_type: str
    full: bool
    precompiled: bool
    locked: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def channel(self) -> str | None:
        """``latest-lts`` and its like, given instead of a version."""
        return self.version if self.version in branches.CHANNELS else None

    @property
    def ended_branch(self) -> int | None:
        """The branch that is wanted, if one is."""
        if self.version is not None and not self.channel:
            return driverset.branch_of(self.version)
        return self.branch

    @property
    def text(self) -> str:
        """The driver that is wanted, in a few words."""
        if self.channel:
            return self.channel
        if self.version:
            return f"driver {self.version}"
        return f"branch {self.branch}" if self.branch else "a driver"

    def admits(self, version: str) -> bool:
        """A driver version is of the number, the kind of branch, or the branch that is wanted."""
        if self.channel:
            fits = branches.in_channel(version, self.channel)
            return fits and self.branch in (None, driverset.branch_of(version))
        if self.version is not None:
            return version == self.version
        return self.branch in (None, driverset.branch_of(version))


def choose(wanted: Wanted, observed: Observed) -> tuple[Target, None] | tuple[None, str]:
    """The set of packages for a node, or why there is none, with the next move."""
    if wanted.precompiled and not any(one.prebuilt for one in driverschemes.of(observed.os_id)):
        return (
            None,
            f"no precompiled modules exist for {observed.os_id}; set precompiled = False",
        )
    available = {name: tuple(versions) for name, versions in observed.offers.items()}
    moves = not wanted.locked and _is_elsewhere(wanted, observed, available)
    if not moves:
        for name, version in observed.relations.living(observed.packages).items():
            available[name] = tuple(dict.fromkeys((*available.get(name, ()), version)))
    choices = driverset.choices(
        observed.os_id, available, full=wanted.full, prebuilt=wanted.precompiled
    )
    installed = observed.whole
    choices = [choice for choice in choices if wanted.admits(choice[1])]
    if wanted.precompiled and choices:
        choices = [
            one
            for one in choices
            if driverset.covers(*one, observed.built, available, observed.relations)
        ]
        if not choices:
            kernels = ", ".join(observed.built) or "(none)"
            return None, (
                f"{wanted.text} is not available with prebuilt modules for every bootable kernel "
                f"({kernels}); "
                "set precompiled = False, or remove the kernels that are not needed"
            )
    stays = wanted.channel or (wanted.version is None and wanted.branch is None)
    if stays and installed is not None and wanted.admits(installed[1]):
        choices = [choice for choice in choices if choice[1] == installed[1]]
    # The same driver under the names that are pinned, or are there already, where both are to be had.
    named = driverset.complete_set(observed.os_id, wanted.locked) or installed
    if named is not None:
        choices.sort(key=lambda choice: choice[0].name != named[0].name)
        choices.sort(key=lambda choice: version_key(choice[1]), reverse=True)
    problem = ""
    for scheme, version, kind in choices:
        fitting, why = module_type(observed.gpus, driverset.branch_of(version), wanted.module_type)
        if fitting == kind:
            target = driverset.target(
                scheme,
                version,
                kind,
                full=wanted.full,
                installed=observed.packages,
                available=available,
                prebuilt=tuple(observed.built),
                use_prebuilt=wanted.precompiled,
                relations=observed.relations,
                moves=moves,
            )
            return _as_locked(target, wanted.locked, observed, available)
        problem = (
            problem
            or why
            or f"driver {version} is available with {kind} modules only, but {fitting} modules "
            "are needed"
        )
    return None, problem or _nothing(wanted, observed, available)


def _is_elsewhere(wanted: Wanted, observed: Observed, offers: driverset.Versions) -> bool:
    """The installed driver is NVIDIA's build or that of Ubuntu's archive, and only the other one is on offer.

    That is so after the policy has changed the repository. A build of the same archive that is no longer on offer stays.
    """
    there = observed.whole
    if observed.os_id != "ubuntu" or there is None or not wanted.admits(there[1]):
        return False
    scheme, version, kind = there
    names = scheme.required(driverset.branch_of(version), kind, full=False, prebuilt=True)
    mine = {n: full for n in names if (full := observed.packages.get(n)) is not None}
    if any(full in offers.get(name, ()) for name, full in mine.items()):
        return False
    others = driverset.choices(
        observed.os_id, offers, full=wanted.full, prebuilt=wanted.precompiled
    )
    for other, offered, module_type_ in others:
        if offered != version or module_type_ != kind:
            continue
        name = other.required(
            driverset.branch_of(version), kind, full=wanted.full, prebuilt=wanted.precompiled
        )[-1]
        build = driverset.at_version(offers.get(name, ()), version) or ""
        archive = driverset.is_of_archive(build)
        if any(driverset.is_of_archive(full) != archive for full in mine.values()):
            return True
    return False


def _as_locked(
    target: Target, locked: Mapping[str, str], observed: Observed, available: driverset.Versions
) -> tuple[Target, None] | tuple[None, str]:
    """The same set in exactly the builds that a lock file names."""
    gone = [n for n, v in locked.items() if v not in available.get(n, ())]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        return None, (
            f"{gone[0]} {locked[gone[0]]}{more} is pinned by a lock file or a rollback, and "
            f"{observed.manager} does not offer it; offer it again, or update the lock file: "
            "gpustate solve --update"
        )
    packages = dict(sorted({**target.packages, **locked}.items()))
    remove = tuple(name for name in target.remove if name not in locked)
    return replace(target, packages=packages, remove=remove), None


def _nothing(wanted: Wanted, observed: Observed, available: driverset.Versions) -> str:
    what = wanted.text
    every = driverset.choices(
        observed.os_id, available, full=wanted.full, prebuilt=wanted.precompiled
    )
    offered = list(dict.fromkeys(choice[1] for choice in every))
    for version in observed.pinned_away:
        if wanted.text != "a driver" and wanted.admits(version):
            return (
                f"apt offers driver {version}, and a pin forbids it; see apt-cache policy libcuda1 and "
                "/etc/apt/preferences.d on the node"
            )
    ended = {o: n for o, n in observed.relations.branches().items() if o == wanted.ended_branch}
    for branch, successor in ended.items():
        return (
            f"branch {branch} has ended in Ubuntu's archive, its packages install branch {successor}; "
            f"set branch = {successor}"
        )
    if offered:
        return f"{observed.manager} does not offer {what} as a whole set; it offers {', '.join(offered[:8])}"
    return (
        f"{observed.manager} does not offer {what} at all; add driver-repository to the policy, "
        "or fix its source"
    )
