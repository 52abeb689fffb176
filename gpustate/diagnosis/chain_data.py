"""Observation for the checks of the validation, and the key that a validation record is made for.

This module also runs on the nodes themselves: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpustate.diagnosis import health
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.formats.quarantine import Quarantine
from gpustate.formats.xids import Xid
from gpustate.probes.cri_status import CriStatus

#: Kernel drivers that hold a GPU for a virtual machine.
PASSTHROUGH = ("vfio-pci", "nvgrace_gpu_vfio_pci")


@dataclass(frozen=True)
class Expected:
    """What to validate.

    Args:
        cuda: run a kernel on every GPU.
        gpus: expected number of GPUs; ``None``: those of the last good validation, and as many as PCI shows.
        containers: ``auto`` checks containers if there is a toolkit, a runtime handler, a CDI
            specification or a kubelet; ``required`` always does and ``none`` never.
        handler: runtime handler that the runtime must have; ``auto``: any that runs NVIDIA's runtime; empty: none.
        cdi: require a CDI specification that matches the GPUs; ``None``: judge one that is there.
    """

    cuda: bool = True
    gpus: int | None = None
    containers: str = "auto"
    handler: str = "auto"
    cdi: bool | None = None

    @property
    def text(self) -> str:
        """One line for the key of a record: validating less does not count as validating more."""
        return (
            f"cuda={int(self.cuda)} gpus={'all' if self.gpus is None else self.gpus} "
            f"containers={self.containers} handler={self.handler or '-'} cdi={'auto' if self.cdi is None else int(self.cdi)}"
        )

    @classmethod
    def parse(cls, text: str) -> Expected:
        """Parse :attr:`text`; missing and unknown words count as the default."""
        words: dict[str, str] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            words[name] = value
        gpus = words.get("gpus", "all")
        handler = words.get("handler", cls.handler)
        return cls(
            cuda=words.get("cuda", "1") == "1",
            gpus=int(gpus) if gpus.isdecimal() and len(gpus) < 10 else None,
            containers=words.get("containers", cls.containers),
            handler="" if handler == "-" else handler,
            cdi={"0": False, "1": True}.get(words.get("cdi", "")),
        )


@dataclass(frozen=True)
class PciSeen:
    """An NVIDIA function on PCI."""

    address: str
    device_id: str
    class_id: str
    driver: str  # empty: none is bound

    @property
    def is_gpu(self) -> bool:
        """A display or 3D controller, not an NVSwitch, not an audio function."""
        return self.class_id.startswith(("0300", "0302"))


@dataclass(frozen=True)
class ModuleGpu:
    """A GPU as the loaded module lists it in /proc/driver/nvidia/gpus."""

    address: str
    minor: int
    uuid: str  # with question marks until something first opened the GPU


@dataclass(frozen=True)
class Library:
    """A shared library of the driver and the file that it links to."""

    path: str
    target: str
    complete: bool = True  # it is ELF and not truncated

    @property
    def version(self) -> str:
        """Version in the file's name; empty when it has none."""
        _, mark, version = self.target.rpartition(".so.")
        return version if mark and "." in version else ""


@dataclass(frozen=True)
class DeviceNode:
    """A file below /dev."""

    character: bool
    major: int
    minor: int
    kind: str = ""  # as stat(1) calls it


@dataclass(frozen=True)
class Program:
    """A program that was run with ``--version``."""

    path: str
    status: int
    first_line: str


@dataclass(frozen=True)
class Containerd:
    """containerd by its configuration files, and by its running process."""

    path: str
    active: bool
    dump_status: int
    dump_error: str
    handlers: tuple[tuple[str, str, bool], ...]  # name, BinaryName, whether that exists
    config: str = ""  # the file its service names; empty: containerd's own default
    default: str = ""  # handler of pods that name none
    enabled: bool = False  # it starts at boot
    disabled: str = ""  # the entry of disabled_plugins that switches CRI off
    cri: CriStatus | None = None  # status of the running process; None: not queried

    @property
    def dump(self) -> str:
        """The command that prints its effective configuration."""
        return f"containerd {f'--config {self.config} ' if self.config else ''}config dump"


@dataclass(frozen=True)
class CdiSpec:
    """One CDI specification of kind nvidia.com/gpu."""

    path: str
    devices: tuple[str, ...]
    missing: tuple[str, ...]  # files of this node that it names and that do not exist
    numbers: tuple[str, ...] = ()  # of its device nodes: PATH|MAJOR:MINOR


@dataclass(frozen=True)
class CudaResult:
    """Result of the kernel on one device."""

    uuid: str
    ok: bool
    elapsed_s: float = 0.0
    error: int | None = None  # CUresult
    text: str = ""
    users: tuple[str, ...] = ()  # processes that use the device, if it refused for that: PID (NAME)


@dataclass(frozen=True)
class ContainerResult:
    """Result of a container that one runtime started with every GPU.

    Args:
        way: the runtime and how GPUs are requested: ``containerd 1.7.24, handler nvidia``.
        kind: the failure, if the node itself recognised it (see :mod:`container_checks`); empty if
            ``error`` describes it, or nothing failed before the container ran.
        error: why no container ran, in the runtime's words; empty if one ran.
        devices: NVIDIA's device nodes in it.
        denied: device nodes that the device cgroup, or a security module, prevents it from opening.
        programs: the low-level runtime and systemd, with versions, if systemd manages the container's devices.
        unlisted: device nodes in it that systemd does not know, so that it loses them at the next daemon-reload.
        hooked: those of them that are not in its OCI specification, but were added by a hook.
        files: files of the driver that were mounted into it.
        gpus: UUIDs of the GPUs that NVML lists in it.
        nvml_error: why NVML lists none.
        cuda_ok: devices on which the kernel ran, with the right result.
        cuda_error: CUresult of the first device on which it did not.
        cuda_text: that device and what happened.
        elapsed_s: seconds from the image to the end of the container.
    """

    way: str
    kind: str = ""
    error: str = ""
    devices: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    nvml_error: str = ""
    cuda_ok: int = 0
    cuda_error: int | None = None
    cuda_text: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class ChainObservation:
    """Everything that the checks need."""

    boot_id: str = ""
    kernel: str = ""
    pci: tuple[PciSeen, ...] = ()
    off_bus: tuple[str, ...] = ()  # addresses that answer with ones
    loaded: str = ""  # version of the loaded module
    open_module: bool = False
    module_gpus: tuple[ModuleGpu, ...] = ()
    on_disk: str = ""  # version of the module file for the running kernel
    nvml_library: Library | None = None
    cuda_library: Library | None = None
    packages: tuple[tuple[str, str], ...] = ()  # name, upstream version
    majors: tuple[tuple[str, int], ...] = ()  # /proc/devices
    nodes: tuple[tuple[str, DeviceNode], ...] = ()
    capabilities: tuple[tuple[str, int, str], ...] = ()  # node, minor, name: gpu0/mig/gi1/ci0
    driver_root: str = (
        ""  # where a container of the GPU Operator has the driver; empty: on the node
    )
    odd: tuple[tuple[str, str], ...] = ()  # program or library: what is in its place
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    ctk: Program | None = None
    runtime_binary: Program | None = None
    containerd: Containerd | None = None
    crio: CriStatus | None = None  # status of a running CRI-O
    bundled: CriStatus | None = None  # status of the containerd of k3s, RKE2, k0s or MicroK8s
    other_runtimes: tuple[str, ...] = ()  # those in use beside containerd
    down: tuple[str, ...] = ()  # units of these and of Kubernetes distributions that do not run
    cycles: tuple[tuple[str, ...], ...] = ()  # the units of each ordering cycle at boot
    registered: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # runtimes that gpustate has configured, with the handler; empty: unknown
    kubelet: bool = False  # one runs, or starts at boot
    endpoint: str = ""  # the socket of its runtime; empty: containerd's, or no kubelet runs
    cdi_kept: bool = False  # a service of this node writes the specification at boot
    mode: str = ""  # of NVIDIA's runtime, in its configuration
    cdi: tuple[CdiSpec, ...] = ()  # in the order of their folders; a later one wins
    cuda: tuple[CudaResult, ...] | None = None  # None: not run
    containers: tuple[ContainerResult, ...] | None = None  # None: none was started
    runtime_digest: str = ""  # of the files that configure the container side
    manager: bool = False  # Fabric Manager runs, by the file with its process id
    nvlink_off: bool = False  # by a parameter of the loaded driver
    files_digest: str = ""  # of size, times and inode of the driver's libraries and modules
    log: tuple[Xid, ...] = ()  # Xids of the kernel log since the module was loaded
    quarantine: Quarantine = field(default_factory=Quarantine)
    expected: Expected = field(default_factory=Expected)  # what to validate by default
    recorded_gpus: tuple[
        tuple[str, str], ...
    ] = ()  # UUID and PCI address of the GPUs of the last good validation
    recorded: tuple[tuple[str, str], ...] | None = (
        None  # checks of the record with its results; None: made now
    )

    @property
    def gpus(self) -> tuple[PciSeen, ...]:
        """GPUs that this node itself uses."""
        ignored = {device.address for device in self.ignored}
        return tuple(
            device
            for device in self.pci
            if device.is_gpu and device.driver not in PASSTHROUGH and device.address not in ignored
        )

    @property
    def ignored(self) -> tuple[PciSeen, ...]:
        """Display cards that the driver does not drive, beside GPUs of other models that it does."""
        bound = {
            device.device_id for device in self.pci if device.is_gpu and device.driver == "nvidia"
        }
        return tuple(
            device
            for device in self.pci
            if bound
            and device.class_id.startswith("0300")
            and not device.driver
            and device.device_id not in bound
        )

    @property
    def missing_gpus(self) -> tuple[tuple[str, str], ...]:
        """UUID and address of the GPUs of the last good validation that are neither on PCI nor in quarantine."""
        addresses = {device.address for device in self.pci}
        uuids = {gpu.uuid for gpu in self.nvml.gpus}
        return tuple(
            (uuid, address)
            for uuid, address in self.recorded_gpus
            if address not in addresses
            and uuid not in uuids
            and not self.quarantine.holds(uuid, address)
        )

    def held(self, gpu: Gpu) -> bool:
        """A GPU is in quarantine."""
        return self.quarantine.holds(gpu.uuid, gpu.pci)


@dataclass(frozen=True)
class Key:
    """What a validation was made for: if one of these has changed, it is no longer valid."""

    boot_id: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    runtime: str = ""
    wanted: str = ""
    quarantined: tuple[str, ...] = ()
    unwell: tuple[str, ...] = ()  # UUID and the health finding that NVML reports
    files: str = ""  # digest of size, times and inode of the driver's libraries and modules
    manager: bool = False  # Fabric Manager runs

    def moved(self, current: Key) -> str:
        """What has changed since, in words; empty if nothing has."""
        if self.boot_id != current.boot_id:
            return "the node has rebooted since"
        if self.driver != current.driver:
            return f"the driver was {self.driver or 'not loaded'} and is {current.driver or 'not loaded'}"
        if self.files != current.files:
            return "the driver's libraries or modules have changed since"
        if self.manager and not current.manager:
            return "Fabric Manager has stopped since"
        if self.gpus != current.gpus:
            lost, new = set(self.gpus) - set(current.gpus), set(current.gpus) - set(self.gpus)
            return "; ".join(
                [f"{uuid} no longer answers" for uuid in sorted(lost)]
                + [f"{uuid} is new" for uuid in sorted(new)]
            )
        if self.mig != current.mig:
            return "the MIG layout has changed since"
        if self.runtime != current.runtime:
            return "the container runtime or its configuration has changed since"
        if self.quarantined != current.quarantined:
            ended, new = set(self.quarantined) - set(current.quarantined), set(current.quarantined)
            return "; ".join(
                [f"the quarantine of {uuid} has ended" for uuid in sorted(ended)]
                + [f"{uuid} is in quarantine" for uuid in sorted(new - set(self.quarantined))]
            )
        if self.unwell != current.unwell:
            new = set(current.unwell) - set(self.unwell)
            changed = ", ".join(sorted(new)) or "a GPU is healthy again"
            return f"the health of GPUs has changed: {changed}"
        return (
            "" if self.wanted == current.wanted else "the validator's parameters have changed since"
        )


def key(observed: ChainObservation, expected: Expected) -> Key:
    """The key of a validation made now."""
    nvml = observed.nvml
    names = {gpu.index: gpu.uuid for gpu in nvml.gpus}
    unwell = {
        f"{names.get(finding.gpu if finding.gpu is not None else -1, '')} {finding.what}"
        for finding in health.failed(health.judge(nvml))
        if finding.what != "no-answer"
    }
    answering = [gpu for gpu in nvml.gpus if gpu.error is None and gpu.uuid]
    mig = [
        f"{gpu.uuid} {'on' if gpu.mig_current else 'off'} "
        + " ".join(sorted(m.uuid for m in gpu.mig_devices))
        for gpu in answering
        if gpu.mig_current is not None
    ]
    return Key(
        boot_id=observed.boot_id,
        driver=observed.loaded,
        gpus=tuple(sorted(gpu.uuid for gpu in answering)),
        mig=tuple(sorted(layout.strip() for layout in mig)),
        runtime=observed.runtime_digest,
        wanted=expected.text,
        quarantined=tuple(sorted(entry.uuid or entry.pci for entry in observed.quarantine.active)),
        unwell=tuple(sorted(unwell)),
        files=observed.files_digest,
        manager=observed.manager,
    )


def cuda_devices(observed: ChainObservation) -> tuple[str, ...]:
    """UUIDs of the devices a kernel must run on: whole GPUs, or MIG devices where MIG is on.

    A GPU that NVML cannot describe any more is taken from the module's own list.
    """
    devices: list[str] = []
    for gpu in observed.nvml.gpus:
        if observed.held(gpu):
            continue
        if gpu.mig_current:
            devices += [mig.uuid for mig in gpu.mig_devices]
        elif gpu.uuid:
            devices.append(gpu.uuid)
    described = {gpu.pci for gpu in observed.nvml.gpus if gpu.uuid}
    devices += [
        gpu.uuid
        for gpu in observed.module_gpus
        if gpu.address not in described
        and "?" not in gpu.uuid
        and not observed.quarantine.holds(gpu.uuid, gpu.address)
    ]
    return tuple(uuid for uuid in devices if uuid)
