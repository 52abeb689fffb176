"""What every probe learns of a node besides the asks of its states.

Found with sh builtins only, so that it costs a node next to nothing and works without a driver.

Sources:
    os-release(5); kernel sysfs-bus-pci ABI;
    NVIDIA/nvidia-installer: misc.c (device ids without GSP) and detect-self-hosted.h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import gpu_models, keyed, rpm

#: First and last PCI device id of each architecture, as far as a decision needs it.
_ARCHITECTURES = (
    (0x0FC0, 0x133F, "kepler"),
    (0x1340, 0x15EF, "maxwell"),
    (0x15F0, 0x15FF, "pascal"),
    (0x1617, 0x17FF, "maxwell"),
    (0x1B00, 0x1D7F, "pascal"),
    (0x1D80, 0x1DFF, "volta"),
    (0x1E00, 0x1FFF, "turing"),
    (0x2080, 0x20FF, "ampere"),
    (0x2180, 0x21FF, "turing"),
    (0x2200, 0x22FF, "ampere"),
    (0x2300, 0x237F, "hopper"),
    (0x2400, 0x25FF, "ampere"),
    (0x2600, 0x28FF, "ada"),
    (0x2900, 0x2FFF, "blackwell"),
    (0x3180, 0x31FF, "blackwell"),
)
ARCHITECTURES = tuple(dict.fromkeys(name for _, _, name in _ARCHITECTURES))
#: Programs by which a scheduler places work on a node, by the scheduler.
AGENTS = {
    "kubelet": "Kubernetes",
    "kubelite": "Kubernetes",  # of microk8s
    "k3s": "Kubernetes",
    "rke2": "Kubernetes",
    "slurmd": "Slurm",
}
RUNTIMES = ("containerd", "crio", "docker", "k3s", "podman")
#: Parts that sit with their own CPU on one module; only the open kernel modules drive them.
_SELF_HOSTED = ((0x2340, 0x237F), (0x2940, 0x297F), (0x31C0, 0x31FF), (0x31A1, 0x31A1))
_MIG_CAPABLE = (
    "20b",
    *("20f1", "20f3", "20f5", "20f6"),
    *("2321", "2322", "2324", "2329", "233", "2342", "2348"),
    *("2901", "2941", "2bb", "2c31", "3182", "31c2"),
)


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One NVIDIA function on PCI: a GPU or an NVSwitch."""

    address: str  # in the form of sysfs: 0000:1b:00.0
    device_id: str  # four lower-case hexadecimal digits
    class_id: str  # six hexadecimal digits: 030200 3D controller, 030000 display, 068000 bridge
    driver: str | None  # kernel driver bound to it

    @property
    def is_nvswitch(self) -> bool:
        """An NVSwitch of the first three NVLink-switch generations (later ones are not on PCI)."""
        return self.class_id.startswith("0680")

    @property
    def is_gpu(self) -> bool:
        """A display or 3D controller."""
        return self.class_id.startswith(("0300", "0302"))

    @property
    def architecture(self) -> str | None:
        """NVIDIA's name for the generation in lower case; ``None`` for an id not in the table."""
        number = int(self.device_id, 16)
        for first, last, name in _ARCHITECTURES:
            if first <= number <= last:
                return name
        return None

    @property
    def needs_open_modules(self) -> bool:
        """Only the open kernel modules drive it: self-hosted parts and everything from Blackwell on."""
        number = int(self.device_id, 16)
        self_hosted = any(first <= number <= last for first, last in _SELF_HOSTED)
        return self_hosted or self.architecture == "blackwell"

    @property
    def needs_proprietary_modules(self) -> bool:
        """No GSP, so the open kernel modules cannot drive it: everything before Turing."""
        return self.architecture in ("kepler", "maxwell", "pascal", "volta")

    @property
    def mig_capable(self) -> bool:
        """Can be divided into MIG devices (A100, A30, H100, H200, B200, RTX PRO 6000 families)."""
        return self.is_gpu and self.device_id.startswith(_MIG_CAPABLE)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node itself; an empty string or tuple where something is not there."""

    os_id: str = ""  # debian, ubuntu, rhel ...
    os_version: str = ""  # 12, 24.04
    os_codename: str = ""
    os_like: tuple[str, ...] = ()
    machine: str = ""  # x86_64, aarch64
    kernel: str = ""
    boot_id: str = ""
    systemd: bool = False
    container: bool = False  # the node is a container: no kernel of its own
    python3: str = ""  # path of the interpreter
    runtimes: tuple[str, ...] = ()  # of RUNTIMES: those installed
    package_manager: str = ""  # apt, dnf, zypper
    #: NVIDIA functions on PCI; in an image those it is said to be for, with addresses of their own.
    pci: tuple[PciGpu, ...] = field(default_factory=tuple[PciGpu, ...])
    image: bool = False  # a root that is baked: no kernel runs, no systemd, no GPU is there
    first_boot: str = ""  # of a baked image: pending, running, done, or failed and why
    hostname: str = ""
    machine_id: str = ""  # of /etc/machine-id
    system_uuid: str = ""  # of DMI
    agents: tuple[str, ...] = ()  # of AGENTS: those that run
    joined: tuple[str, ...] = ()  # of AGENTS: those that start at boot and have joined a cluster
    addresses: tuple[str, ...] = ()  # of its network interfaces, where slurmd is installed

    @property
    def gpus(self) -> tuple[PciGpu, ...]:
        """GPUs on PCI, by address."""
        return tuple(device for device in self.pci if device.is_gpu)

    @property
    def without_driver(self) -> bool:
        """It has GPUs, and NVIDIA's driver drives none of them."""
        return bool(self.gpus) and all(gpu.driver != "nvidia" for gpu in self.gpus)

    @property
    def has_nvswitch(self) -> bool:
        """NVSwitches show on PCI."""
        return any(device.is_nvswitch for device in self.pci)

    @property
    def mig_capable(self) -> bool:
        """At least one GPU can be divided."""
        return any(gpu.mig_capable for gpu in self.gpus)

    @property
    def distribution(self) -> str:
        """NVIDIA's code for it: ``debian12``, ``ubuntu2404``, ``rhel9``."""
        version = self.os_version
        if self.os_id == "ubuntu":
            return "ubuntu" + version.replace(".", "")
        # A rolling release has a date.
        return self.os_id + ("" if self.os_id.endswith("tumbleweed") else version.partition(".")[0])


_SCRIPT = shell.load("agents", "gpustate.shell") + shell.fill(
    shell.load("facts", "gpustate.core"), FAMILY=rpm.FAMILY
)

_ID = re.compile("0x[0-9A-Fa-f]{4,6}")
#: ``ID`` of os-release that a product has for some of its customers.
_SAME = {"sles_sap": "sles", "sle_hpc": "sles"}


def meant_for(text: str) -> tuple[PciGpu, ...]:
    """The GPUs that an image is said to be for, such as ``8xH100``, as they would show on PCI.

    Raises:
        ValueError: naming the known models.
    """
    counts = gpu_models.parse_count(text) if text else {}
    if counts.pop("", 0):
        raise ValueError(f"{text!r} names no model; write 8xH100 or 4xA100,4xL40S")
    ids = [gpu_models.MODELS[model][0] for model, count in counts.items() for _ in range(count)]
    return tuple(
        PciGpu(f"image:{number}", device_id, "030200", None) for number, device_id in enumerate(ids)
    )


def _meant(text: str) -> tuple[PciGpu, ...]:
    try:
        return meant_for(text)
    except ValueError as error:
        raise ProbeError(f"the GPUs of the image: {error}") from None


@dataclass(frozen=True, slots=True)
class FactsQuery(Query[NodeFacts]):
    """Everything :class:`NodeFacts` holds, in one fragment."""

    def script(self) -> str:
        return _SCRIPT

    def parse(self, answer: Answer) -> NodeFacts:
        keys = keyed.lists(answer.text)
        if "kernel" not in keys and "image" not in keys:
            raise ProbeError("the node did not say which kernel it runs (uname failed)")

        def one(key: str) -> str:
            return keyed.first(keys, key)

        pci: list[PciGpu] = []
        for line in keys.get("pci", []):
            parts = line.split()
            if len(parts) != 4 or not (_ID.fullmatch(parts[1]) and _ID.fullmatch(parts[2])):
                raise ProbeError(f"sysfs answered {line[:80]!r} for a PCI device")
            address, device, class_id, driver = parts
            pci.append(
                PciGpu(
                    address,
                    device[2:].lower(),
                    class_id[2:].lower(),
                    None if driver == "-" else driver,
                )
            )
        return NodeFacts(
            os_id=_SAME.get(one("os_id"), one("os_id")),
            os_version=one("os_version"),
            os_codename=one("os_codename"),
            os_like=tuple(one("os_like").split()),
            machine=one("machine"),
            kernel=one("kernel"),
            boot_id=one("boot_id"),
            hostname=one("hostname"),
            machine_id=one("machine_id"),
            system_uuid=one("system_uuid").lower(),
            agents=tuple(dict.fromkeys(keys.get("agent", ()))),
            joined=tuple(dict.fromkeys(keys.get("joined", ()))),
            addresses=tuple(" ".join(keys.get("addresses", ())).split()),
            systemd=bool(one("systemd")),
            container=bool(one("container")),
            python3=one("python3"),
            runtimes=tuple(r.replace("dockerd", "docker") for r in keys.get("runtime", [])),
            package_manager=one("package_manager"),
            pci=tuple(sorted(pci, key=lambda gpu: gpu.address))
            if "image" not in keys
            else _meant(one("image_gpus")),
            image="image" in keys,
            first_boot=one("first_boot"),
        )

    def placeholder(self) -> NodeFacts:
        return NodeFacts(
            os_id="debian",
            os_version="12",
            os_codename="bookworm",
            machine="x86_64",
            systemd=True,
            python3="/usr/bin/python3",
            runtimes=("containerd",),
            package_manager="apt",
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a condition may look at: the inventory's word and the probe's."""

    name: str
    groups: tuple[str, ...]
    vars: Mapping[str, object]
    facts: NodeFacts
