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
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from gpustate import Disruption, Node, Step, ops
from gpustate.bases.fabric import FabricService, FabricServiceState
from gpustate.core.planned import PlannedObservation
from gpustate.documents import JsonView
from gpustate.formats import fabric, fabric_config
from gpustate.formats.fabric import COMPLETE, Topology
from gpustate.probes.package_files import PackageFiles, unit_paths
from gpustate.states.fabric_manager import scripts
from gpustate.states.fabric_manager.scripts import UNIT

CONFIG_PATH = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_MODE = "FABRIC_MODE"
#: Here Fabric Manager has nothing to manage.
_NOTHING = (Topology.NONE.value, Topology.MULTI_NODE.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(FabricService):
    """The service, its package and the fabric, beside the driver that is loaded."""

    mode: str = "0"  # FABRIC_MODE, as the file has it
    fabric: str = ""  # "complete", or what NVML says instead; empty where it says nothing
    nvlsm: bool = False  # the package of the subnet manager is installed
    subnet_manager: bool = False  # it runs


class FabricManagerRunning(FabricServiceState[Observed]):
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
        "fabric": "state of the fabric",
        "subnet_manager": "subnet manager runs",
    }
    implies: ClassVar[Mapping[str, str]] = {"nvlsm": "NVSwitches of NVLink 5 need it"}
    after: ClassVar[tuple[str, ...]] = ("nvlsm",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver", "nvlsm")
    unit: ClassVar[str] = UNIT
    stem: ClassVar[str] = fabric.FABRIC_MANAGER
    reason: ClassVar[str] = "the node has NVSwitches"
    originals: ClassVar[tuple[str, ...]] = (CONFIG_PATH,)
    program_files: ClassVar[PackageFiles | None] = PackageFiles(
        "fabric-manager-files",
        fabric.names(fabric.FABRIC_MANAGER),
        ("/usr/bin/nv-fabricmanager", *unit_paths("nvidia-fabricmanager")),
    )
    restarts: ClassVar[frozenset[str]] = FabricServiceState.restarts | {"subnet_manager"}
    stops: ClassVar[frozenset[str]] = FabricServiceState.stops | {"subnet_manager"}
    cleared: ClassVar[JsonView] = {"kept": False, "subnet_manager": False}
    fact: ClassVar[str] = "fabric_manager"
    config_kinds: ClassVar[Mapping[str, str]] = fabric_config.FABRIC_MANAGER

    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 120

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        facts = super().matrix_facts(planned)
        lacks_nvlsm = facts.get("fabric") == "nvlink5" and not planned.current("nvlsm")
        return facts | ({"nvlsm": "none"} if lacks_nvlsm else {})

    def probe(self, node: Node) -> Observed:
        sight, fields = self.observe_fabric(node)
        text = node.read_text(CONFIG_PATH)
        subnet = node.shell(scripts.SUBNET_MANAGER).stdout.strip() == "running"
        nvlsm = node.packages("nvlsm").get("nvlsm")
        if fields["image"]:
            fields["driver"] = node.shell(scripts.INSTALLED).stdout.strip() or None
        if fields["package"] is not None and text is None:
            row = f"{fields['package']}: {CONFIG_PATH} is missing"
            fields["damaged"] = (*fields["damaged"], row)
        judged = fields["needed"] and not fields["image"]
        return Observed(
            **fields,
            mode=fabric_config.read(text, (_MODE,))[_MODE] or "0",
            fabric=fabric.summary(sight.fabrics) if judged else "",
            nvlsm=nvlsm is not None and nvlsm.installed,
            subnet_manager=subnet,
        )

    def elsewhere(self, observed: Observed) -> Observed:
        # One that runs anyway knows of switches that were not seen; on a rack it cannot.
        stops = observed.topology in _NOTHING and not observed.image
        stops = stops and not (observed.active and observed.topology == Topology.NONE.value)
        return replace(observed, active=False, at_boot=False) if stops else observed

    def settings(self, observed: Observed) -> JsonView:
        return {
            **super().settings(observed),
            "at_boot": observed.at_boot or not observed.image,
            "fabric": COMPLETE if observed.fabric and self._judged(observed) else observed.fabric,
            "subnet_manager": observed.subnet_manager or self._with_subnet_manager(observed),
        }

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
        return observed.idle or None

    def fitting(self, observed: Observed) -> tuple[str, str] | None:
        package = super().fitting(observed)
        # One that is there was installed with what it needs.
        if package is None or package == (observed.package, observed.version):
            return package
        servers = any(name.endswith("-server") for name in observed.driver_packages)
        return package if servers or not fabric.needs_server_build(self.stem, *package) else None

    def unavailable(self, observed: Observed) -> str | None:
        lacking, package = super().unavailable(observed), super().fitting(observed)
        if not lacking or package is None:
            return lacking
        name, version = package
        return (
            f"{name} {version} of Ubuntu's archive needs the driver's packages for servers (-server), and the node has "
            "others; set a branch or version in the state driver that the archive has for servers, or use "
            "NVIDIA's repository in driver-repository"
        )

    def costs(self, observed: Observed) -> Mapping[str, Disruption]:
        runs = observed.active and (self.absent or observed.needed)
        fields = self.restarts | {"damaged", "fabric"}
        return dict.fromkeys(fields, Disruption.DRAIN) if runs else {}

    def restart(self, observed: Observed) -> Step:
        return ops.RestartUnit(UNIT, wait_s=300)  # its unit may take twelve minutes

    def why(self, observed: Observed) -> Mapping[str, str]:
        stops = "no NVSwitches to manage on this node" if not observed.needed else ""
        return {
            "version": f"the driver is {observed.driver}",
            "active": stops or "CUDA fails with error 802 without it",
            "at_boot": stops,
            "config": f"keys of {CONFIG_PATH}",
            "fabric": "CUDA fails with error 802 until it is",
            "subnet_manager": "Fabric Manager's service starts it",
            "kept": f"the original {CONFIG_PATH} is restored",
        }

    def notes(self, observed: Observed) -> Iterator[str]:
        if observed.image or observed.needed:
            return
        if observed.topology == Topology.ELSEWHERE.value:
            yield "the GPUs are in a fabric whose NVSwitches another machine manages: Fabric Manager runs there"
        elif observed.active and observed.topology == Topology.NONE.value:
            yield f"{UNIT} runs although the node has no NVSwitch: left unchanged"

    def start(self, observed: Observed, desired: Observed, moved: frozenset[str]) -> Iterator[Step]:
        yield from super().start(observed, desired, moved)
        label = "wait until the fabric is complete on every GPU"
        if moved & self.restarts:
            if self._judged(observed):
                script, seconds = scripts.wait(self.timeout_s), self.timeout_s + 90
                yield ops.RunLive(script, label, timeout=seconds)
        elif "fabric" in moved:
            script, seconds = scripts.fix(self.timeout_s), self.timeout_s + 900
            label = f"{label}, restarting {UNIT} if needed"
            yield ops.RunLive(script, label, timeout=seconds)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            yield ops.RunLive(
                scripts.first_boot(self.timeout_s),
                "start Fabric Manager on nodes with NVSwitches",
                self.timeout_s + 780,
            )


__all__ = ["CONFIG_PATH", "UNIT", "FabricManagerRunning", "Observed"]
