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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.packages import Offer, StatePackages, fitting_version, not_offered
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import OptionalVersion
from gpustate.formats import dpkg, keyed
from gpustate.ops import kmod, owned_packages
from gpustate.probes.kernel_modules import KernelModuleQuery

PACKAGE = "nvidia-fs-dkms"
AUTOLOAD_PATH = "/etc/modules-load.d/gpustate-nvidia-fs.conf"
AUTOLOAD_TEXT = (
    "# Written by gpustate (state gds); changes are undone by the next apply.\nnvidia-fs\n"
)
#: The first version that wants the open modules.
OPEN_FROM = "2.17.5"
_OLD = ("kepler", "maxwell", "pascal", "volta")

_LIVE = shell.load("gds", "gpustate.states")


@dataclass(frozen=True, slots=True)
class Observed:
    """Package and module of GPUDirect Storage."""

    version: str | None  # of the package
    autoload_text: str | None = None
    loaded: bool = False
    built: str | None = None  # version on disk for the running kernel
    stale: bool = False  # the loaded build differs from the one on disk
    says: str | None = None  # what the module itself says: "2.26"
    brought: str | None = None
    offered: tuple[str, ...] = ()
    driver: str | None = None  # "580.65.06 open"
    kernel: str = ""
    precompiled: bool = False
    old_gpus: tuple[str, ...] = ()
    image: bool = False
    manager: str = "apt"


class GpuDirectStorageEnabled(State[Observed]):
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
    matrix: ClassVar[Mapping[str, object]] = {"gds": True, "nvidia_fs": "version"}
    labels: ClassVar[Mapping[str, str]] = {
        "stale": "loaded module is outdated",
        "says": "state of GPUDirect Storage",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("ofed", "peermem")
    known_after: ClassVar[tuple[str, ...]] = ("ofed", "driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("version",)
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "loaded"
    worst_if: ClassVar[str] = "its module is rebuilt for the driver"

    version: OptionalVersion = ""
    tools: Annotated[
        str,
        pattern(
            r"^(gds-tools-[0-9]+-[0-9]+)?$", "a package such as gds-tools-12-9, or an empty text"
        ),
    ] = ""
    required: bool = True

    def pinned(self, observed: Observed) -> Mapping[str, Any]:
        return {"version": observed.version} if observed.version else {}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(PACKAGE, "nvidia-fs", *filter(None, (self.tools,)))

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        package = node.packages(PACKAGE).get(PACKAGE)
        offered = node.candidates(PACKAGE).get(PACKAGE, ())
        module = node.query(KernelModuleQuery("nvidia-fs", "nvidia-fs"))
        live = keyed.lists(node.shell(_LIVE).stdout)
        autoload = node.own_text(AUTOLOAD_PATH)
        record = node.read_text(owned_packages.record_path(self.name))
        said = re.fullmatch(r"version: ([0-9.]+)", keyed.first(live, "says"))
        return Observed(
            version=package.version if package is not None and package.installed else None,
            autoload_text=autoload,
            loaded=module.loaded is not None,
            built=module.here,
            stale=module.stale,
            says=said[1] if said else None,
            brought=record,
            offered=tuple(one.version for one in offered),
            driver=keyed.first(live, "driver") or None,
            kernel=facts.kernel,
            precompiled="precompiled" in live,
            old_gpus=tuple(
                sorted({gpu.architecture or "" for gpu in facts.gpus if gpu.architecture in _OLD})
            ),
            image=facts.image,
            manager=facts.package_manager,
        )

    def _wanted(self, observed: Observed) -> str | None:
        return fitting_version(self.version, observed.version, observed.offered)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            gone = replace(observed, version=None, autoload_text=None, brought=None)
            ours = observed.version is not None or observed.autoload_text is not None
            return replace(gone, loaded=False, built=None, says=None, stale=False) if ours else gone
        version = self._wanted(observed)
        if version is None:
            return observed
        brought = replace(observed, version=version, autoload_text=AUTOLOAD_TEXT)
        if observed.driver is None or observed.image:
            return brought
        upstream = dpkg.upstream_version(version)
        return replace(
            brought,
            loaded=True,
            built=upstream,
            stale=False,
            says=".".join(upstream.split(".")[:2]),
        )

    def refuse(self, observed: Observed) -> str | None:
        version = self._wanted(observed)
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

    def _unavailable(self, observed: Observed) -> str | None:
        if self.absent or not self.required or self._wanted(observed) is not None:
            return None
        advice = "use NVIDIA's repository (state driver-repository), or another version"
        return not_offered(f"{PACKAGE} {self.version}", observed.offered, advice)

    def plan(self, observed: Observed) -> Plan:
        cost = Disruption.DRAIN if observed.loaded else Disruption.NONE
        notes: tuple[str, ...] = ()
        if not self.absent and self._wanted(observed) is None:
            notes = (f"no repository offers {PACKAGE}: nothing to do",)
        elif not self.absent and observed.driver is None and not observed.image:
            notes = ("no driver is loaded: nvidia-fs is installed and not loaded",)
        return diff(
            observed,
            self.desired(observed),
            costs={"version": cost, "built": cost, "stale": cost, "loaded": cost},
            why={"stale": "the loaded build differs from the one on disk"},
            paths={"autoload_text": AUTOLOAD_PATH},
            notes=notes,
            refusal=self._unavailable(observed),
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        version = dpkg.upstream_version(wanted.version or "")
        anew = plan.fields & {"version", "built", "stale"}
        if anew and observed.loaded:
            yield kmod.unload("nvidia_fs", "programs that use GPUDirect Storage")
        if "version" in plan.fields and wanted.version is not None:
            tools = ((self.tools, ""),) if self.tools else ()
            named = ((PACKAGE, wanted.version), *tools)
            yield owned_packages.bring(
                self.name, named, dkms=("nvidia-fs",), manager=observed.manager
            )
        elif "built" in plan.fields:
            yield kmod.rebuild("nvidia-fs", version, observed.kernel, "nvidia-fs")
        if "autoload_text" in plan.fields:
            yield ops.PutText(AUTOLOAD_PATH, AUTOLOAD_TEXT, mode=0o644)
        if plan.fields & {"version", "built", "stale", "loaded", "says"} and wanted.loaded:
            yield kmod.load("nvidia-fs", version, "nvidia-fs")

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if observed.loaded and "loaded" in plan.fields:
            yield kmod.unload("nvidia_fs", "programs that use GPUDirect Storage")
        if "autoload_text" in plan.fields:
            yield ops.RemoveOwn(AUTOLOAD_PATH)
        if plan.fields & {"version", "brought", "built"}:
            yield owned_packages.take_back(self.name, (PACKAGE,), manager=observed.manager)
