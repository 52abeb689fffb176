"""GPU memory reaches network cards without a copy: over DMA-BUF, or with nvidia-peermem.

Which of them is a rule, not a taste: DMA-BUF where the open modules, the kernel and the GPUs know it,
for it needs nothing more; nvidia-peermem otherwise, which wants OFED, or a
kernel of Ubuntu that has the same interface. With DMA-BUF nothing is written
to the node.

Surprising: nvidia-peermem that was built before OFED came is a shell: it is there, signed and in
its place, and answers "Invalid argument" to every load. And one that was built against another OFED
is refused as well. So the checksum in the module is compared with the one OFED gives, and the
driver's modules are rebuilt with DKMS where they differ; the driver that runs is not touched by
that. Modules that Ubuntu built and signed stay: DKMS would put unsigned ones of the whole driver in their
place. Restarting OFED unloads the module; it is loaded again by the next apply, and at boot.

Sources:
    :mod:`gpustate.formats.rdma`. NVIDIA/gpu-driver-container (load order; only with a card of vendor 15b3).
    NVIDIA/gpu-operator release notes 26.3.0 (a module that is loaded already is a success).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.planned import PlannedObservation
from gpustate.formats import rdma
from gpustate.ops import kmod
from gpustate.probes.kernel_modules import KernelModuleQuery
from gpustate.probes.rdma import RdmaQuery

MODULE = "nvidia_peermem"
AUTOLOAD_PATH = "/etc/modules-load.d/gpustate-peermem.conf"
AUTOLOAD_TEXT = (
    "# Written by gpustate (state peermem); changes are undone by the next apply.\nnvidia-peermem\n"
)
_OLD = "nv_peer_mem"
#: Where a package manager has the headers of a kernel.
_HEADERS = {"dnf": "kernel-devel-{}", "zypper": "the kernel-default-devel of {}"}

_DRIVER = r"""v=; { read -r v <"$SYS/module/nvidia/version"; } 2>/dev/null || exit 0
t=; { read -r t <"$PROC/driver/nvidia/version"; } 2>/dev/null
case $t in *"Open Kernel Module"*) echo "$v open";; *) echo "$v proprietary";; esac"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The module, and what decides whether it is wanted."""

    autoload_text: str | None = None
    loaded: bool = False
    built: str | None = None  # checksum of the OFED it was built with; "none", or None: no module
    driver: str | None = None  # "580.65.06 open": the loaded one
    kernel: str = ""
    no_dma_buf: str | None = None  # what keeps this node from DMA-BUF
    nics: tuple[str, ...] = ()
    ofed: str | None = None
    symbol: str | None = None  # checksum that the installed OFED gives, or the kernel itself
    signed: bool = False  # the module is one that Ubuntu built for this kernel
    stale: tuple[str, ...] = ()
    headers: bool = True
    rival: bool = False  # nv_peer_mem, the module before this one, is loaded
    image: bool = False
    manager: str = "apt"


class GpuDirectRdmaEnabled(State[Observed]):
    """GPUDirect RDMA works by DMA-BUF where it can, else nvidia-peermem is built, loaded and stays so.

    Args:
        method: ``auto`` by rule, or ``dma-buf`` or ``peermem`` in any case.

    Disruption:
        ``NONE``: the driver's modules on disk are rebuilt, the loaded ones stay. Taking
        nvidia-peermem away is ``DRAIN``: jobs that use it end.

    Raises:
        StepFailed: the module cannot be built; the compiler's first complaint is in the message.
    """

    name: ClassVar[str] = "peermem"
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("ofed",)
    known_after: ClassVar[tuple[str, ...]] = ("ofed", "driver")
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "loaded"
    worst_if: ClassVar[str] = "its module is reloaded for the driver"
    needs_gpu: ClassVar[bool] = True

    method: Literal["auto", "dma-buf", "peermem"] = "auto"

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        if not isinstance(planned.observed, Observed):
            return {}
        ofed = planned.current("ofed") or "none"
        return {"rdma": self.way(planned.observed), "ofed": ofed, "ofed_kind": "mlnx"}

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        autoload = node.own_text(AUTOLOAD_PATH)
        loaded = node.modules()
        driver = node.shell(_DRIVER).stdout.strip() or None
        stack = node.query(RdmaQuery())
        module = node.query(KernelModuleQuery("nvidia-peermem", "nvidia", (rdma.SYMBOL,)))
        built = None
        if module.version_on_disk is not None:
            built = rdma.checksum(module.symbols) or "none"
        return Observed(
            autoload_text=autoload,
            loaded=MODULE in loaded and not facts.image,
            built=built,
            driver=driver,
            kernel=facts.kernel,
            no_dma_buf=rdma.why_no_dma_buf(
                driver=driver,
                kernel=facts.kernel,
                architectures=tuple(gpu.architecture for gpu in facts.gpus),
            ),
            nics=stack.nics,
            ofed=stack.ofed,
            symbol=stack.symbol,
            signed="/kernel/nvidia-" in module.path,
            stale=stack.stale,
            headers=facts.kernel in module.headers,
            rival=_OLD in loaded,
            image=facts.image,
            manager=facts.package_manager,
        )

    def way(self, observed: Observed) -> str | None:
        """DMA-BUF, nvidia-peermem, or ``None`` where there is nothing to reach."""
        if observed.image or not observed.nics:
            return None
        if self.method != "auto":
            return self.method
        return rdma.DMA_BUF if observed.no_dma_buf is None else rdma.PEERMEM

    def desired(self, observed: Observed) -> Observed:
        if not self.absent and self.way(observed) == rdma.PEERMEM:
            return replace(
                observed,
                autoload_text=AUTOLOAD_TEXT,
                loaded=True,
                built=observed.symbol or observed.built,
            )
        # A foreign module stays loaded; ours is known by its file.
        is_own = observed.autoload_text is not None
        return replace(observed, autoload_text=None, loaded=observed.loaded and not is_own)

    def refuse(self, observed: Observed) -> str | None:
        way = None if self.absent else self.way(observed)
        if way == rdma.DMA_BUF and observed.no_dma_buf is not None:
            return f"DMA-BUF is required, but {observed.no_dma_buf}; use method peermem, with OFED"
        if way != rdma.PEERMEM:
            return None
        return self._no_peermem(observed)

    def _no_peermem(self, observed: Observed) -> str | None:
        why = (
            f"DMA-BUF: {observed.no_dma_buf}. "
            if self.method == "auto" and observed.no_dma_buf
            else ""
        )
        # Signed modules were built for this very kernel, whose headers need not be there.
        native = observed.symbol or (observed.signed and observed.built != "none")
        if observed.ofed is None and not native:
            return (
                f"{why}nvidia-peermem needs OFED, and the kernel's own RDMA stack runs here; install "
                "doca-ofed (state ofed), or the open driver modules for DMA-BUF"
            )
        if observed.driver is None:
            return (
                "no driver is loaded, whose version nvidia-peermem has; add the state driver to "
                "the policy"
            )
        if observed.stale:
            return (
                f"{', '.join(observed.stale)}: OFED {observed.ofed} is on disk and another stack is loaded, against "
                "which nvidia-peermem would not load; reboot the node (state ofed does)"
            )
        if observed.ofed is not None and observed.symbol is None:
            return (
                f"OFED {observed.ofed} is installed without the files to build modules against "
                f"(/usr/src/ofa_kernel/*/Module.symvers with {rdma.SYMBOL}); install its -dkms or -devel package"
            )
        if observed.rival:
            return f"{_OLD}, the module before nvidia-peermem, is loaded; remove its package (nvidia-peer-memory-dkms) first"
        if observed.symbol in (None, observed.built):
            return None
        if observed.signed:
            return (
                f"{why}nvidia-peermem has to be built against {self._stack(observed)}, and the driver's modules are those "
                "that Ubuntu built and signed; use precompiled=False in the state driver"
            )
        if not observed.headers:
            return (
                f"nvidia-peermem has to be built for {observed.kernel}, and there are no headers of it; "
                f"install {_HEADERS.get(observed.manager, 'linux-headers-{}').format(observed.kernel)}"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        build = "without it" if observed.built == "none" else "against another one"
        return diff(
            observed,
            self.desired(observed),
            costs={"loaded": Disruption.DRAIN if observed.loaded else Disruption.NONE},
            why={
                "built": f"the module has to be built against {self._stack(observed)}, was built {build}, and would answer "
                "Invalid argument",
                "loaded": self._why(observed),
            },
            paths={"autoload_text": AUTOLOAD_PATH},
            notes=tuple(self._notes(observed)),
        )

    def _stack(self, observed: Observed) -> str:
        return f"OFED {observed.ofed}" if observed.ofed else "the kernel's own RDMA stack"

    def _why(self, observed: Observed) -> str:
        return f"no DMA-BUF: {observed.no_dma_buf}" if observed.no_dma_buf else ""

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent or observed.image:
            return
        way = self.way(observed)
        if way is None:
            yield "no NVIDIA network card on PCI: nothing to do"
        elif way == rdma.DMA_BUF:
            yield f"GPUDirect RDMA by DMA-BUF: {observed.driver}, Linux {observed.kernel}; nothing more is needed"

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        version = (observed.driver or "").partition(" ")[0]
        if "built" in plan.fields:
            yield kmod.rebuild("nvidia*", version, observed.kernel, "nvidia-peermem")
        if "autoload_text" in plan.fields and desired.autoload_text is not None:
            yield ops.PutText(AUTOLOAD_PATH, desired.autoload_text, mode=0o644)
        if "loaded" in plan.fields:
            if desired.loaded:
                yield kmod.load("nvidia*", version, "nvidia-peermem")
            else:
                yield kmod.unload(MODULE, "jobs over RDMA")
        # Last: the file is how the next run knows that the module is this state's.
        if "autoload_text" in plan.fields and desired.autoload_text is None:
            yield ops.RemoveOwn(AUTOLOAD_PATH)
