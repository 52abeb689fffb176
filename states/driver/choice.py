"""Which driver a node gets: from what is wanted, what is installed, what its repositories offer, and its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpustate.formats import driverschemes, driverset
from gpustate.formats.dpkg import version_key
from gpustate.formats.driverset import Target
from gpustate.formats.rpm import is_rpm
from gpustate.formats.words import listed
from gpustate.solve import branches
from gpustate.states.driver import repositories
from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.observed import Observed

#: Scheme, version and module type.
_Choice = tuple[driverschemes.Scheme, str, str]


@dataclass(frozen=True, slots=True)
class Request:
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
    def exact(self) -> str | None:
        """The version that is wanted, if one is."""
        return None if self.channel else self.version

    @property
    def only_branch(self) -> int | None:
        """The branch that is wanted, if one is."""
        return self.branch if self.exact is None else driverset.branch_of(self.exact)

    @property
    def text(self) -> str:
        """The driver that is wanted, in a few words."""
        if self.channel:
            return self.channel
        if self.version:
            return f"driver {self.version}"
        return f"branch {self.branch}" if self.branch else "a driver"

    @property
    def keeps(self) -> bool:
        """What is installed stays, however new."""
        return self.channel is not None or (self.version is None and self.branch is None)

    def admits(self, version: str) -> bool:
        """A driver version is of the number, the kind of branch, or the branch that is wanted."""
        if self.channel:
            fits = branches.in_channel(version, self.channel)
            return fits and self.branch in (None, driverset.branch_of(version))
        if self.version is not None:
            return version == self.version
        return self.branch in (None, driverset.branch_of(version))


_DISTRIBUTORS = (
    "NVIDIA builds none for 590 and later, but Red Hat (extensions and supplementary repositories), AlmaLinux "
    "(almalinux-release-nvidia-driver), CIQ and SUSE do: enable theirs, "
)


def choose(
    request: Request, observed: Observed, exempt: frozenset[str] = frozenset()
) -> tuple[Target, None] | tuple[None, str]:
    """The set of packages for a node, or why there is none, with the next move.

    Args:
        exempt: kernels that need no module.
    """
    if request.precompiled and not any(s.prebuilt for s in driverschemes.of(observed.os_id)):
        return (None, f"no precompiled modules exist for {observed.os_id}; set precompiled: false")
    offers = {name: tuple(versions) for name, versions in observed.offers.items()}
    moves = not request.locked and _change_of_source(request, observed, offers) == "moves"
    available = dict(offers)
    for name, version in observed.relations.living(observed.packages).items():
        # Kernels of before may still boot, and no source has their signed modules any more.
        if not moves or driverset.is_of_kernel(name):
            available[name] = tuple(dict.fromkeys((*available.get(name, ()), version)))
    installed = observed.whole
    named = driverset.complete_set(observed.os_id, request.locked)
    choices, is_full = _choices(request, observed.os_id, installed, named, available)
    every = choices
    choices = [row for row in choices if request.admits(row[1])]
    stays = request.keeps and installed is not None and installed[1] in {row[1] for row in choices}
    if request.exact is None:
        branch = driverset.branch_of(installed[1]) if installed else 0
        ended = [row for row in choices if _has_ended(row, observed, available)]
        choices = [
            row for row in choices if row not in ended or driverset.branch_of(row[1]) == branch
        ]
    if request.precompiled and choices:
        choices, problem = _with_prebuilt(request, observed, choices, available, exempt)
        if problem:
            return None, problem
    if installed is not None and stays:
        choices = [row for row in choices if row[1] == installed[1]]
    if observed.switches and not request.locked:
        # Ubuntu's Fabric Manager depends on the packages for servers.
        choices = [row for row in choices if not is_for_desktops(row, available)] or choices
    # The same driver under the names that are pinned, or are there already, where both are to be had.
    stem = named or installed
    if stem is not None:
        choices.sort(key=lambda choice: choice[0].name != stem[0].name)
        choices.sort(key=lambda choice: version_key(choice[1]), reverse=True)
    problem = ""
    for scheme, version, kind in choices:
        fitting, why = module_type(observed.gpus, driverset.branch_of(version), request.module_type)
        if fitting == kind:
            target = driverset.target(
                scheme,
                version,
                kind,
                full=request.full or (is_full and (scheme, version, kind) == installed),
                installed=observed.packages,
                available=available,
                offers=offers,
                prebuilt=tuple(observed.built),
                use_prebuilt=request.precompiled,
                relations=observed.relations,
                moves=moves,
            )
            return _as_locked(target, request.locked, observed, available)
        problem = problem or why or _other_modules(fitting, version, kind, every, request, observed)
    return None, problem or _nothing(request, observed, available)


def _with_prebuilt(
    request: Request,
    observed: Observed,
    choices: list[_Choice],
    available: driverset.Versions,
    exempt: frozenset[str],
) -> tuple[list[_Choice], str]:
    """The choices that have prebuilt modules for every bootable kernel, or why there are none."""
    if observed.os_id == "ubuntu" and not any(_source(row, available) for row in choices):
        return [], _without_prebuilt(request, observed)
    lacking = [
        [
            kernel
            for kernel in observed.built
            if kernel not in exempt
            and not driverset.covers(*row, (kernel,), available, observed.relations)
        ]
        for row in choices
    ]
    if all(lacking) or not observed.built:
        fewest = min(lacking, key=len)
        kernels = ", ".join(fewest) or "(none)"
        nvidia = driverset.branch_of(choices[lacking.index(fewest)][1]) < 590
        hint = "" if nvidia or not is_rpm(observed.manager) else _DISTRIBUTORS
        by = ", pinned by a lock file or a rollback," if request.locked else ""
        move = "offer them again" if request.locked else "set precompiled: false"
        if observed.signed_pins:
            move = f"remove the pins in {observed.signed_pins} that forbid them, {move}"
        return [], (
            f"{request.text}{by} is not available with prebuilt modules for every bootable kernel "
            f"(missing for {kernels}); {hint}{move}, or remove the kernels that are not needed"
        )
    return [row for row, kernels in zip(choices, lacking, strict=True) if not kernels], ""


def _other_modules(
    fitting: str | None,
    version: str,
    kind: str,
    choices: Iterable[_Choice],
    request: Request,
    observed: Observed,
) -> str:
    """That a driver has modules of another kind than the fitting one, and what to set in a policy."""
    path = observed.pinned_away.get((version, fitting or ""))
    if path is not None:
        offer = f"{observed.manager} offers driver {version} with {fitting} modules"
        return f"{offer}, and a pin in {path} forbids it; remove that pin"
    branch = driverset.branch_of(version)
    drives = module_type(observed.gpus, branch, kind)[0] == kind
    verb = "preferred" if drives and request.module_type == "auto" else "needed"
    branches_of_kind = (driverset.branch_of(row[1]) for row in choices if row[2] == fitting)
    newest = next((number for number in branches_of_kind if number != branch), None)
    moves = (
        f"branch: {newest}" if newest is not None else "",
        f"module_type: {kind}" if drives else "",
        "precompiled: false" if request.precompiled else "",
    )
    return (
        f"driver {version} is available with {kind} modules only, but {fitting} modules are {verb}; "
        f"set {' or '.join(filter(None, moves)) or 'another branch'}"
    )


def _choices(
    request: Request,
    os_id: str,
    installed: _Choice | None,
    named: _Choice | None,
    available: driverset.Versions,
) -> tuple[list[_Choice], bool]:
    """Every available set, newest first; and whether the installed one is available only as the full set.

    Args:
        named: the set of the packages that are locked.
    """

    def sets(*, full: bool) -> list[_Choice]:
        return driverset.choices(os_id, available, full=full, prebuilt=request.precompiled)

    result = sets(full=request.full)
    # Packages of its compute set may be offered no more.
    is_full = installed is not None and installed not in result and installed in sets(full=True)
    more = [installed] if is_full else []
    # The same goes for tools of a set that came without them.
    if not request.full and all(v in available.get(n, ()) for n, v in request.locked.items()):
        more.append(named)
    result += [row for row in more if row is not None and row not in result]
    return sorted(result, key=lambda choice: version_key(choice[1]), reverse=True), is_full


def _change_of_source(
    request: Request, observed: Observed, offers: driverset.Versions
) -> Literal["moves", "stays"] | None:
    """What becomes of a driver whose source is not in use any more: NVIDIA, or the archive of an Ubuntu release.

    It is so after the policy has changed the repository, and after a release upgrade. The driver moves to the source in
    use where that has it, or another one that the policy wants; otherwise it stays. ``None``: the source is in use,
    or there is no other; a build that the same archive has replaced is of that archive.
    """
    installed = observed.whole
    if observed.os_id != "ubuntu" or installed is None or not request.admits(installed[1]):
        return None
    scheme, version, kind = installed
    branch = driverset.branch_of(version)
    packages = {
        name: full
        for complete in (False, True)
        for name in scheme.required(branch, kind, full=complete, prebuilt=True)
        if (full := observed.packages.get(name)) is not None
    }
    if any(full in offers.get(name, ()) for name, full in packages.items()):
        return None
    sources = {driverset.source_of(name, full) for name, full in packages.items()}
    in_use = {driverset.source_of(name, full) for name in packages for full in offers.get(name, ())}
    result: Literal["stays"] | None = None
    for row in driverset.choices(observed.os_id, offers, full=request.full):
        if sources == {_source(row, offers)}:
            continue
        unused = not sources & in_use
        if row[1:] == (version, kind) or (unused and not request.keeps and request.admits(row[1])):
            return "moves"
        result = "stays" if unused else result
    return result


def why_of_another_source(request: Request, observed: Observed) -> str | None:
    """Say that the driver is of a repository that is not in use any more, and why it stays."""
    offers = {name: tuple(versions) for name, versions in observed.offers.items()}
    if request.locked or _change_of_source(request, observed, offers) != "stays":
        return None
    version = observed.whole[1] if observed.whole else ""
    lacking = f"driver {version}" if request.keeps else request.text
    return (
        f"the installed driver {version} is of a repository that the node no longer uses, and those in use do not "
        f"offer {lacking}; to replace it, set a branch or version that they offer"
    )


def _tools(choice: _Choice, available: driverset.Versions) -> tuple[str, str]:
    """The package of a set that has its tools, and its version: they tell where the set was built."""
    scheme, version, kind = choice
    names = scheme.required(driverset.branch_of(version), kind, full=False, prebuilt=True)
    rows = [(name, driverset.at_version(available.get(name, ()), version)) for name in names]
    return next(((name, build) for name, build in reversed(rows) if build), (names[-1], ""))


def _source(choice: _Choice, available: driverset.Versions) -> str | None:
    return driverset.source_of(*_tools(choice, available))


def is_for_desktops(choice: _Choice, available: driverset.Versions) -> bool:
    """The set is of Ubuntu's archive, in its build for desktops."""
    name, build = _tools(choice, available)
    return driverset.is_for_desktops(name, build)


def _as_locked(
    target: Target, locked: Mapping[str, str], observed: Observed, available: driverset.Versions
) -> tuple[Target, None] | tuple[None, str]:
    """The same set in exactly the builds that a lock file names."""
    missing = [n for n, v in locked.items() if v not in available.get(n, ())]
    if missing:
        rows = ", ".join(f"{name} {locked[name]}" for name in missing)
        them, verb = ("them", "are") if missing[1:] else ("it", "is")
        return None, (
            f"{rows} {verb} pinned by a lock file or a rollback, and "
            f"{observed.manager} does not offer {them}; offer {them} again, or update the lock file: "
            "gpustate driver solve --update"
        )
    # A component with the branch in its name in one repository, and without in the other, is there once.
    components = set(map(driverset.component, locked))
    extra = {n: v for n, v in target.packages.items() if driverset.component(n) not in components}
    packages = dict(sorted({**extra, **locked}.items()))
    remove = tuple(sorted(observed.packages.keys() - packages))
    return replace(target, packages=packages, remove=remove), None


def _has_ended(choice: _Choice, observed: Observed, available: driverset.Versions) -> bool:
    """The packages are what Ubuntu's archive has left of a branch that it has ended."""
    name, build = _tools(choice, available)
    ended = observed.relations.ended_names
    return driverset.release_of(build) is not None and driverset.named_after(name) in ended


def _without_prebuilt(request: Request, observed: Observed) -> str:
    return (
        f"{observed.manager} offers {request.text} without prebuilt modules only; set precompiled: false, or "
        "choose a repository that has them in driver-repository"
    )


def brief(versions: Iterable[str], request: Request, most: int = 6) -> str:
    """The versions of the wanted branch, the newest first, where one version is wanted; and the branches."""
    newest = sorted(set(versions), key=version_key, reverse=True)
    same = [v for v in newest if request.exact and driverset.branch_of(v) == request.only_branch]
    branches = sorted({*map(driverset.branch_of, newest)} - {*map(driverset.branch_of, same)})
    branches_text = f"branch{'es' * (len(branches) > 1)} {', '.join(map(str, branches))}"
    parts = (listed(same, most), branches_text if branches else "")
    return "; ".join(filter(None, parts))


def _nothing(request: Request, observed: Observed, available: driverset.Versions) -> str:
    text, manager = request.text, observed.manager
    every, builds = (
        driverset.choices(observed.os_id, available, full=request.full, prebuilt=prebuilt)
        for prebuilt in (request.precompiled, False)
    )
    offered, otherwise = (list(dict.fromkeys(row[1] for row in some)) for some in (every, builds))
    successor = observed.relations.branches().get(request.only_branch or 0)
    of_branch = [row for row in every if driverset.branch_of(row[1]) == request.only_branch]
    in_use = not observed.repository or repositories.is_archive(observed.repository)
    has_ended = (
        of_branch or in_use
    )  # what the archive has ended, another repository may never have had
    if (
        successor is not None
        and has_ended
        and all(_has_ended(row, observed, available) for row in of_branch)
    ):
        more = f", or version: {of_branch[0][1]} for its last driver" if of_branch else ""
        return (
            f"branch {request.only_branch} has ended in Ubuntu's archive, its packages install branch {successor}; "
            f"set branch: {successor}{more}"
        )
    files_of_pins = {v: path for (v, _), path in observed.pinned_away.items() if request.admits(v)}
    if files_of_pins:
        version = max(files_of_pins, key=version_key)
        allowed = f", or set one that it may install: {brief(offered, request)}" if offered else ""
        return (
            f"{manager} offers driver {version}, and a pin in {files_of_pins[version]} forbids it; remove that "
            f"pin{allowed}"
        )
    if any(map(request.admits, otherwise)) and not any(map(request.admits, offered)):
        return _without_prebuilt(request, observed)
    has = brief(offered, request)
    problem = f"{observed.repository or 'no repository in use'} has {'no ' * bool(observed.repository)}{text}"
    if has:
        problem += f"; {'it has' if observed.repository else 'there is'} {has}"
    excluded = {
        repository: max(fitting, key=version_key)
        for repository, versions in observed.elsewhere.items()
        if (fitting := [version for version in versions if request.admits(version)])
        # The last driver of a branch that the archive has ended is only taken by its version.
        and (successor is None or request.exact or not repositories.is_archive(repository))
    }
    alternative = f"another {'version' if request.exact else 'branch'}"
    if excluded:
        repository, version = max(excluded.items(), key=lambda row: version_key(row[1]))
        return (
            f"{problem}; {repository} has {version}: choose it with "
            f"{repositories.choice(repository)}{has and f', or {alternative}'}"
        )
    by_branch = any(scheme.by_branch for scheme in driverschemes.of(observed.os_id))
    if offered or (request.only_branch and by_branch):
        return f"{problem}; choose {alternative}, or a repository that has it in driver-repository"
    return f"{problem}; add driver-repository to the policy, or fix its address there"
