"""The RDMA stack of NVIDIA (OFED) is the one that runs, before a driver is built against it.

OFED (MLNX_OFED, today DOCA-OFED) replaces the kernel's modules for network cards. What is built
against it (nvidia-peermem, nvidia-fs) fits one version of it: so it comes before the driver, and what
is loaded has to be what lies on disk. A node on which OFED was upgraded and not restarted builds
modules for a stack that does not run.

Surprising: restarting the stack (``openibd restart``) takes the network down, and with it what holds
storage over it; so the stack on disk is taken up by a reboot, which is planned, not by a restart,
which is not.

Sources:
    NVIDIA/cloud-native-docs, gpu-operator/gpu-operator-rdma.rst; NVIDIA DOCA installation guide
    (the metapackage doca-ofed); NVIDIA/gpu-operator#2868 (order of OFED and driver).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.packages import Offer, StatePackages, fitting_version, not_offered
from gpustate.core.parameter_errors import pattern
from gpustate.core.planned import PlannedObservation
from gpustate.documents import JsonView
from gpustate.ops import owned_packages
from gpustate.probes.rdma import RdmaQuery

#: What DKMS calls OFED's sources in Debian's packages, and in those of rpm.
_DKMS = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")


@dataclass(frozen=True, slots=True)
class Observed:
    """The stack on disk and the one that runs."""

    version: str | None = None  # of the package of the policy
    stale: tuple[
        str, ...
    ] = ()  # core modules of which the loaded build differs from the one on disk
    brought: str | None = None  # names that came with the package
    offered: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    ofed: str | None = None
    image: bool = False
    manager: str = "apt"
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins


class OfedInstalled(State[Observed]):
    """OFED is installed where it is asked for, and what is installed is what runs.

    Args:
        package: what brings it, ``doca-ofed`` in NVIDIA's DOCA repository; empty: nothing is
            installed, and an OFED that is there is only looked at.
        version: exact version of the package, also an older one than the newest: what it needs comes at
            the version that belongs to it; empty: what is installed stays, and a node without it gets
            the newest that is offered.
        reboot_timeout_s: how long the node may take to come back from a reboot, in seconds.

    Disruption:
        ``REBOOT`` where another stack runs than the one on disk: network cards are driven by it.
    """

    name: ClassVar[str] = "ofed"
    labels: ClassVar[Mapping[str, str]] = {"stale": "modules of another OFED"}
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    before: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.REBOOT

    package: Annotated[
        str, pattern(r"^([a-z0-9][a-z0-9._+-]*)?$", "the name of a package, or an empty text")
    ] = ""
    version: Annotated[
        str,
        pattern(
            r"^([0-9A-Za-z][0-9A-Za-z.+:~-]*)?$", "a version such as 24.10-1, or an empty text"
        ),
    ] = ""
    reboot_timeout_s: Annotated[int, Field(ge=60)] = 900

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        # ofed_info counts as MLNX_OFED does, also where DOCA-OFED is installed.
        version = planned.version("ofed") if not self.package else None
        return {"ofed": version, "ofed_kind": "mlnx" if version else None}

    def pinned(self, observed: Observed) -> JsonView:
        return {"version": observed.version} if observed.version else {}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        if not self.package:
            return StatePackages()
        if observed is None:
            if not offer.versions(self.package):
                return StatePackages()  # the nodes may have it from elsewhere
        elif observed.version is not None and self._version(observed) == observed.version:
            return StatePackages()
        return offer.one_version((self.package,), self.version or None)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        rdma = node.query(RdmaQuery())
        record = node.read_text(owned_packages.record_path(self.name))
        names = (self.package,) if self.package else ()
        package = node.packages(*names).get(self.package) if names else None
        offered = node.candidates(*names).get(self.package, ()) if names else ()
        return Observed(
            version=package.version if package is not None and package.installed else None,
            stale=rdma.stale,
            brought=record,
            offered=tuple(candidate.version for candidate in offered),
            forbidden=node.forbidden(*names) if names else {},
            nics=rdma.nics,
            ofed=rdma.ofed,
            image=facts.image,
            manager=facts.package_manager,
        )

    def _version(self, observed: Observed) -> str | None:
        """The package version that is wanted; ``None`` where none is to be had."""
        if not self.package:
            return observed.version
        return fitting_version(self.version, observed.version, observed.offered)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, version=None, brought=None) if self.package else observed
        return replace(observed, version=self._version(observed), stale=())

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not self.package or self._version(observed) is not None:
            return None
        advice = (
            "configure NVIDIA's DOCA repository for this distribution, or set a version that it has"
        )
        package = f"{self.package} {self.version}"
        return not_offered(package, observed.offered, advice, observed.forbidden)

    def plan(self, observed: Observed) -> Plan:
        notes: tuple[str, ...] = ()
        if not self.absent and not observed.nics and not observed.image:
            notes = ("no NVIDIA network card on PCI",)
        return diff(
            observed,
            self.desired(observed),
            costs={"stale": Disruption.REBOOT, "version": Disruption.REBOOT},
            why={
                "stale": f"OFED {observed.ofed or ''} is on disk and another stack is "
                "running".replace("  ", " "),
                "version": "network cards keep the loaded stack until the node reboots",
            },
            notes=notes,
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if self.absent:
            if plan.fields:
                yield owned_packages.take_back(self.name, (self.package,), manager=observed.manager)
            return
        if "version" in plan.fields and desired.version is not None:
            named = ((self.package, desired.version),)
            yield owned_packages.bring(
                self.name, named, hold=True, dkms=_DKMS, together=True, manager=observed.manager
            )
        if "stale" in plan.fields:
            yield ops.Reboot("the OFED on disk is not the running one", self.reboot_timeout_s)
