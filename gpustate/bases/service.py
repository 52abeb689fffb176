"""The bases of states that run a vendor's service: packages, unit, files of gpustate's own, hold, removal.

A subclass reads what is its own, says what is wanted, and adds what only its service needs. Everything that such states
would repeat is here: the order of steps, what restarts the service and what that costs, and the way back.

Surprising: the packages of some services are to have the driver's version, and carry its branch in their name or not
(:func:`gpustate.formats.fabric.fitting`). What the driver will be, a plan of both tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from gpustate.core.change import Disruption, Plan
from gpustate.core.node import Node
from gpustate.core.packages import Offer, StatePackages, not_offered
from gpustate.core.state import State, diff
from gpustate.core.step import Step
from gpustate.documents import Json, JsonView
from gpustate.formats import dpkg, fabric, systemd
from gpustate.formats.dpkg import Package
from gpustate.ops import families
from gpustate.ops.steps import RemoveOwn, put_own
from gpustate.ops.units import DaemonReload, DisableUnit, EnableUnit, RestartUnit
from gpustate.probes.package_files import PackageFiles

_PACKAGES = frozenset({"package", "version", "packages", "old"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObservation:
    """A service, and what its packages could be."""

    needed: bool = True  # this node is to have it
    offered: tuple[tuple[str, str], ...] = ()  # name and version that repositories offer
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])
    # packages with versions that foreign pins forbid: the file of these
    damaged: tuple[str, ...] = ()  # files that are not as their packages brought them
    active: bool = False
    at_boot: bool = False
    systemd: bool = True  # it runs, or will in what boots the image
    image: bool = False  # a root to be baked
    manager: str = "apt"

    @property
    def installed(self) -> Mapping[str, str]:
        """Name and version of each of its packages, those included that are to leave."""
        return {}

    @property
    def all_held(self) -> bool:
        """These are on hold."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedService(ServiceObservation):
    """A service of one package."""

    package: str | None = None  # name of the installed package
    version: str | None = None  # its full package version
    held: bool = False

    @property
    def installed(self) -> Mapping[str, str]:
        return {self.package: self.version} if self.package and self.version else {}

    @property
    def all_held(self) -> bool:
        return self.held


def package_fields(packages: Mapping[str, Package]) -> Json:
    """The fields of :class:`PackagedService` that the first installed one of some packages decides."""
    package = next((row for row in packages.values() if row.installed), None)
    return {
        "package": package and package.name,
        "version": package and package.version,
        "held": package is not None and package.held,
    }


S = TypeVar("S", bound=ServiceObservation)


class ServiceState(State[S], Generic[S]):
    """A vendor's service runs now and at boot, with its packages at the wanted version.

    Class attributes:
        unit: its unit. MUST be set.
        files: fields of the observation with the text of a file of gpustate's own, and the paths.
        reloads: fields after whose change systemd reads its unit files again.
        restarts: fields whose change restarts the service, at the cost of :attr:`worst` where it runs.
        stops: fields that a removal changes by stopping it.
        program_files: files of its packages that are restored where they are damaged.
        install_s: seconds that its packages may take to install.
    """

    unit: ClassVar[str] = ""
    files: ClassVar[Mapping[str, str]] = {}
    reloads: ClassVar[frozenset[str]] = frozenset({"drop_in"})
    restarts: ClassVar[frozenset[str]] = frozenset({*_PACKAGES, "damaged", "drop_in", "active"})
    stops: ClassVar[frozenset[str]] = frozenset({"active", "at_boot"})
    program_files: ClassVar[PackageFiles | None] = None
    install_s: ClassVar[int] = 3600
    disturbs: ClassVar[str] = "active"
    worst_if: ClassVar[str] = "its version or settings change"

    @property
    def own_units(self) -> tuple[str, ...]:
        return (self.unit,)

    def costs(self, observed: S) -> Mapping[str, Disruption]:
        """MAY: what a change of each field costs this node."""
        return dict.fromkeys(self.restarts, self.worst) if observed.active else {}

    def why(self, observed: S) -> Mapping[str, str]:
        """MAY: half a sentence for fields of a plan."""
        return {}

    def notes(self, observed: S) -> Iterator[str]:
        """MAY: what a plan notes. Not called where it is removed."""
        return iter(())

    def unavailable(self, observed: S) -> str | None:
        """MAY: that no repository offers the packages. Not called where it is removed."""
        return None

    def restart(self, observed: S) -> Step:
        """MAY: the step that restarts it, with what shows that it works."""
        return RestartUnit(self.unit)

    def read(self, node: Node, *names: str) -> Json:
        """The fields of :class:`ServiceObservation` and of :attr:`files`; ``names``: packages that may be offered."""
        facts, candidates = node.facts(), node.candidates(*names) if names else {}
        service = node.units(self.unit).get(self.unit)
        return {
            **{name: node.own_text(path) for name, path in self.files.items()},
            "offered": tuple((n, row.version) for n, rows in candidates.items() for row in rows),
            "forbidden": node.forbidden(*names) if names else {},
            "damaged": node.query(self.program_files) if self.program_files else (),
            "active": service is not None and service.active,
            "at_boot": service is not None and service.enabled,
            "systemd": facts.systemd or facts.image,
            "image": facts.image,
            "manager": facts.package_manager,
        }

    def refuse(self, observed: S) -> str | None:
        if self.absent or observed.systemd:
            return None
        return f"no systemd to run {self.unit.removesuffix('.service')}; exclude the node from this state with only="

    def plan(self, observed: S) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            costs=self.costs(observed),
            why=self.why(observed),
            paths=self.files,
            notes=() if self.absent else tuple(self.notes(observed)),
            refusal=None if self.absent else self.unavailable(observed),
        )

    def apply(self, observed: S, plan: Plan) -> Iterator[Step]:
        desired, moved = self.desired(observed), plan.fields
        if moved and (self.absent or not observed.needed):
            yield from self.remove(observed, moved)
        elif moved:
            for steps in (self.install, self.configure, self.start):
                yield from steps(observed, desired, moved)

    def install(self, observed: S, desired: S, moved: frozenset[str]) -> Iterator[Step]:
        """MAY: the packages, their hold, and files of theirs that are damaged."""
        before, after, hold = observed.installed, desired.installed, desired.all_held
        if after and moved & _PACKAGES:
            yield families.install(
                observed.manager,
                tuple(after.items()),
                hold=hold,
                remove=tuple(name for name in before if name not in after),
                timeout=self.install_s,
            )
        elif after and "held" in moved:
            yield families.hold(observed.manager, tuple(after))
        if "damaged" in moved:
            yield from families.reinstall(
                observed.manager, observed.damaged, before, after, hold=hold
            )

    def configure(self, observed: S, desired: S, moved: frozenset[str]) -> Iterator[Step]:
        """MAY: the files."""
        for name, path in self.files.items():
            if name in moved:
                yield put_own(path, getattr(desired, name))
        if moved & self.reloads:
            yield DaemonReload()

    def start(self, observed: S, desired: S, moved: frozenset[str]) -> Iterator[Step]:
        """MAY: the service, at boot and now."""
        if "at_boot" in moved:
            yield EnableUnit(self.unit, now=False)
        if moved & self.restarts:
            yield self.restart(observed)

    def remove(self, observed: S, moved: frozenset[str]) -> Iterator[Step]:
        """MAY: everything, also where this node is not to have the service."""
        if moved & self.stops:
            yield DisableUnit(self.unit)
        yield from (RemoveOwn(path) for name, path in self.files.items() if name in moved)
        if moved & self.reloads:
            yield DaemonReload()
        if moved & {*_PACKAGES, "held"} and observed.installed:
            yield families.remove(observed.manager, tuple(observed.installed))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverService(PackagedService):
    """A service whose package has the driver's version."""

    driver: str | None = None  # its version: of the loaded one; in an image, of the installed one
    driver_packages: Mapping[str, str] = field(default_factory=dict[str, str])
    idle: str = ""  # why the service runs nothing: a foreign drop-in


D = TypeVar("D", bound=DriverService)


class DriverServiceState(ServiceState[D], Generic[D]):
    """A service runs in a package that has the version of the driver.

    Class attributes:
        stem: name of its package, without the branch of the driver that some repositories put behind it. MUST be set.
        reason: why a node needs it, for messages.
        cleared: further fields as they are once it is removed.

    Args:
        hold: hold the package, so that it moves with the driver only.
    """

    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("package", "version")
    follows: ClassVar[tuple[str, ...]] = ("driver", "driver_packages")
    essential: ClassVar[bool] = True
    stem: ClassVar[str] = ""
    reason: ClassVar[str] = "the policy has it"
    cleared: ClassVar[JsonView] = {}

    hold: bool = True

    def settings(self, observed: D) -> JsonView:
        """MAY: what fields of its own should be where the service runs, :attr:`files` among them."""
        return {}

    def elsewhere(self, observed: D) -> D:
        """MAY: what is wanted of a node that is not to have it."""
        return observed

    def required_packages(self, offer: Offer, observed: D | None) -> StatePackages:
        names = (f"{self.stem}-{{branch}}", *reversed(fabric.names(self.stem)))
        return offer.at_driver(offer.chosen.get("driver"), *names)

    def read(self, node: Node, *names: str) -> Json:
        names = (*fabric.names(self.stem), *names)
        packages = node.packages(*names, "libcuda1", "libnvidia-compute*")
        own_packages = {name: row for name, row in packages.items() if name in names}
        return {
            **super().read(node, *names),
            **package_fields(own_packages),
            "driver": fabric.loaded_version(node.read_text("/proc/driver/nvidia/version")),
            "driver_packages": {
                n: r.version for n, r in packages.items() if r.installed and n not in own_packages
            },
            "idle": systemd.runs_nothing(node.drop_ins(self.unit), self.unit),
        }

    def fitting(self, observed: D) -> tuple[str, str] | None:
        """The package that has the driver's version: the installed one, else an offered one.

        None of another origin takes the place of one that a foreign pin forbids.
        """
        driver, packages = observed.driver, observed.driver_packages
        installed = fabric.fitting(self.stem, driver, observed.installed.items(), packages)
        pinned = [
            (name, version)
            for name, _, version in (row.partition(" ") for row in observed.forbidden)
        ]
        rows = (*observed.offered, *pinned)
        best = installed or fabric.fitting(self.stem, driver, rows, packages)
        return best if installed or best not in pinned else None

    def forbidden(self, observed: D) -> dict[str, str]:
        """Packages of the driver's version that foreign pins forbid: the file of these."""
        return {
            package: path
            for package, path in observed.forbidden.items()
            if dpkg.upstream_version(package.partition(" ")[2]) == observed.driver
        }

    def desired(self, observed: D) -> D:
        if self.absent:
            removed = replace(observed, package=None, version=None, held=False, damaged=())
            texts: Json = dict.fromkeys(self.files)
            return replace(removed, active=False, at_boot=False, **texts, **self.cleared)
        package = self.fitting(observed) if observed.needed else None
        if package is None:
            return observed if observed.needed else self.elsewhere(observed)
        fields: Json = {
            "package": package[0],
            "version": package[1],
            "damaged": (),
            "held": self.hold or observed.held,
            "active": observed.active or not observed.image,
            "at_boot": True,
        }
        return replace(observed, **{**fields, **self.settings(observed)})

    def refuse(self, observed: D) -> str | None:
        needed = observed.needed and not self.absent
        return (super().refuse(observed) or observed.idle or None) if needed else None

    def unavailable(self, observed: D) -> str | None:
        if not observed.needed or self.fitting(observed) is not None:
            return None
        if observed.driver is None:
            return f"{self.reason} and no driver is loaded; add the state driver to the policy"
        advice = "use a repository that has it (NVIDIA's own, or a mirror of it)"
        if observed.image:
            advice = f"name the GPUs (--gpu) if those of the image do not need it, or {advice}"
        package = f"{self.stem} {observed.driver}, the driver's version"
        return f"{self.reason}, and {not_offered(package, (), advice, self.forbidden(observed))}"
