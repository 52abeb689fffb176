"""GPUDirect Storage: nvidia-fs is built for the driver that runs, loaded, and says its version.

nvidia-fs lets NVMe and network storage read and write GPU memory without a copy in the host. It is
built by DKMS against one NVIDIA driver, and for storage over RDMA against the OFED that runs.

Surprising: from 2.17.5 on it loads beside the open driver modules only, and modules that come precompiled
leave it nothing to be built against. Both are seen before anything is installed. Under Secure Boot its build is
signed as every other one is (:mod:`gpustate.ops.modsign`). Ubuntu's archive has a package of the same name, years older than
the one of NVIDIA's repository.

Sources:
    NVIDIA/gds-nvidia-fs: README.md, ChangeLog, src/dkms.conf, src/nvfs-proc.c (what /proc/driver/nvidia-fs
    shows); NVIDIA/cloud-native-docs, gpu-operator/platform-support.rst (open modules).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from gpustate import Node, shell
from gpustate.bases.kernel_module import KernelModuleState, ModuleObservation
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.parameter_errors import pattern
from gpustate.formats import dpkg, keyed

PACKAGE = "nvidia-fs-dkms"
#: The first version that wants the open modules.
OPEN_FROM = "2.17.5"
_OLD = ("kepler", "maxwell", "pascal", "volta")

_LIVE = shell.load("gds", "gpustate.states")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ModuleObservation):
    """Package and module of GPUDirect Storage; ``driver`` as ``580.65.06 open``."""

    says: str | None = None  # what the module itself says: "2.26"
    precompiled: bool = False
    old_gpus: tuple[str, ...] = ()


class GpuDirectStorageEnabled(KernelModuleState[Observed]):
    """nvidia-fs is installed, built for the running kernel and driver, loaded now and at boot.

    Args:
        version: of nvidia-fs, as ``2.26.6``; empty: what is installed stays, and a node without it
            gets the newest that is offered.
        tools: package with ``gdscheck`` and the rest, as ``gds-tools-12-9``; empty: none.
        required: refuse a node for which no repository offers it; else leave it alone.

    Disruption:
        ``DRAIN`` where a loaded module is replaced or removed, otherwise ``NONE``.

    Raises:
        StepFailed: the module cannot be built or loaded; the compiler's or the kernel's word is in
            the message.
    """

    name: ClassVar[str] = "gds"
    matrix: ClassVar[Mapping[str, object]] = {"gds": True, "nvidia_fs": "packages"}
    labels: ClassVar[Mapping[str, str]] = {
        "packages": "gds version",
        "says": "state of GPUDirect Storage",
    }
    after: ClassVar[tuple[str, ...]] = ("ofed", "peermem")
    known_after: ClassVar[tuple[str, ...]] = ("ofed", "driver-repository", "driver")
    product: ClassVar[str] = "GPUDirect Storage"
    module: ClassVar[str] = "nvidia-fs"
    deb: ClassVar[tuple[str, ...]] = (PACKAGE,)
    rpm: ClassVar[tuple[str, ...]] = (PACKAGE,)

    tools: Annotated[
        str,
        pattern(
            r"^(gds-tools-[0-9]+-[0-9]+)?$", "a package such as gds-tools-12-9, or an empty text"
        ),
    ] = ""

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(PACKAGE, "nvidia-fs", *filter(None, (self.tools,)))

    def extras(self) -> tuple[tuple[str, str], ...]:
        return ((self.tools, ""),) if self.tools else ()

    def probe(self, node: Node) -> Observed:
        module, fields = self.read(node)
        live = keyed.lists(node.shell(_LIVE).stdout)
        match = re.fullmatch(r"version: ([0-9.]+)", keyed.first(live, "says"))
        gpus = node.facts().gpus
        return Observed(
            **fields,
            stale=module.stale,
            says=match[1] if match else None,
            driver=keyed.first(live, "driver") or None,
            precompiled="precompiled" in live,
            old_gpus=tuple(
                sorted({gpu.architecture or "" for gpu in gpus if gpu.architecture in _OLD})
            ),
        )

    def working(self, observed: Observed, version: str) -> Observed:
        release = ".".join(version.split(".")[:2])
        return replace(super().working(observed, version), says=release)

    def without(self, observed: Observed) -> Observed:
        return replace(super().without(observed), says=None)

    def refuse(self, observed: Observed) -> str | None:
        version = self.versions(observed).get(PACKAGE)
        if self.absent or version is None:
            return None
        upstream = dpkg.upstream_version(version)
        new = dpkg.compare_versions(upstream, OPEN_FROM) >= 0
        if new and (observed.driver or "").endswith(" proprietary"):
            return (
                f"nvidia-fs {upstream} loads beside the open driver modules only, and the loaded driver is "
                f"proprietary; use module_type open in the state driver, or nvidia-fs before {OPEN_FROM}"
            )
        if new and observed.old_gpus:
            return f"nvidia-fs {upstream} needs the open driver modules, which do not drive GPUs of the {', '.join(observed.old_gpus)} generation"
        if observed.precompiled and not observed.image:
            return (
                f"the driver {observed.driver} came precompiled, without the sources that nvidia-fs is built against; "
                "use the driver's DKMS package (precompiled=False in the state driver)"
            )
        return None
