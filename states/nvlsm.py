"""The NVLink subnet manager can run on boards of the B200 generation: package, and kernel modules.

The NVSwitches of such a board are reached like an InfiniBand subnet, through management functions of
ConnectX-7 cards. ``nvlsm``, a subnet manager of its own, has to run before Fabric Manager routes them;
without it CUDA answers 802 for ever, and nothing else looks wrong.

Surprising: it is not a service. Fabric Manager's start script starts it, in Fabric Manager's service, and
refuses to when ``ib_umad`` is not loaded, which nothing loads by itself. So this state brings what the
script needs, and the state ``fabric-manager`` sees to it that it runs. Its version is a date and has
nothing to do with the driver's.

Sources:
    NVIDIA/gpu-operator#2781; spectrocloud/CanvOS pull 700 (ib_umad); nvidia-fabricmanager-580
    580.178.04, nvidia-fabricmanager-start.sh; NVIDIA driver installation guide r615 (package).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.packages import Offer, StatePackages, fitting_version, not_offered
from gpustate.core.parameter_types import PackageVersion
from gpustate.core.planned import PlannedObservation
from gpustate.documents import JsonView
from gpustate.formats import fabric
from gpustate.formats.fabric import NVLSM
from gpustate.probes import fabric as asking

MODULES = ("mlx5_ib", "ib_umad")
LOAD_PATH = "/etc/modules-load.d/gpustate-nvlsm.conf"
_LOAD_TEXT = (
    "# Written by gpustate; changes are overwritten. required by Fabric Manager's start script.\n"
    + "".join(f"{module}\n" for module in MODULES)
)
#: Of the modules that are needed where NVSwitches are behind a card, those the running kernel has no file for and
#: has not built in.
_MISSING = (
    asking.COUNT_BRIDGES
    + '[ "$n" = 0 ] || [ -n "${GPUSTATE_IMAGE-}" ] || for m in '
    + " ".join(MODULES)
    + '; do modinfo -n "$m" >/dev/null 2>&1 || echo "$m"; done; :'
)


@dataclass(frozen=True, slots=True)
class Observed:
    """The package and the modules, beside what decides whether they are needed."""

    topology: str
    needed: bool = False
    version: str | None = None  # of the installed package
    offered: tuple[str, ...] = ()  # versions that repositories offer, best first
    held: bool = False
    load_text: str | None = None  # what is loaded at boot
    loaded: tuple[str, ...] = ()  # of MODULES
    missing: tuple[str, ...] = ()  # modules that the running kernel does not have
    image: bool = False
    manager: str = "apt"
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins


class SubnetManagerInstalled(State[Observed]):
    """The NVLink subnet manager and the modules it wants are there on boards of the B200 generation.

    Args:
        version: exact version, ``2025.10.11`` or ``2025.10.11-1``. Not given: what is installed, or
            the newest that the repositories offer where nothing is.
        hold: hold the package.

    Disruption:
        ``NONE`` while it comes. ``DRAIN`` where the package is replaced or removed.

    Raises:
        StepFailed: the package cannot be installed, or the kernel takes no module.
    """

    name: ClassVar[str] = "nvlsm"
    labels: ClassVar[Mapping[str, str]] = {"loaded": "loaded modules"}
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("version",)
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "version"
    worst_if: ClassVar[str] = "its version changes"

    version: PackageVersion | None = None
    hold: bool = True

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        loaded = planned.value("loaded")
        ib_umad = "ib_umad" in loaded if isinstance(loaded, tuple) else None
        return asking.matrix_facts("nvlsm", planned) | {"ib_umad": ib_umad}

    def pinned(self, observed: Observed) -> JsonView:
        return {"version": observed.version} if observed.version else {}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(NVLSM)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        sight = asking.observe(node)
        package = node.packages(NVLSM).get(NVLSM)
        offered = node.candidates(NVLSM).get(NVLSM, ())
        load_text = node.own_text(LOAD_PATH)
        loaded = node.modules()
        missing = node.shell(_MISSING).stdout.split()
        installed = package is not None and package.installed
        if facts.image:
            needed = fabric.may_need(sight.gpu_ids, NVLSM)
        else:
            needed = NVLSM in sight.topology.packages
        return Observed(
            topology=sight.topology.value,
            needed=needed,
            version=package.version if package and installed else None,
            offered=tuple(candidate.version for candidate in offered),
            forbidden=node.forbidden(NVLSM),
            held=package.held if package and installed else False,
            load_text=load_text,
            loaded=tuple(module for module in MODULES if module in loaded),
            missing=tuple(module for module in missing if module not in loaded) if needed else (),
            image=facts.image,
            manager=facts.package_manager,
        )

    def _target(self, observed: Observed) -> str | None:
        return fitting_version(self.version, observed.version, observed.offered)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            # Modules may serve others by now: they stay until the next boot.
            return replace(observed, version=None, held=False, load_text=None)
        target = self._target(observed)
        if not observed.needed or target is None:
            return observed
        return replace(
            observed,
            version=target,
            held=self.hold or observed.held,
            load_text=_LOAD_TEXT,
            loaded=observed.loaded if observed.image else MODULES,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.needed or not observed.missing:
            return None
        return (
            f"the running kernel has no module {' and no '.join(observed.missing)}, through which the NVSwitches are "
            "reached: install it (on Ubuntu linux-modules-extra of this kernel, or an OFED)"
        )

    def _unavailable(self, observed: Observed) -> str | None:
        if self.absent or not observed.needed or self._target(observed) is not None:
            return None
        advice = "use NVIDIA's repository or a mirror of it (Ubuntu's archive does not have it)"
        package = f"{NVLSM} {self.version or ''}"
        lacking = not_offered(package, observed.offered, advice, observed.forbidden)
        return f"the NVSwitches of this board need the subnet manager, and {lacking}"

    def plan(self, observed: Observed) -> Plan:
        replaces = observed.version is not None and observed.needed
        return diff(
            observed,
            self.desired(observed),
            costs={"version": Disruption.DRAIN if replaces else Disruption.NONE},
            why={
                "version": "Fabric Manager starts it" if not self.absent else "",
                "loaded": "required by Fabric Manager's start script",
            },
            paths={"load_text": LOAD_PATH},
            refusal=self._unavailable(observed),
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if self.absent:
            if "load_text" in plan.fields:
                yield ops.RemoveOwn(LOAD_PATH)
            if plan.fields & {"version", "held"}:
                yield ops.remove(observed.manager, (NVLSM,))
            return
        if "load_text" in plan.fields:
            yield ops.PutText(LOAD_PATH, _LOAD_TEXT, mode=0o644)
        if "loaded" in plan.fields:
            yield ops.LoadModules(MODULES)
        if "version" in plan.fields and desired.version:
            yield ops.install(observed.manager, ((NVLSM, desired.version),), hold=self.hold)
        elif "held" in plan.fields:
            yield ops.hold(observed.manager, (NVLSM,))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and observed.needed:
            yield ops.LoadModules(MODULES, optional=True)
