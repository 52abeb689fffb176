"""What a host needs before Kata containers, confidential or not, can be given GPUs.

The GPUs go to virtual machines as a whole, so the host must not use them: no NVIDIA driver, no nouveau, the
IOMMU on, and virtualization of the processor at hand. Confidential containers need more: a kernel that knows
how, and TDX or SEV-SNP switched on in the firmware. The kernel arguments are set here; the rest is
checked, because only the firmware's own menu can change it.

Surprising: TDX is off in the kernel's KVM until it is asked for, and refuses to come on where the machine
might hibernate. SEV-SNP needs no argument; where it is off, it is off in the firmware.

Which GPUs are handed over is the state ``vfio``; the mode of the GPUs themselves (confidential or not) is set by
NVIDIA's own tools (gpu-admin-tools, the operator's manager), which reset them.

Sources:
    NVIDIA/cloud-native-docs, gpu-operator/deploy-kata-containers.rst and confidential-containers/prerequisites.rst,
    supported-platforms.rst (kernel 6.17, arguments, what to check); Linux, Documentation/arch/x86/tdx.rst and its
    commit "Handle TDX interaction with sleep and hibernation".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.formats import grub, keyed
from gpustate.formats.rdma import kernel_version
from gpustate.ops import cmdline
from gpustate.probes.kernel_cmdline import CommandLineQuery

#: First kernel that NVIDIA validated for confidential containers with GPUs.
KERNEL = (6, 17)
_PROBE = shell.load("kata", "gpustate.states")


@dataclass(frozen=True, slots=True)
class Observed:
    """Kernel arguments, and what else the host must offer."""

    drop_in: str | None = None
    menu_lacks: tuple[str, ...] = ()
    running_lacks: tuple[str, ...] = ()
    pending: bool = False
    cpu: str = ""
    line_problem: str = ""  # why the kernel arguments cannot be set
    kernel: str = ""
    kvm: bool = False
    groups: bool = False
    tee: str = ""  # tdx, snp: the one that is on
    driver: bool = False  # an NVIDIA driver is loaded on the host
    containerd: bool = False
    image: bool = False


class KataHostReady(State[Observed]):
    """The host can give its GPUs to Kata containers.

    Args:
        runtime: ``none``: nothing; ``kata``: ordinary virtual machines; ``confidential``: TDX or SEV-SNP, by
            the processor.
        reboot_timeout_s: how long the node may take to come back, in seconds.

    Disruption:
        ``REBOOT`` where the kernel lacks an argument, otherwise ``NONE``.
    """

    name: ClassVar[str] = "kata"
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    after: ClassVar[tuple[str, ...]] = ("nouveau", "vfio")
    before: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.REBOOT

    runtime: Literal["none", "kata", "confidential"] = "none"
    reboot_timeout_s: Annotated[int, Field(ge=60)] = 900

    def _words(self, cpu: str) -> tuple[str, ...]:
        first = {"GenuineIntel": ("intel_iommu=on",), "AuthenticAMD": ("amd_iommu=on",)}.get(
            cpu, ()
        )
        tdx = self.runtime == "confidential" and cpu == "GenuineIntel"
        more = ("kvm_intel.tdx=1", "nohibernate") if tdx else ()
        return (*first, "modprobe.blacklist=nouveau", *more)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        line = node.query(CommandLineQuery(self.name))
        keys = keyed.lists(node.shell(_PROBE).stdout)
        words = self._words(line.cpu)
        on = [name for name in ("tdx", "snp") if keyed.first(keys, name) in ("Y", "1")]
        return Observed(
            drop_in=line.drop_in,
            menu_lacks=line.menu_lacks(words),
            running_lacks=() if facts.image else line.running_lacks(words),
            pending=line.pending,
            cpu=line.cpu,
            line_problem=line.problem(words),
            kernel=facts.kernel,
            kvm="kvm" in keys,
            groups="groups" in keys,
            tee=on[0] if on else "",
            driver="driver" in keys,
            containerd="containerd" in keys,
            image=facts.image,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, drop_in=None, pending=False)
        if self.runtime == "none":
            return observed
        preset = observed.drop_in is None and not observed.menu_lacks and not observed.running_lacks
        text = grub.drop_in_text(self.name, self._words(observed.cpu))
        return replace(
            observed,
            drop_in=None if preset else text,
            menu_lacks=(),
            running_lacks=(),
            pending=False,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or self.runtime == "none" or observed.image:
            return None
        if observed.line_problem:
            return observed.line_problem
        if observed.driver:
            return (
                "an NVIDIA driver is loaded on this host, and a node serves either containers or "
                "virtual machines; remove the driver first (gpustate remove)"
            )
        if not observed.kvm:
            return "no /dev/kvm; enable virtualization (VT-x, SVM) in the firmware"
        if not observed.containerd:
            return "containerd is not installed, and Kata with GPUs runs with containerd only; install it"
        return self._not_there(observed)

    def _not_there(self, observed: Observed) -> str | None:
        """What is still missing although the kernel has every argument: the firmware's doing."""
        if self.runtime == "confidential" and kernel_version(observed.kernel) < KERNEL:
            return (
                "confidential containers with GPUs need Linux 6.17 or newer, and the running "
                f"kernel is {observed.kernel}; install a newer kernel"
            )
        if observed.running_lacks:
            return None
        if not observed.groups:
            return (
                "the IOMMU is off although the kernel command line enables it; enable VT-d "
                "(AMD-Vi) and ACS in the firmware"
            )
        if self.runtime == "confidential" and not observed.tee:
            feature = {"GenuineIntel": "TDX", "AuthenticAMD": "SEV-SNP"}.get(observed.cpu)
            if feature is None:
                return f"the processor ({observed.cpu or 'unknown'}) has neither TDX nor SEV-SNP; use another machine"
            return f"{feature} is off although the kernel supports it; enable it in the firmware"
        return None

    def plan(self, observed: Observed) -> Plan:
        notes: tuple[str, ...] = ()
        if not self.absent and self.runtime == "none":
            notes = ("no runtime is set: nothing to do",)
        elif self.absent and observed.drop_in is not None:
            notes = ("the running kernel keeps its arguments until the next boot",)
        return diff(
            observed,
            self.desired(observed),
            costs={"running_lacks": Disruption.REBOOT},
            why={"running_lacks": "a kernel reads its command line when it boots"},
            paths={"drop_in": grub.drop_in_path(self.name)},
            notes=notes,
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "drop_in" in plan.fields:
            yield from cmdline.set_arguments(
                self.name, None if self.absent else self._words(observed.cpu)
            )
        elif plan.fields & {"menu_lacks", "pending"}:
            yield cmdline.write_menu(self.name)
        if "running_lacks" in plan.fields:
            missing = " ".join(observed.running_lacks)
            yield ops.Reboot(f"the kernel lacks {missing}", timeout=self.reboot_timeout_s)
