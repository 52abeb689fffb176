"""Fabric Manager runs, in the driver's version, where NVSwitches connect the GPUs, and nowhere else.

Without it CUDA answers 802 (system not yet initialized) on HGX and DGX boards, although every other
look at the GPUs is fine. In another version than the driver's it refuses to start. On machines without
NVSwitches of their own it must not run: it has nothing to do, exits, and leaves a failed unit behind;
NVIDIA's RPM packages enable it anyway. What a machine is, :mod:`gpustate.formats.fabric` decides; an
image cannot know it: it gets the package, and its first boot enables the service where there are
NVSwitches. A service that runs proves little: the fabric has to be complete, with success, on every GPU.

Surprising: the package carries the driver's branch in its name up to 575 and none from 580 on (Ubuntu's
archive keeps it), and installing it does not start it. On boards of the B200 generation its start
script starts the subnet manager too, in the same service, from a package of its own (state ``nvlsm``). In
the virtualization modes (``FABRIC_MODE`` 1 and 2) GPUs stay "in progress" until a partition is
activated: that is no fault, and nothing is waited for.

Sources:
    NVIDIA Fabric Manager user guide; NVIDIA/gpu-driver-container (which machines, names by branch, pull
    909); NVIDIA/nvtrust#55 (version rule), NVIDIA/gpu-operator#610 (failed unit without a fabric), #2781
    (B200); Azure/AgentBaker#8839 (not on GB200); nvidia-fabricmanager-580 580.178.04, its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.planned import PlannedObservation
from gpustate.formats import fabric, fabric_config
from gpustate.formats.fabric import COMPLETE, Topology
from gpustate.ops import keys
from gpustate.ops.library import original_path
from gpustate.probes import fabric as asking
from gpustate.probes.package_files import PackageFiles, unit_paths
from gpustate.states.fabric_manager import scripts
from gpustate.states.fabric_manager.scripts import UNIT

CONFIG_PATH = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_KEPT = f"{original_path(CONFIG_PATH)}.path"
_NAMES = fabric.names(fabric.FABRIC_MANAGER)
_FILES = PackageFiles(
    "fabric-manager-files",
    _NAMES,
    ("/usr/bin/nv-fabricmanager", *unit_paths("nvidia-fabricmanager")),
)
_MODE = "FABRIC_MODE"
#: Here Fabric Manager has nothing to manage.
_NOTHING = (Topology.NONE.value, Topology.MULTI_NODE.value)


def _checked(config: Mapping[str, str | int | None]) -> Mapping[str, str | None]:
    return fabric_config.validate(config, fabric_config.FABRIC_MANAGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(asking.Follower):
    """The service, its package and the fabric, beside the driver that is loaded."""

    config: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    kept: bool = False  # the configuration as it was before gpustate is kept for giving it back
    mode: str = "0"  # FABRIC_MODE, as the file has it
    fabric: str = ""  # "complete", or what NVML says instead; empty where it says nothing
    nvlsm: bool = False  # the package of the subnet manager is installed
    subnet_manager: bool = False  # it runs
    damaged: tuple[str, ...] = ()  # files that are not as their package brought them


class FabricManagerRunning(State[Observed]):
    """Fabric Manager runs in the version of the loaded driver on machines with NVSwitches, and only there.

    Args:
        hold: hold the package, so that it moves with the driver only.
        config: keys of ``fabricmanager.cfg``, such as ``FABRIC_MODE: 1``, or ``null`` for one without a line; all others
            stay as they are.
        timeout_s: how long the fabric may take to be complete once the service runs.

    Disruption:
        ``DRAIN`` where a Fabric Manager that runs is replaced, restarted or removed: jobs across
        NVLink end.

    Raises:
        PolicyError: Fabric Manager has no such key, or the key no such value.
        StepFailed: it does not start, or the fabric does not come up.
    """

    name: ClassVar[str] = "fabric-manager"
    labels: ClassVar[Mapping[str, str]] = {
        "config": "Fabric Manager's settings",
        "kept": "original configuration is kept",
        "fabric": "state of the fabric",
        "subnet_manager": "subnet manager runs",
    }
    implies: ClassVar[Mapping[str, str]] = {"nvlsm": "NVSwitches of NVLink 5 need it"}
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("nvlsm",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver", "nvlsm")
    predicted: ClassVar[tuple[str, ...]] = ("package", "version")
    follows: ClassVar[str] = "driver"
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "active"
    worst_if: ClassVar[str] = "its version or settings change"

    hold: bool = True
    config: Annotated[Mapping[str, str | int | None], AfterValidator(_checked)] = Field(
        default_factory=dict
    )
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 120

    @property
    def _asked(self) -> Mapping[str, str | None]:
        return _checked(self.config)

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        facts = asking.matrix_facts("fabric_manager", planned)
        lacks_nvlsm = facts.get("fabric") == "nvlink5" and not planned.now("nvlsm")
        return (
            facts
            | {"fabric_manager_runs": planned.value("enabled")}
            | ({"nvlsm": "none"} if lacks_nvlsm else {})
        )

    def pinned(self, observed: Observed) -> Mapping[str, object]:
        return asking.pinned(self.config, observed.config, fabric_config.FABRIC_MANAGER)

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        names = ("nvidia-fabricmanager-{branch}", "nvidia-fabric-manager", "nvidia-fabricmanager")
        return offer.at_driver(offer.chosen.get("driver"), *names)

    def probe(self, node: Node) -> Observed:
        sight = asking.look(node)
        fields = asking.follower(node, sight, fabric.FABRIC_MANAGER, UNIT)
        text = node.read_text(CONFIG_PATH)
        kept = bool(node.stats(_KEPT))
        subnet = node.shell(scripts.SUBNET_MANAGER).stdout.strip() == "running"
        nvlsm, damaged = node.packages("nvlsm").get("nvlsm"), node.query(_FILES)
        if fields["image"]:
            fields["driver"] = node.shell(scripts.INSTALLED).stdout.strip() or None
        if fields["package"] is not None and text is None:
            damaged = (*damaged, f"{fields['package']}: {CONFIG_PATH} is missing")
        judged = fields["needed"] and not fields["image"]
        return Observed(
            **fields,
            config=fabric_config.read(text, self.config),
            kept=kept,
            mode=fabric_config.read(text, (_MODE,))[_MODE] or "0",
            fabric=fabric.summary(sight.fabrics) if judged else "",
            nvlsm=nvlsm is not None and nvlsm.installed,
            subnet_manager=subnet,
            damaged=damaged,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            gone = replace(observed, package=None, version=None, held=False, damaged=())
            return replace(gone, active=False, enabled=False, kept=False, subnet_manager=False)
        if not observed.needed:
            # One that runs anyway knows of switches that were not seen; on a rack it cannot.
            stops = observed.topology in _NOTHING and not observed.image
            stops = stops and not (observed.active and observed.topology == Topology.NONE.value)
            return replace(observed, active=False, enabled=False) if stops else observed
        found = observed.fitting(fabric.FABRIC_MANAGER)
        if found is None:
            return observed
        name, version = found
        return replace(
            observed,
            package=name,
            version=version,
            damaged=(),
            held=self.hold or observed.held,
            active=not observed.image or observed.active,
            enabled=not observed.image or observed.enabled,
            config={**observed.config, **self._asked},
            fabric=COMPLETE if observed.fabric and self._judged(observed) else observed.fabric,
            subnet_manager=observed.subnet_manager or self._with_subnet_manager(observed),
        )

    def _judged(self, observed: Observed) -> bool:
        return str(self.config.get(_MODE, observed.mode) or 0) == "0"

    def _with_subnet_manager(self, observed: Observed) -> bool:
        return observed.topology == Topology.NVLINK5.value and not observed.image

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.needed:
            return None
        branch = fabric.branch(observed.driver)
        if self._with_subnet_manager(observed) and 0 < branch < fabric.NVLINK5_BRANCH:
            return (
                f"the NVSwitches of this board are supported by Fabric Manager from branch {fabric.NVLINK5_BRANCH} on, "
                f"and the driver is {observed.driver}; choose a newer driver"
            )
        if self._with_subnet_manager(observed) and not observed.nvlsm:
            return "the NVSwitches of this board need the subnet manager, and nvlsm is not installed; add the state nvlsm to the policy"
        if observed.idle:
            return observed.idle
        found = observed.fitting(fabric.FABRIC_MANAGER)
        return None if found is None else self._refuse_flavour(observed, *found)

    def _refuse_flavour(self, observed: Observed, name: str, version: str) -> str | None:
        there = (observed.package, observed.version) == (name, version)
        servers = any(one.endswith("-server") for one in observed.driver_packages)
        if there or servers or not fabric.needs_server_build(fabric.FABRIC_MANAGER, name, version):
            return None
        return (
            f"{name} {version} of Ubuntu's archive needs the driver's packages for servers (-server), and the node has "
            "others; set a branch or version in the state driver that the archive has for servers, or use "
            "NVIDIA's repository in driver-repository"
        )

    def plan(self, observed: Observed) -> Plan:
        runs = observed.active and (self.absent or observed.needed)
        cost = Disruption.DRAIN if runs else Disruption.NONE
        moves = ("package", "version", "damaged", "config", "fabric", "subnet_manager")
        stops = "no NVSwitches to manage on this node" if not observed.needed else ""
        unavailable = observed.unavailable(fabric.FABRIC_MANAGER, "the node has NVSwitches")
        return diff(
            observed,
            self.desired(observed),
            costs={
                **dict.fromkeys(moves, cost),
                "active": cost if self.absent else Disruption.NONE,
            },
            why={
                "version": f"the loaded driver is {observed.driver}",
                "active": stops or "CUDA fails with error 802 without it",
                "enabled": stops,
                "config": f"keys of {CONFIG_PATH}",
                "fabric": "CUDA fails with error 802 until it is",
                "subnet_manager": "Fabric Manager's service starts it",
                "kept": f"the original {CONFIG_PATH} is restored",
            },
            notes=tuple(self._notes(observed)),
            refusal=None if self.absent else unavailable,
        )

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent or observed.image or observed.needed:
            return
        if observed.topology == Topology.ELSEWHERE.value:
            yield "the GPUs are in a fabric whose NVSwitches another machine manages: Fabric Manager runs there"
        elif observed.active and observed.topology == Topology.NONE.value:
            yield f"{UNIT} runs although the node has no NVSwitch: left unchanged"

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted, moved = self.desired(observed), plan.fields
        if self.absent or not observed.needed:
            yield from self._stop(observed, moved)
            return
        if moved & {"package", "version"} and wanted.package and wanted.version:
            if observed.package is None:
                yield ops.KeepOriginal(CONFIG_PATH)
            yield ops.install(
                observed.manager,
                ((wanted.package, wanted.version),),
                hold=wanted.held,
                remove=tuple(filter(None, {observed.package} - {wanted.package})),
            )
        elif "held" in moved and wanted.package:
            yield ops.hold(observed.manager, (wanted.package,))
        if observed.package and "damaged" in moved:
            there = {observed.package: observed.version}
            after = {wanted.package or "": wanted.version}
            yield from ops.reinstall(
                observed.manager, observed.damaged, there, after, hold=self.hold
            )
        # A new package may bring the file anew.
        if self.config and moved & {"config", "package", "version"}:
            yield keys.set_keys(CONFIG_PATH, self._asked)
        if "enabled" in moved:
            yield ops.EnableUnit(UNIT, now=False)
        what = "wait until the fabric is complete on every GPU"
        if moved & {"active", "package", "version", "config", "subnet_manager"}:
            # Its unit may take twelve minutes to start.
            yield ops.RestartUnit(UNIT, wait_s=300)
            if self._judged(observed):
                yield ops.Run(
                    scripts.wait(self.timeout_s), what, timeout=self.timeout_s + 90, running=True
                )
        elif "fabric" in moved:
            label = f"{what}, restarting {UNIT} if needed"
            yield ops.Run(
                scripts.fix(self.timeout_s), label, timeout=self.timeout_s + 900, running=True
            )

    def _stop(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        if moved & {"active", "enabled", "subnet_manager"}:
            yield ops.DisableUnit(UNIT)
        if moved & {"package", "held"} and observed.package:
            yield ops.remove(observed.manager, (observed.package,))
        if "kept" in moved:
            yield ops.RestoreOriginal(CONFIG_PATH)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            yield ops.Run(
                scripts.first_boot(self.timeout_s),
                "start Fabric Manager on nodes with NVSwitches",
                self.timeout_s + 780,
                running=True,
            )


__all__ = ["CONFIG_PATH", "UNIT", "FabricManagerRunning", "Observed"]
