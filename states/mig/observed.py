"""What the state ``mig`` looks at on a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpustate.formats import gpu_services
from gpustate.formats.nvml_report import Gpu
from gpustate.probes.gpu_clients import GpuProcess

UNIT = "gpustate-mig.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
#: systemd keeps what it once read of a unit that is active; the link is what the next boot sees.
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
#: Units that divide GPUs on their own.
MANAGER = "nvidia-mig-manager.service"
#: A reset that was tried and did not work; gone after a reboot.
NO_RESET_PATH = "/run/gpustate/mig-no-reset"

#: Services that keep GPUs or MIG devices open, or list them once at their start. They are stopped for a
#: change and started again; in this order, back in reverse. The kubelet is none of them, and never will be.
CLIENTS = gpu_services.MONITORS
#: In the way of a GPU reset only.
RESET_CLIENTS = ("nvidia-persistenced.service",)
#: Opens GPUs and is needed for their reset where there are NVSwitches.
NEVER_IN_THE_WAY = ("nvidia-fabricmanager.service",)


@dataclass(frozen=True, slots=True)
class Observed:
    """The MIG side of a node.

    What is changed comes first; what only decides, after it.
    """

    modes: dict[str, str]  # by number of the GPU: on, off, or what it waits for
    instances: dict[str, tuple[str, ...]]
    saved: str | None = None  # the layout that is given at boot
    before: str | None = None  # what was there before gpustate changed anything
    program: str | None = None  # text of what gives it
    unit: str | None = None
    enabled: bool = False
    stopped: tuple[str, ...] = ()  # services an interrupted run has not started again
    device_nodes: tuple[str, ...] = ()  # what is wrong with those of GPU and compute instances
    gpus: tuple[Gpu, ...] = ()  # in PCI order, as NVML has them
    excluded: tuple[int, ...] = ()  # numbers of those in quarantine
    problem: str = ""  # why NVML says nothing
    holders: tuple[GpuProcess, ...] | None = None  # None: nobody looked
    pods: dict[str, tuple[str, ...]] = field(default_factory=dict)  # their devices, by UID
    clients: tuple[str, ...] = ()  # known services that run
    no_reset: dict[str, str] | None = None  # why a GPU cannot be reset, by its number
    drop_ins: tuple[str, ...] = ()  # of the unit that gives the layout at boot
    manager: bool = False  # nvidia-mig-manager is enabled
    folder: str = "/var/lib/gpustate/mig"
    image: bool = False
    systemd: bool = True

    @property
    def lost(self) -> dict[int, Gpu]:
        """GPUs that do not respond and are not in quarantine, by number."""
        return {
            number: gpu
            for number, gpu in enumerate(self.gpus)
            if gpu.error is not None and number not in self.excluded
        }
