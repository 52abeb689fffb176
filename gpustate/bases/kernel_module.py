"""The base of states that install a kernel module which DKMS builds against the NVIDIA driver.

A subclass names its packages, reads what is its own, and refuses what its module does not work with. The rest is here:
packages of one version, the module built for the driver and loaded now and at boot, and the removal of all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from gpustate.core.change import Disruption, Plan
from gpustate.core.node import Node
from gpustate.core.packages import Offer, StatePackages, not_offered
from gpustate.core.parameter_types import OptionalVersion
from gpustate.core.state import State, diff
from gpustate.core.step import Step
from gpustate.documents import Json, JsonView
from gpustate.formats import dpkg
from gpustate.formats.rpm import is_rpm
from gpustate.ops import kmod, owned_packages
from gpustate.ops.steps import PutText, RemoveOwn
from gpustate.probes.kernel_modules import KernelModuleQuery, Kmod


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleObservation:
    """Packages and module of a component, beside the driver that is loaded."""

    packages: Mapping[str, str] = field(default_factory=dict[str, str])  # name: version
    autoload_text: str | None = None
    loaded: str | None = None  # version in the running kernel
    built: str | None = None  # version on disk for that kernel
    stale: bool = False  # the loaded build differs from the one on disk
    brought: str | None = None
    offered: tuple[tuple[str, tuple[str, ...]], ...] = ()
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins
    driver: str | None = None  # its version or kind; None: none is loaded
    kernel: str = ""
    image: bool = False
    manager: str = "apt"


M = TypeVar("M", bound=ModuleObservation)


class KernelModuleState(State[M], Generic[M]):
    """A kernel module is installed at one version, built for the driver, and loaded now and at boot.

    Class attributes:
        product: what the module belongs to, for messages. MUST be set.
        module: its name, and that of its sources in DKMS. MUST be set.
        deb, rpm: names of its packages, that of the module first. MUST be set.
        advice: half a sentence on where packages are that no repository offers.
        beside: fields that change without a load of the module.

    Args:
        version: of the packages; empty: what is installed stays, and a node without it gets the newest that is offered.
        required: refuse a node for which no repository offers it; else leave it alone.
    """

    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("packages",)
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "loaded"
    worst_if: ClassVar[str] = "its module is rebuilt for the driver"
    product: ClassVar[str] = ""
    module: ClassVar[str] = ""
    deb: ClassVar[tuple[str, ...]] = ()
    rpm: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[str] = "use NVIDIA's repository (state driver-repository), or another version"
    beside: ClassVar[frozenset[str]] = frozenset({"autoload_text"})

    version: OptionalVersion = ""
    required: bool = True

    def names(self, manager: str) -> tuple[str, ...]:
        """MAY: packages that have to be installed, all of one version."""
        return self.rpm if is_rpm(manager) else self.deb

    def extras(self) -> tuple[tuple[str, str], ...]:
        """MAY: packages and versions that come with the others, of another version."""
        return ()

    def working(self, observed: M, version: str) -> M:
        """MAY: the observation once the module of that version works beside the loaded driver."""
        return replace(observed, loaded=version, built=version, stale=False)

    def without(self, observed: M) -> M:
        """MAY: the observation once the module is unloaded and removed."""
        return replace(observed, loaded=None, built=None, stale=False)

    def finish(self, plan: Plan, desired: M) -> Iterator[Step]:
        """MAY: steps that follow the load of the module, or its unload where it is removed."""
        return iter(())

    @property
    def autoload_path(self) -> str:
        """The file that has the module loaded at boot."""
        return f"/etc/modules-load.d/gpustate-{self.module}.conf"

    @property
    def autoload_text(self) -> str:
        """The text of that file."""
        return f"# Written by gpustate (state {self.name}); changes are undone by the next apply.\n{self.module}\n"

    def pinned(self, observed: M) -> JsonView:
        version = observed.packages.get(self.names(observed.manager)[0])
        return {"version": dpkg.upstream_version(version)} if version else {}

    def required_packages(self, offer: Offer, observed: M | None) -> StatePackages:
        return offer.optional(*self.names(offer.facts.package_manager))

    def read(self, node: Node, *more: str) -> tuple[Kmod, Json]:
        """The module, and the fields of :class:`ModuleObservation` but the driver; ``more``: packages beside :attr:`deb`."""
        facts = node.facts()
        names = dict.fromkeys((*self.deb, *more, *self.rpm))
        packages, offered = node.packages(*names), node.candidates(*names)
        module = node.query(KernelModuleQuery(self.module, self.module))
        # A package of one family may have the name of something else in the other.
        own_names = self.rpm if is_rpm(facts.package_manager) else (*self.deb, *more)
        return module, {
            "packages": {p.name: p.version for p in packages.values() if p.installed and p.name in own_names},
            "autoload_text": node.own_text(self.autoload_path),
            "loaded": "without a version" if module.loaded == "" else module.loaded,
            "built": module.version_on_disk,
            "brought": node.read_text(owned_packages.record_path(self.name)),
            "offered": tuple((n, tuple(row.version for row in rows)) for n, rows in offered.items() if n in own_names),
            "forbidden": node.forbidden(*names),
            "kernel": facts.kernel,
            "image": facts.image,
            "manager": facts.package_manager,
        }  # fmt: skip

    def versions(self, observed: M) -> dict[str, str]:
        """Package versions that are wanted, all of one upstream version; empty where they are not to be had."""
        offered, names = dict(observed.offered), self.names(observed.manager)
        have = {
            name: (*filter(None, (observed.packages.get(name),)), *offered.get(name, ()))
            for name in names
        }
        for version in have[names[0]]:
            upstream = dpkg.upstream_version(version)
            fits = {n: [v for v in have[n] if dpkg.upstream_version(v) == upstream] for n in names}
            if self.version in ("", version, upstream) and all(fits.values()):
                return {**{name: rows[0] for name, rows in fits.items()}, names[0]: version}
        return {}

    def _owns(self, observed: M) -> bool:
        return bool(observed.packages) or (observed.brought, observed.autoload_text) != (None, None)

    def desired(self, observed: M) -> M:
        if self.absent:
            removed = replace(observed, packages={}, autoload_text=None, brought=None)
            return self.without(removed) if self._owns(observed) else removed
        versions = self.versions(observed)
        if not versions:
            return observed
        names = self.names(observed.manager)
        extra = {name: v for name, v in observed.packages.items() if name not in names}
        desired = replace(observed, packages=extra | versions, autoload_text=self.autoload_text)
        if observed.driver is None or observed.image:
            return desired
        return self.working(desired, dpkg.upstream_version(versions[names[0]]))

    def _unavailable(self, observed: M) -> str | None:
        if self.absent or self.versions(observed) or not self.required:
            return None
        names = self.names(observed.manager)
        product = f"{' and '.join(names)} of {self.product} {self.version}"
        offered = dict(observed.offered).get(names[0], ())
        return not_offered(product, offered, self.advice, observed.forbidden)

    def plan(self, observed: M) -> Plan:
        notes: tuple[str, ...] = ()
        if not self.absent and not self.versions(observed):
            notes = (f"no repository offers {self.names(observed.manager)[0]}: nothing to do",)
        elif not self.absent and observed.driver is None and not observed.image:
            notes = (f"no driver is loaded: {self.module} is installed and not loaded",)
        cost = Disruption.DRAIN if observed.loaded else Disruption.NONE
        return diff(
            observed,
            self.desired(observed),
            costs=dict.fromkeys(("packages", "built", "stale", "loaded"), cost),
            why=self.why(observed),
            paths={"autoload_text": self.autoload_path},
            notes=notes,
            refusal=self._unavailable(observed),
        )

    def why(self, observed: M) -> Mapping[str, str]:
        """MAY: half a sentence for each field of a plan that needs one."""
        return {"stale": "the loaded build differs from the one on disk"}

    def apply(self, observed: M, plan: Plan) -> Iterator[Step]:
        desired, moved = self.desired(observed), plan.fields
        replaced = {"packages", "built", "stale", "loaded"} if not self.absent else {"loaded"}
        if observed.loaded and moved & replaced:
            yield kmod.unload(self.module.replace("-", "_"), f"programs that use {self.product}")
        if self.absent:
            yield from self.finish(plan, desired)
            if "autoload_text" in moved:
                yield RemoveOwn(self.autoload_path)
            if moved & {"packages", "brought", "built"}:
                roots = tuple(sorted(observed.packages))
                yield owned_packages.take_back(self.name, roots, manager=observed.manager)
            return
        version = dpkg.upstream_version(desired.packages.get(self.names(observed.manager)[0], ""))
        if "packages" in moved:
            packages = tuple(
                (n, v) for n, v in desired.packages.items() if observed.packages.get(n) != v
            )
            yield owned_packages.bring(
                self.name, (*packages, *self.extras()), dkms=(self.module,), manager=observed.manager
            )  # fmt: skip
        elif "built" in moved:
            yield kmod.rebuild(self.module, version, observed.kernel, self.module)
        if "autoload_text" in moved:
            yield PutText(self.autoload_path, self.autoload_text, mode=0o644)
        if desired.loaded is not None and moved - self.beside:
            yield kmod.load(self.module, version, self.module)
        yield from self.finish(plan, desired)
