"""Choose the packages of one NVIDIA driver, by origin, distribution, branch and module type.

The same driver has many package names (:mod:`gpustate.formats.driverschemes`). A set is chosen from the packages
in the node's repositories: the first scheme with all required packages available at one version.

Surprising: the fabric manager depends on Ubuntu's ``-server`` build. In Debian's archive the open modules and
small tools may lag behind the libraries. Versions of SUSE's modules contain the driver's version up to ``_k``,
followed by the kernel's.

A branch ends in Ubuntu's archive with packages of the same names and driver version in a newer build, which are empty
and depend on those of the next branch.

Sources:
    As :mod:`gpustate.formats.driverschemes`; canonical/nvidia-graphics-drivers, branches 550-server, 570-server and
    590-server (packages of ended branches).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from gpustate.formats import driverschemes
from gpustate.formats.dpkg import upstream_version, version_key
from gpustate.formats.driverschemes import BUILT_MODULES, LAST_PROPRIETARY
from gpustate.formats.driverschemes import OPEN as OPEN
from gpustate.formats.driverschemes import PROPRIETARY as PROPRIETARY
from gpustate.formats.driverschemes import Scheme as Scheme
from gpustate.formats.numbers import parse_uint

#: An installed package that belongs to the driver, as a line of ``dpkg.QUERY_FORMAT``: by its name,
#: and by having a driver's version (the toolkit has 1.18, CUDA 12.9, nvlsm a year). For grep -E too.
MEMBER_ERE = (
    r"^(((lib)?(nvidia|nvlink[0-9]|cuda-drivers|cuda-open|cuda1|cudadebugger1|nvcuvid1|nvoptix1|nvsdm|xnvctrl)[^|]*"
    r"|[^|]*-nvidia[^|]*)\|[^|]*\|([0-9]+:)?[0-9]{3}\.[0-9][0-9.]*(_k[^|-]*)?(-[^|]*)?\|"
    r"|nv-prefer-signed-open-driver\||linux-(modules|objects|signatures)-nvidia-)"
)
_VERSION = re.compile(r"[0-9]{3}\.[0-9]+(\.[0-9]+)*$")
_KERNEL_MODULES = re.compile(r"linux-(modules|objects|signatures)-nvidia-")
#: With a kernel's release in the name; ``generic-hwe-24.04`` is none.
_OF_ONE_KERNEL = re.compile(_KERNEL_MODULES.pattern + r"(.*-)?[0-9]+\.[0-9]+\.[0-9]+")
#: Small tools that the distributions build from sources of their own: any version of them fits.
_TOOLS = re.compile(r"nvidia-(modprobe|persistenced|settings|xconfig)$|libxnvctrl")
#: Ubuntu's packages for graphics and video.
_DISPLAY = re.compile(r"(libnvidia-(gl|fbc1|extra|decode|encode)|xserver-xorg-video-nvidia)-[0-9]")
#: Names of Ubuntu's packages that exist for servers and for desktops; those of components exist once.
_FLAVOUR = re.compile(
    r"(?!nvidia-(fabricmanager|imex)|libnvidia-nscq|libnvsdm|cuda-drivers-fabricmanager|linux-)"
    r".*-[0-9]{3}(?P<server>-server)?(-open)?(-[0-9.]+)?(:[a-z0-9-]+)?"
)
#: The release of Ubuntu that a package of its archive was built for; a build of Ubuntu Pro ends in ``+esm1``.
_RELEASE = re.compile(r"-[^-]*ubuntu[0-9]+\.([0-9]{2}\.[0-9]{2})\.[0-9]+(\+[^-]*)?$")
#: A digit before it is of a kernel release.
_BRANCH_NAME = re.compile(r"(?<![0-9])-([0-9]{3})(?=[-:]|$)")


Versions = Mapping[str, tuple[str, ...]]
_NAMED_AFTER = re.compile(r"-([0-9]{3})(-server)?(?=[-:]|$)")


@dataclass(frozen=True, slots=True)
class Relations:
    """What offers of Ubuntu's archive depend on, as far as names and versions do not say it.

    Args:
        drivers: driver that a package of signed modules is built for, by name and version.
        together: packages that it wants in its own version.
        ended: branch and flavour in names, as ``-570-server``, with the version of the empty packages: the next branch.
    """

    drivers: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    together: Mapping[tuple[str, str], tuple[str, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[str, ...]]
    )
    ended: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def successor(self, name: str, version: str) -> int | None:
        """The branch that an empty package of an ended one installs."""
        match = _NAMED_AFTER.search(name)
        return self.ended.get((match[0], version)) if match else None

    def living(self, packages: Mapping[str, str]) -> dict[str, str]:
        """Packages without the empty ones."""
        return {n: v for n, v in packages.items() if self.successor(n, v) is None}

    def empty_builds(self, version: str) -> dict[str, str]:
        """Version of the empty packages with which the branch of a driver ended, by branch and flavour in names."""
        return {
            suffix: build
            for suffix, build in self.ended
            if driver_version(build) == version and suffix[1:4] == version[:3]
        }

    @property
    def ended_names(self) -> frozenset[str]:
        """Branches and flavours that have ended, as in names."""
        return frozenset(suffix for suffix, _ in self.ended)

    def branches(self) -> dict[int, int]:
        """Ended branches and those that follow them."""
        return {parse_uint(suffix[1:4]) or 0: after for (suffix, _), after in self.ended.items()}

    def kernel_known(self, name: str, version: str, available: Versions) -> bool:
        """Packages of modules that this one installs are for kernels that were asked about."""
        companions = self.together.get((name, version), ())
        return all(c in available for c in companions if c.startswith("linux-modules-"))

    def fitting(self, available: Versions, version: str) -> dict[str, tuple[str, ...]]:
        """Versions of packages without the signed modules that are built for another driver."""
        return {
            name: tuple(v for v in versions if self.drivers.get((name, v), version) == version)
            for name, versions in available.items()
        }


NO_RELATIONS = Relations()


def succeeded_by(name: str, depends: str) -> int | None:
    """The next branch, if a package is an empty one of an ended branch: all it wants is its like in that one."""
    branch_name, successor = _NAMED_AFTER.search(name), _NAMED_AFTER.search(depends)
    if branch_name is None or successor is None or branch_name[0] == successor[0]:
        return None
    return int(successor[1]) if depends == name.replace(branch_name[0], successor[0]) else None


def parse_relations(text: str) -> Relations:
    """Read rows of ``NAME|VERSION|DRIVER|PACKAGES`` and, of ended branches, ``NAME|VERSION||SUCCESSOR``."""
    empty = Relations({}, {}, {})
    drivers, together, ended = dict(empty.drivers), dict(empty.together), dict(empty.ended)
    for line in text.splitlines():
        name, _, fields = line.partition("|")
        version, _, fields = fields.partition("|")
        driver, bar, companions = fields.partition("|")
        if bar and driver:
            drivers[name, version] = driver
            together[name, version] = tuple(companions.split())
        elif bar:
            after, branch_name = succeeded_by(name, companions), _NAMED_AFTER.search(name)
            if after is not None and branch_name is not None:
                ended[branch_name[0], version] = after
    return Relations(drivers, together, ended)


def named_after(name: str) -> str | None:
    """Branch and flavour in a package's name, as ``-570-server``."""
    match = _NAMED_AFTER.search(name)
    return match[0] if match else None


def branch_of(version: str) -> int:
    """The branch of a driver version: 580 of ``580.65.06``."""
    return parse_uint(version.partition(".")[0]) or 0


def driver_version(full: str) -> str:
    """The driver's version in a package's version: without epoch, release and kernel."""
    return upstream_version(full).partition("_k")[0]


def branches_in(names: Iterable[str]) -> set[int]:
    """Branches that package names carry."""
    matches = (_BRANCH_NAME.search(name) for name in names)
    return {int(match.group(1)) for match in matches if match}


def is_member(name: str, version: str) -> bool:
    """An installed package belongs to the driver: it has a driver's version, or is a built module."""
    return re.match(MEMBER_ERE, f"{name}|x|{version}|") is not None


def may_be_member(name: str) -> bool:
    """A package of this name belongs to the driver where it has a driver's version."""
    return is_member(name, "580.65.06")


def any_version_fits(name: str) -> bool:
    """The package works with any driver of the same set: a tool, or modules named after a kernel."""
    return bool(_TOOLS.match(name) or _KERNEL_MODULES.match(name))


def is_display(name: str) -> bool:
    """The package is for graphics and video."""
    return _DISPLAY.match(name) is not None


def is_for_kernel(name: str) -> bool:
    """The package has modules for one kernel, or belongs to them; others follow the newest kernel of a flavour."""
    return _OF_ONE_KERNEL.match(name) is not None


def names_to_query(os_id: str, branches: Iterable[int]) -> tuple[str, ...]:
    """Every package name of every scheme of a distribution, in the branches of interest."""
    names: dict[str, None] = {}
    for scheme in driverschemes.of(os_id):
        numbers = branches if scheme.by_branch else (0,)
        for branch, kind, full in product(numbers, (OPEN, PROPRIETARY), (False, True)):
            for prebuilt in (False, True):
                required = scheme.required(branch, kind, full=full, prebuilt=prebuilt)
                names |= dict.fromkeys((*required, *scheme.extra(branch, kind, display=True)))
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Target:
    """A set of packages to install.

    Args:
        scheme: of the package names.
        version: driver version, the same in all of them.
        module_type: open or proprietary.
        packages: versions by package name, everything that is installed afterwards.
        remove: installed packages of the driver to remove: another branch or module type.
        builds: whether the modules are built on the node by DKMS.
    """

    scheme: str
    version: str
    module_type: str
    packages: dict[str, str]
    remove: tuple[str, ...] = ()
    builds: bool = True


def _is_apart(scheme: Scheme, name: str) -> bool:
    """A tool that the archive of a distribution has at a version of its own, and no package of the driver depends on."""
    return scheme.tools_apart and bool(_TOOLS.match(name))


def _is_of_source(scheme: Scheme, name: str, full: str) -> bool:
    """Up to 580 NVIDIA's repository for Ubuntu and its archive, for desktops, have common names: the build tells whose it is."""
    shared = scheme.os_id == "ubuntu" and "-server" not in name
    return not shared or bool(scheme.prebuilt) == is_for_desktops(name, full)


def release_of(full: str) -> str | None:
    """The release of Ubuntu whose archive a package's version is from, as ``24.04``; ``None`` for NVIDIA's builds."""
    match = _RELEASE.search(full)
    return match[1] if match else None


def source_of(name: str, full: str) -> str | None:
    """Where a package of Ubuntu's was built: the release of its archive, ``archive`` where the version does not tell which; ``None`` for NVIDIA's.

    The archive's first packages for a release have revisions such as NVIDIA's. From 590 on NVIDIA's names have no branch.
    """
    named = _NAMED_AFTER.search(name)
    by_nvidia = named is not None and bool(named[2] or int(named[1]) >= 590)
    return release_of(full) or ("archive" if by_nvidia else None)


def is_for_desktops(name: str, full: str) -> bool:
    """A package of Ubuntu's archive is of its build for desktops: NVIDIA's have names such as these, too."""
    match = _FLAVOUR.fullmatch(name)
    return match is not None and not match["server"] and source_of(name, full) is not None


def is_of_kernel(name: str) -> bool:
    """The package belongs to signed modules of Ubuntu, for one kernel or for the newest."""
    return _KERNEL_MODULES.match(name) is not None


def component(name: str) -> str:
    """The name without the branch: of ``nvidia-fabricmanager-580`` it is ``nvidia-fabricmanager``."""
    return _BRANCH_NAME.sub("", name)


def _is_stale_tool(name: str, build: str, offers: Versions) -> bool:
    """A tool from a repository that is no longer in use, while the one in use has it, too."""
    builds = offers.get(name, ())
    return bool(builds) and build not in builds and _TOOLS.match(name) is not None


def at_version(versions: tuple[str, ...], version: str) -> str | None:
    """The newest build of a driver version among packages' versions."""
    fitting = [build for build in versions if driver_version(build) == version]
    return max(fitting, key=version_key, default=None)


def versions_of(names: tuple[str, ...], available: Versions) -> set[str]:
    """Driver versions at which all packages are available."""
    common: set[str] | None = None
    for name in names:
        have = {driver_version(build) for build in available.get(name, ())}
        common = have if common is None else common & have
    return {version for version in common or () if _VERSION.match(version)}


def complete_set(os_id: str, installed: Mapping[str, str]) -> tuple[Scheme, str, str] | None:
    """Scheme, version and module type of the completely installed set; ``None`` if there is none."""
    single = {name: (version,) for name, version in installed.items()}
    branches = {
        branch_of(driver_version(v))
        for n, v in installed.items()
        if is_member(n, v) and not any_version_fits(n)
    }
    sets = [
        (scheme, branch, module_type)
        for scheme in driverschemes.of(os_id)
        for branch in filter(scheme.has, sorted(branches))
        for module_type in (OPEN, PROPRIETARY)
    ]
    for scheme, branch, module_type in sets:
        for full in (False, True):
            names = scheme.required(branch, module_type, full=full, prebuilt=False)
            versions = versions_of(names, single)
            if versions and _is_of_source(scheme, names[0], installed[names[0]]):
                return scheme, versions.pop(), module_type
    signed = [name for name in installed if name.startswith("linux-modules-nvidia-")]
    for scheme, branch, module_type in sets if signed else ():
        stem = _signed_stem(scheme, branch, module_type)
        if stem is None or not any(map(stem.search, signed)):
            continue
        compute = scheme.required(branch, module_type, full=False, prebuilt=True)
        metapackage = scheme.required(branch, module_type, full=True, prebuilt=False)[-1:]
        if versions := versions_of(compute, single) or versions_of(metapackage, single):
            return scheme, versions.pop(), module_type
    # With prebuilt modules no package builds them.
    modules = min(filter(BUILT_MODULES.match, installed), default="")
    for scheme, branch, module_type in sets if modules else ():
        versions = versions_of((*scheme.compute, modules), single)
        if (
            versions
            and branch_of(max(versions)) == branch
            and ("-open" in modules) == (module_type == OPEN)
        ):
            return scheme, versions.pop(), module_type
    return None


def choices(
    os_id: str, available: Versions, *, full: bool, prebuilt: bool = False
) -> list[tuple[Scheme, str, str]]:
    """Scheme, version and module type of every available set, newest first."""
    sets: list[tuple[Scheme, str, str]] = []
    branches = branches_in(available) | {0}
    for scheme in driverschemes.of(os_id):
        if prebuilt and not scheme.prebuilt:
            continue
        for branch in branches if scheme.by_branch else {0}:
            for module_type in (OPEN, PROPRIETARY):
                names = scheme.required(branch, module_type, full=full, prebuilt=prebuilt)
                for version in versions_of(names, available):
                    number = branch_of(version)
                    build = at_version(available[names[0]], version) or ""
                    if (
                        scheme.has(number)
                        and (module_type == OPEN or number <= LAST_PROPRIETARY)
                        and (prebuilt or _is_of_source(scheme, names[0], build))
                    ):
                        sets.append((scheme, version, module_type))
    return sorted(sets, key=lambda item: version_key(item[1]), reverse=True)


def target(
    scheme: Scheme,
    version: str,
    module_type: str,
    *,
    full: bool,
    installed: Mapping[str, str],
    available: Versions,
    offers: Versions | None = None,
    prebuilt: tuple[str, ...] = (),
    use_prebuilt: bool = False,
    relations: Relations = NO_RELATIONS,
    moves: bool = False,
) -> Target:
    """The set for one choice: what is required and wanted, and everything installed moved along.

    Args:
        installed: packages of the driver that are installed, with their versions.
        available: versions that may be installed, the installed ones among them.
        offers: those that repositories offer; ``None``: all of them.
        prebuilt: kernel releases that need a package with prebuilt modules.
        use_prebuilt: install those instead of building.
        relations: what offers of Ubuntu's archive depend on.
        moves: packages of the same version from another repository are replaced too.
    """
    available = relations.fitting(available, version)
    all_installed = installed
    installed = {
        name: full
        for name, full in all_installed.items()
        if relations.drivers.get((name, full), version) == version
    }
    branch = branch_of(version)
    required = scheme.required(branch, module_type, full=full, prebuilt=use_prebuilt)
    complete = all(driver_version(installed.get(name, "")) == version for name in required)
    complete = complete and not moves
    offers = available if offers is None else offers
    packages: dict[str, str] = {}
    extra = scheme.extra(branch, module_type, display=full and use_prebuilt)
    if complete:
        # Metapackages bring nothing to what is there.
        extra = tuple(name for name in extra if "-headless-" not in name)
    for name in (*required, *extra, *all_installed):
        fitting = at_version(available.get(name, ()), version)
        current = installed.get(name)
        apart = current in offers.get(name, ()) and _is_apart(scheme, name)
        if complete and current is not None and (apart or driver_version(current) == version):
            packages[name] = current
        elif fitting is not None:
            packages[name] = fitting
        elif not complete and current and _is_stale_tool(name, current, offers):
            packages[name] = max(offers[name], key=version_key)
        elif current is not None and any_version_fits(name):
            packages[name] = current
        elif name in extra and _is_apart(scheme, name) and available.get(name):
            packages[name] = max(available[name], key=version_key)
        elif name in all_installed and any_version_fits(name) and available.get(name):
            # A package that follows the newest kernel is no reason to install that kernel.
            fit = [v for v in available[name] if relations.kernel_known(name, v, available)]
            packages.update({name: max(fit, key=version_key)} if fit else {})
        elif current is not None:
            packages.update(_renamed(name, version, available))
    _drop_built(packages, module_type, keep=use_prebuilt)
    _drop_foreign(packages, scheme, branch, module_type, use_prebuilt)
    if use_prebuilt:
        _drop_metapackages(packages, scheme, branch)
    for kernel in prebuilt if use_prebuilt else ():
        names = scheme.built_for(kernel, version, module_type)
        name = _built(names, version, installed, available)
        for alternative in names:
            if alternative != name:
                packages.pop(alternative, None)
        module_builds = available.get(name, ())
        if any_version_fits(name) and module_builds:
            packages[name] = installed.get(name) or max(module_builds, key=version_key)
        elif name not in packages and (fitting := at_version(module_builds, version)) is not None:
            packages[name] = fitting
    # They want their objects and signatures in the same version, and apt takes the newest unless told.
    for name, build in list(packages.items()):
        packages |= dict.fromkeys(relations.together.get((name, build), ()), build)
    for name in _other_type(scheme, branch, module_type, use_prebuilt):
        packages.pop(name, None)
    ordered = dict(sorted(packages.items()))
    removed = tuple(sorted(name for name in all_installed if name not in packages))
    builds = scheme.dkms and not use_prebuilt
    return Target(scheme.name, version, module_type, ordered, removed, builds)


def covers(
    scheme: Scheme,
    version: str,
    module_type: str,
    kernels: Iterable[str],
    available: Versions,
    relations: Relations = NO_RELATIONS,
) -> bool:
    """Whether prebuilt modules of a version are available for all kernels."""
    fitting = relations.fitting(available, version)

    def offered(name: str) -> bool:
        versions = fitting.get(name, ())
        return bool(versions if any_version_fits(name) else at_version(versions, version))

    names = [scheme.built_for(kernel, version, module_type) for kernel in kernels]
    return bool(names) and all(any(map(offered, some)) for some in names)


def _built(
    names: tuple[str, ...], version: str, installed: Mapping[str, str], available: Versions
) -> str:
    """The package with prebuilt modules for one kernel: the installed one, or the first available."""
    present = [n for n in names if driver_version(installed.get(n, "")) == version]
    offered = [n for n in names if at_version(available.get(n, ()), version)]
    return next(iter((*present, *offered, *names)))


def _drop_built(packages: dict[str, str], module_type: str, *, keep: bool) -> None:
    """Drop packages with prebuilt modules that are unwanted or of the other type."""
    for name in [name for name in packages if BUILT_MODULES.match(name)]:
        if not keep or ("-open" in name) != (module_type == OPEN):
            packages.pop(name)


def _signed_stem(scheme: Scheme, branch: int, module_type: str) -> re.Pattern[str] | None:
    """What names of packages with Ubuntu's signed modules of a branch and type have in common."""
    pattern = next(iter(scheme.prebuilt), "")
    if not pattern.startswith("linux-modules-"):
        return None
    stem = scheme.fill(pattern.partition("{k}")[0], branch, module_type == OPEN)
    return re.compile(stem.removeprefix("linux-modules") + "(?!open-|server-)")


def _drop_foreign(
    packages: dict[str, str], scheme: Scheme, branch: int, module_type: str, use_prebuilt: bool
) -> None:
    """Drop what fits any version, but has the files of this set: DKMS refuses to build beside modules that are there.

    Modules of another branch or type go, too, a daemon that NVIDIA's repository for Ubuntu has apart, and packages of
    the other flavour.
    """
    stem = _signed_stem(scheme, branch, module_type)
    # Ubuntu's archive has the daemon in that package, and two would be one too many.
    services = any(name.startswith("nvidia-compute-utils-") for name in packages)
    replaced = "nvidia-persistenced" if scheme.display and services else ""
    server = "-server" in scheme.kernel[0]
    for name in list(packages):
        preserved = use_prebuilt and (
            name.startswith("linux-signatures-") or (stem and stem.search(name))
        )
        modules = _KERNEL_MODULES.match(name) and not preserved
        flavour = (
            _FLAVOUR.fullmatch(name) if scheme.os_id == "ubuntu" and scheme.by_branch else None
        )
        if modules or name == replaced or (flavour and bool(flavour["server"]) != server):
            packages.pop(name)


def _drop_metapackages(packages: dict[str, str], scheme: Scheme, branch: int) -> None:
    """Drop what depends on modules of DKMS, unless a package of the set provides those.

    The one that follows the newest kernel does. Where it is missing, apt would install it together with that kernel.
    """
    signed = (name for name in packages if name.startswith("linux-modules-nvidia-"))
    if all(map(is_for_kernel, signed)):
        for name in scheme.metapackages(branch):
            packages.pop(name, None)


def _renamed(name: str, version: str, available: Versions) -> dict[str, str]:
    """The fabric manager and its like lost the branch in their names with 580, and with rpm a dash; SUSE's have a generation."""
    stem, colon, arch = component(name).partition(":")
    dashed = stem.replace("fabricmanager", "fabric-manager")
    stems = [stem, dashed.replace("fabric-manager", "fabricmanager"), dashed]
    if "-kmp" not in name:
        stems += [stem.replace(*pair) for pair in (("-G06", "-G07"), ("-G07", "-G06"))]
    for base in stems:
        for new in (f"{base}{colon}{arch}", f"{base}-{branch_of(version)}{colon}{arch}"):
            fitting = at_version(available.get(new, ()), version)
            if new != name and fitting is not None:
                return {new: fitting}
    return {}


def _other_type(scheme: Scheme, branch: int, module_type: str, use_prebuilt: bool) -> set[str]:
    other_type = PROPRIETARY if module_type == OPEN else OPEN
    if other_type == PROPRIETARY and branch > LAST_PROPRIETARY:
        return set()
    # NVIDIA's repository and Ubuntu's archive share the names of modules, and not of what depends on them.
    alike = [c for c in driverschemes.of(scheme.os_id) if c.kernel == scheme.kernel]
    names = {
        name
        for candidate in alike
        for full in (False, True)
        for name in (
            *candidate.required(branch, other_type, full=full, prebuilt=False),
            *candidate.extra(branch, other_type),
        )
    }
    suffixed = other_type == OPEN
    names |= {n for c in alike for n in c.metapackages(branch) if n.endswith("-open") == suffixed}
    # Ubuntu's sources of both types conflict, also where nothing is built from them.
    names |= {n.replace("-dkms", "-kernel-source") for n in names if n.startswith("nvidia-dkms")}
    if use_prebuilt:
        names |= {Scheme.fill(name, branch, True) for name in scheme.kernel}
    own_names = {
        n
        for full in (False, True)
        for n in (
            *scheme.required(branch, module_type, full=full, prebuilt=use_prebuilt),
            *scheme.extra(branch, module_type, display=True),
        )
    }
    return names - own_names
