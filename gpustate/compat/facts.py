"""The closed list of facts for rules, and their syntax.

A fact is unknown (not set), known to be absent (``none``), or has a value: a version, words from a list, a
number, or yes or no. :data:`FACTS` has the meaning and source of each; ``docs/matrix.md`` shows the same table.

Surprising: some facts are derived from others. A GPU model implies its architecture, ``os=ubuntu24.04`` is two
facts, ``doca_ofed=3.2`` is too, and the absence of a fabric manager is a value.

Sources:
    NVIDIA/open-gpu-kernel-modules, README.md: list of compatible GPUs (models and architectures).
    docs.nvidia.com, MIG user guide, "Supported GPUs" (read 2026-11-23).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpustate.compat.versions import Version, parse
from gpustate.errors import UsageError
from gpustate.formats.words import quote, suggest

Value = Version | frozenset[str] | bool | int | None
Facts = Mapping[str, Value]

#: GPU models by architecture, with the names of inventories and rules.
MODELS: Mapping[str, tuple[str, ...]] = {
    "kepler": ("K40", "K80"),
    "maxwell": ("M10", "M40", "M60", "GTX980", "GTX980TI"),
    "pascal": ("P4", "P40", "P100", "GTX1060", "GTX1070", "GTX1080", "GTX1080TI", "TITANXP"),
    "volta": ("V100", "TITANV"),
    "turing": (
        *("T4", "T400", "T600", "T1000", "RTX4000", "RTX5000", "RTX6000", "RTX8000"),
        *("GTX1650", "GTX1660", "GTX1660TI", "RTX2060", "RTX2070", "RTX2080", "RTX2080TI"),
        "TITANRTX",
    ),
    "ampere": (
        *("A2", "A10", "A10G", "A16", "A30", "A30X", "A40", "A100", "A100X", "A800"),
        *("A4000", "A4500", "A5000", "A5500", "A6000"),
        *("RTX3050", "RTX3060", "RTX3060TI", "RTX3070", "RTX3070TI"),
        *("RTX3080", "RTX3080TI", "RTX3090", "RTX3090TI"),
    ),
    "ada": (
        *("L2", "L4", "L20", "L40", "L40S", "L40G", "RTX6000ADA"),
        *("RTX4060", "RTX4060TI", "RTX4070", "RTX4070TI", "RTX4080", "RTX4090", "RTX4090D"),
    ),
    "hopper": ("H20", "H100", "H200", "H800", "GH200"),
    "blackwell": (
        *("B200", "B300", "GB10", "GB200", "GB300"),
        *("RTXPRO4500", "RTXPRO5000", "RTXPRO6000", "RTXPRO6000D"),
        *("RTX5050", "RTX5060", "RTX5060TI", "RTX5070", "RTX5070TI"),
        *("RTX5080", "RTX5090", "RTX5090D"),
    ),
}
_ARCHITECTURE = {model: name for name, models in MODELS.items() for model in models}
#: GeForce and TITAN cards; a Quadro RTX 4000 is not one.
_GEFORCE = re.compile(r"GTX.*|TITAN.*|RTX[2-5]0[5-9]0(TI|D)?")
#: MIG-capable GPUs.
_MIG = frozenset(
    (
        *("A30", "A30X", "A100", "A100X", "A800"),
        *("H20", "H100", "H200", "H800", "GH200"),
        *("B200", "B300", "GB200", "GB300"),
        *("RTXPRO4500", "RTXPRO5000", "RTXPRO6000", "RTXPRO6000D"),
    )
)
_OTHER_NAMES = {
    **{"GRACEHOPPER": "GH200", "DGXSPARK": "GB10"},
    **{"RTXA6000": "A6000", "RTX6000D": "RTXPRO6000D"},
}
#: Feature gates of the DRA driver that concern ComputeDomains and are on by default: its pkg/featuregates.
_DEFAULT_GATES = frozenset(("IMEXDaemonsWithDNSNames", "ComputeDomainCliques"))
_YES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_NONE = ("none", "absent")

Kind = Literal["version", "words", "flag", "number"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact.

    Args:
        name: in rules and on the command line.
        kind: of its values.
        meaning: one line.
        where: the source of its value.
        numbers: how many numbers a complete version has.
        words: the allowed words; empty for any.
        aliases: other names.
    """

    name: str
    kind: Kind
    meaning: str
    where: str
    numbers: int = 3
    words: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def _version(name: str, meaning: str, where: str, numbers: int = 3, *aliases: str) -> Fact:
    return Fact(name, "version", meaning, where, numbers, (), aliases)


def _words(name: str, meaning: str, where: str, words: Iterable[str] = (), *aliases: str) -> Fact:
    return Fact(name, "words", meaning, where, 0, tuple(words), aliases)


def _flag(name: str, meaning: str, where: str, *aliases: str) -> Fact:
    return Fact(name, "flag", meaning, where, 0, (), aliases)


def _number(name: str, meaning: str, where: str, *aliases: str) -> Fact:
    return Fact(name, "number", meaning, where, 0, (), aliases)


_POLICY, _GIVEN = "policy", "given by hand"
_PACKAGE, _PROBE = "package on the node", "probe"

_LIST = (
    # The driver and its platform.
    _version("driver", "desired driver, or its branch", _POLICY, 2, "driver_version", "branch"),
    _words("module_type", "kernel modules", _POLICY, ("open", "proprietary"), "modules"),
    _words("module_source", "source of kernel modules", _POLICY, ("dkms", "precompiled")),
    _words("driver_from", "repository", _POLICY, ("vendor", "distribution", "container")),
    _version("userland", "version of the driver's libraries", _GIVEN, 2, "libnvidia_ml"),
    _version("driver_loaded", "version of the loaded module", _GIVEN, 2),
    _version("kernel", "kernel release (uname -r)", _PROBE, 3, "kernel_version"),
    _flag("kernel_auto_update", "unattended upgrades may install another kernel", _GIVEN),
    _flag("kernel_headers", "kernel headers are installed", _GIVEN, "headers"),
    _words("machine", "architecture of the CPU", _PROBE, ("x86_64", "aarch64")),
    _words("os", "distribution, ID of os-release", _PROBE, (), "distribution", "distro"),
    _version("os_version", "its version", _PROBE, 2, "release"),
    _flag("gsp", "GSP firmware is in use (NVreg_EnableGpuFirmware)", _POLICY, "gsp_firmware"),
    _flag("cdmm", "NVreg_CoherentGPUMemoryMode=driver", _POLICY),
    _words("uvm_hmm", "HMM of nvidia-uvm", _POLICY, ("on", "off")),
    _flag("drm_loaded", "nvidia_drm is loaded", _GIVEN),
    _flag("nouveau_loaded", "nouveau or nova_core is loaded", _PROBE, "nouveau"),
    # GPUs and the fabric between them.
    _words("gpu", "GPU models, all of the node", _PROBE, _ARCHITECTURE, "gpus", "model"),
    _words("arch", "architectures of the GPUs", "follows from gpu", MODELS, "architecture"),
    _flag("geforce", "GeForce or TITAN cards are among the GPUs", "follows from gpu"),
    _flag("mig_capable", "a MIG-capable GPU is among the GPUs", "follows from gpu"),
    _words("fabric", "GPU interconnect", _PROBE, ("pcie", "nvswitch", "nvlink5", "mnnvl")),
    _version("fabric_manager", "fabric manager", _PACKAGE, 2, "fabricmanager", "fm"),
    _flag("fabric_manager_runs", "its service is enabled", _POLICY),
    _version("nvlsm", "NVLink subnet manager", _PACKAGE),
    _version("imex", "nvidia-imex", _PACKAGE, 2),
    _flag("imex_runs", "nvidia-imex.service is enabled on the host", _POLICY),
    _version("nscq", "libnvidia-nscq", _PACKAGE, 2),
    _version("nvsdm", "libnvsdm", _PACKAGE, 2),
    _flag("ib_umad", "modules ib_umad and mlx5_ib are available", _PROBE),
    # CUDA, DCGM.
    _version("cuda", "CUDA toolkit of applications", _GIVEN, 2, "cuda_toolkit"),
    _flag("cuda_compat", "CUDA's forward compatibility package is used", _GIVEN),
    _version("dcgm", "DCGM", _PACKAGE),
    _number("dcgm_cuda", "CUDA major of DCGM's package", _PACKAGE),
    _version(
        "dcgm_exporter", "dcgm-exporter, the second version in its tag", _PACKAGE, 3, "exporter"
    ),
    # Container runtimes.
    _version("toolkit", "NVIDIA Container Toolkit", _PACKAGE, 3, "container_toolkit", "ctk"),
    _version("libnvidia_container", "libnvidia-container1 and -tools", _PACKAGE),
    _words(
        *("runtime_mode", "mode of nvidia-container-runtime", _POLICY),
        ("auto", "legacy", "cdi", "jit-cdi", "csv"),
    ),
    _version("containerd", "containerd", _PACKAGE),
    _number("containerd_config", "version of containerd's root configuration", _GIVEN),
    _number("containerd_dropin", "version of the drop-in with the nvidia handler", _GIVEN),
    _flag("containerd_imports", "its root configuration imports other files", _GIVEN),
    _version("crio", "CRI-O", _PACKAGE, 3, "cri_o"),
    _version("docker", "Docker Engine", _PACKAGE),
    _version("podman", "Podman", _PACKAGE),
    _flag(
        *("nvidia_ctk_configures", "nvidia-ctk or the Operator writes the runtime's configuration"),
        _POLICY,
    ),
    _flag("cdi", "CDI is used", _POLICY),
    _flag("nri", "the toolkit's NRI plugin is used", _GIVEN),
    _words("cgroup_driver", "of the kubelet", _GIVEN, ("systemd", "cgroupfs")),
    _flag("user_namespaces", "pods with hostUsers: false", _GIVEN),
    # Kubernetes.
    _version("kubernetes", "Kubernetes", _GIVEN, 3, "k8s", "kubelet"),
    _words(
        *("kubernetes_flavour", "distribution of Kubernetes", _POLICY),
        ("kubeadm", "k3s", "rke2", "k0s", "microk8s", "gke", "eks", "aks", "openshift", "nkp"),
        "k8s_flavour",
    ),
    _version("openshift", "OpenShift", _GIVEN, 2),
    _version("gpu_operator", "GPU Operator", _GIVEN, 3, "operator"),
    _version("network_operator", "Network Operator", _GIVEN),
    _version("device_plugin", "k8s-device-plugin", _GIVEN),
    _words(
        *("device_list_strategy", "how the device plugin names GPUs to the runtime", _GIVEN),
        ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
    ),
    _version("mig_manager", "MIG manager, nvidia-mig-parted", _GIVEN, 3, "mig_parted"),
    _version("nfd", "Node Feature Discovery", _GIVEN),
    _flag("gfd_feature_files", "GFD writes feature files, not NodeFeature objects", _GIVEN),
    _number("nodes", "GPU nodes in the cluster", _GIVEN),
    _flag("cluster_policy", "a ClusterPolicy exists", _GIVEN),
    _flag("gpu_cluster", "a GPUCluster exists", _GIVEN),
    _flag("host_driver", "the driver is on the host, not in a container", _GIVEN),
    _version("kubevirt", "KubeVirt", _GIVEN),
    _version("openshift_virtualization", "OpenShift Virtualization", _GIVEN),
    _version("runai", "Run:ai", _GIVEN),
    # Dynamic resource allocation.
    _flag("dra", "the DRA driver is used", _GIVEN),
    _flag("dra_gpus", "it allocates GPUs (resources.gpus.enabled)", _GIVEN),
    _flag("compute_domains", "ComputeDomains are used", _GIVEN),
    _flag("device_plugin_runs", "the device plugin runs on the node too", _GIVEN),
    _words(
        *("dra_gates", "enabled feature gates of the DRA driver", _GIVEN),
        (
            *("ConsumableShares", "DeviceMetadata", "DynamicMIG", "MPSSupport"),
            *("NVMLDeviceHealthCheck", "PassthroughSupport", "TimeSlicingSettings"),
            *("FabricManagerPartitioning", "HostManagedIMEXDaemon", "ComputeDomainCliques"),
            *("CrashOnNVLinkFabricErrors", "IMEXDaemonsWithDNSNames"),
        ),
    ),
    # MIG and other uses of GPUs.
    _flag("mig", "GPUs are partitioned by MIG", _POLICY),
    _flag("mig_mixed", "MIG devices and whole GPUs on one node", _POLICY),
    _words("mig_strategy", "of device plugin and GFD", _GIVEN, ("none", "single", "mixed")),
    _flag("vgpu", "NVIDIA vGPU, host or guest", _POLICY),
    _version("vgpu_software", "vGPU software release", _GIVEN, 1),
    _flag("vgpu_mdev", "vGPUs are mediated devices", _GIVEN),
    _version("vgpu_device_manager", "vGPU device manager", _GIVEN),
    _flag("passthrough", "GPUs are passed through to VMs", _GIVEN),
    _version("kata", "Kata Containers", _GIVEN),
    _flag("confidential", "Confidential Computing mode is on", _GIVEN, "cc"),
    _flag("ppcie", "protected PCIe mode", _GIVEN),
    _number("gpus_per_vm", "GPUs per VM", _GIVEN),
    # Storage and network.
    _flag("gds", "GPUDirect Storage is used", _POLICY),
    _version("nvidia_fs", "nvidia-fs", _PACKAGE),
    _version("gdrcopy", "GDRCopy", _PACKAGE, 2, "gdrdrv"),
    _words("rdma", "GPUDirect RDMA mechanism", _POLICY, ("peermem", "dma-buf")),
    _version("ofed", "MLNX_OFED or DOCA-OFED", _PACKAGE, 2, "mlnx_ofed", "doca_ofed"),
    _words("ofed_kind", "the one that ofed is a version of", _GIVEN, ("mlnx", "doca")),
    _flag("ofed_after_driver", "OFED was installed after the driver was built", _GIVEN),
    # Security.
    _flag("secure_boot", "Secure Boot is on", _PROBE),
    _flag("signer_enrolled", "the module signing key is enrolled", _PROBE),
    _words("selinux", "SELinux", _GIVEN, ("enforcing", "permissive", "disabled")),
)
FACTS: Mapping[str, Fact] = {fact.name: fact for fact in _LIST}
_NAMES: Mapping[str, Fact] = {
    **FACTS,
    **{alias: fact for fact in _LIST for alias in fact.aliases},
}


def find(name: str) -> Fact:
    """The fact of a name or an alias; blanks, dashes and case make no difference.

    Raises:
        UsageError: with the nearest name.
    """
    plain = re.sub(r"[ -]", "_", name.strip().lower())
    fact = _NAMES.get(plain)
    if fact is None:
        hint = suggest(plain, _NAMES, "facts are listed in docs/matrix.md", 2, 0.5)
        raise UsageError(f"unknown fact {quote(name)}", fix=hint)
    return fact


def value(fact: Fact, given: object) -> Value:
    """Parse a written or observed value of a fact.

    Raises:
        UsageError: it is invalid for this fact.
    """
    text = " ".join(str(given).split()) if not isinstance(given, bool) else given
    if given is None or (isinstance(text, str) and text.lower() in _NONE and fact.kind != "flag"):
        if "none" in fact.words:
            return frozenset(("none",))
        return None
    return _READERS[fact.kind](fact, given)


def _wrong(fact: Fact, given: object, wanted: str, fix: str | None = None) -> UsageError:
    return UsageError(f"{fact.name} is {quote(given)}, wanted {wanted}", fix=fix)


def _as_version(fact: Fact, given: object) -> Version:
    try:
        return parse(str(given) if not isinstance(given, bool) else "", fact.numbers)
    except ValueError:
        example = {1: "18", 2: "580.65.06"}.get(fact.numbers, "1.18.2")
        raise _wrong(fact, given, f"a version such as {example}, or none") from None


def _as_words(fact: Fact, given: object) -> frozenset[str]:
    items = given if isinstance(given, (list, tuple, set, frozenset)) else str(given).split(",")
    read = _model if fact.name == "gpu" else _word
    return frozenset(read(fact, str(item).strip()) for item in items)


def _word(fact: Fact, item: str) -> str:
    if not fact.words:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", item):
            raise _wrong(fact, item, "a word")
        return item.lower()
    for word in fact.words:
        if word.lower() == item.lower():
            return word
    hint = suggest(item.lower(), [word.lower() for word in fact.words], "")
    raise _wrong(fact, item, f"one of {', '.join(fact.words)}", hint or None)


def _model(fact: Fact, item: str) -> str:
    bare = re.sub(r"^[0-9]{1,3} *[xX*] *", "", item).upper()
    bare = re.sub(r"[ _-]|NVIDIA|TESLA|QUADRO|GEFORCE", "", bare)
    bare = bare if bare in _ARCHITECTURE else bare.removesuffix("SUPER")
    bare = _OTHER_NAMES.get(bare, bare)
    if bare not in _ARCHITECTURE:
        fix = suggest(bare, _ARCHITECTURE, "set arch instead of gpu", 2, 0.5)
        raise _wrong(fact, item, "a GPU model such as H100", fix)
    return bare


def _as_flag(fact: Fact, given: object) -> bool:
    if isinstance(given, bool):
        return given
    found = _YES.get(str(given).strip().lower())
    if found is None:
        raise _wrong(fact, given, "yes or no")
    return found


def _as_number(fact: Fact, given: object) -> int:
    text = str(given).strip().removeprefix("v") if not isinstance(given, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _wrong(fact, given, "a number")
    return int(text)


_READERS: Mapping[Kind, Callable[[Fact, object], Value]] = {
    "version": _as_version,
    "words": _as_words,
    "flag": _as_flag,
    "number": _as_number,
}


def facts(given: Mapping[str, object]) -> dict[str, Value]:
    """Parse facts from names and values, and add derived facts.

    Raises:
        UsageError: an unknown or duplicate fact, or an invalid value.
    """
    found: dict[str, Value] = {}
    for name, written in given.items():
        pairs = {find(name).name: written}
        if "os" in pairs and isinstance(written, str):
            match = re.fullmatch(r"([a-z]+)[ -]?([0-9][0-9.]*)", written.strip().lower())
            pairs = {"os": match[1], "os_version": match[2]} if match else pairs
        if "ofed" in pairs and name.lower()[:4] in FACTS["ofed_kind"].words:
            pairs["ofed_kind"] = name[:4]
        for key, one in pairs.items():
            if key in found:
                raise UsageError(f"{key} is set twice", fix="set it once")
            found[key] = value(FACTS[key], one)
    return with_derived(found)


def with_derived(known: Facts) -> dict[str, Value]:
    """Facts together with those derived from them."""
    found = dict(known)
    models = found.get("gpu")
    if isinstance(models, frozenset):
        found.setdefault("arch", frozenset(_ARCHITECTURE[model] for model in models))
        found.setdefault("geforce", any(_GEFORCE.fullmatch(model) for model in models))
        found.setdefault("mig_capable", bool(models & _MIG))
    if found.get("compute_domains"):
        found.setdefault("dra_gates", _DEFAULT_GATES)
    if found.get("gpu_operator"):
        found.setdefault("nvidia_ctk_configures", True)
    return found


def format_value(value: Value) -> str:
    """A value as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
