"""What every probe learns of a node besides the asks of its states.

Found with sh builtins only, so that it costs a node next to nothing and works without a driver.

Sources:
    os-release(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import keyed, pci_gpus, rpm
from gpustate.formats.pci_gpus import PciGpu


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
    runtimes: tuple[str, ...] = ()  # of formats.node_programs: those installed
    package_manager: str = ""  # apt, dnf, zypper; dnf5, which is unsupported
    #: NVIDIA functions on PCI; in an image those it is said to be for, with addresses of their own.
    pci: tuple[PciGpu, ...] = field(default_factory=tuple[PciGpu, ...])
    image: bool = False  # a root that is baked: no kernel runs, no systemd, no GPU is there
    first_boot: str = ""  # of a baked image: pending, running, done, or failed and why
    hostname: str = ""
    machine_id: str = ""  # of /etc/machine-id
    system_uuid: str = ""  # of DMI
    agents: tuple[str, ...] = ()  # of formats.node_programs: those that run
    joined: tuple[str, ...] = ()  # agents that start at boot and have joined a cluster
    device_plugin: bool = False  # a service offers its GPUs to the kubelet
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

#: ``ID`` of os-release that a product has for some of its customers.
_SAME = {"sles_sap": "sles", "sle_hpc": "sles"}


def _target_gpus(text: str) -> tuple[PciGpu, ...]:
    try:
        return pci_gpus.meant_for(text)
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

        def first(key: str) -> str:
            return keyed.first(keys, key)

        pci = map(pci_gpus.read, keys.get("pci", []))
        return NodeFacts(
            os_id=_SAME.get(first("os_id"), first("os_id")),
            os_version=first("os_version"),
            os_codename=first("os_codename"),
            os_like=tuple(first("os_like").split()),
            machine=first("machine"),
            kernel=first("kernel"),
            boot_id=first("boot_id"),
            hostname=first("hostname"),
            machine_id=first("machine_id"),
            system_uuid=first("system_uuid").lower(),
            agents=tuple(dict.fromkeys(keys.get("agent", ()))),
            joined=tuple(dict.fromkeys(keys.get("joined", ()))),
            device_plugin=bool(first("device_plugin")),
            addresses=tuple(" ".join(keys.get("addresses", ())).split()),
            systemd=bool(first("systemd")),
            container=bool(first("container")),
            python3=first("python3"),
            runtimes=tuple(r.replace("dockerd", "docker") for r in keys.get("runtime", [])),
            package_manager=first("package_manager"),
            pci=tuple(sorted(pci, key=lambda gpu: gpu.address))
            if "image" not in keys
            else _target_gpus(first("image_gpus")),
            image="image" in keys,
            first_boot=first("first_boot"),
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
