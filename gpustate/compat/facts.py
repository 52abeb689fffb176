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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from gpustate.compat.versions import Version, parse
from gpustate.errors import UsageError
from gpustate.formats import gpu_models
from gpustate.formats.words import quote, suggest
from gpustate.manifests.settings import DOMAIN_GATES

Value = Version | frozenset[str] | bool | int | None
Facts = Mapping[str, Value]

#: GPU models by architecture, with the names of inventories and rules.
MODELS: Mapping[str, tuple[str, ...]] = {
    name: tuple(models.split())
    for name, models in {
        "kepler": "K40 K80",
        "maxwell": "M10 M40 M60 GTX980 GTX980TI",
        "pascal": "P4 P40 P100 P2000 P4000 P5000 P6000 GP100 GTX1050 GTX1050TI GTX1060 GTX1070 GTX1080 GTX1080TI TITANXP",
        "volta": "V100 TITANV",
        "turing": "T4 T400 T600 T1000 RTX4000 RTX5000 RTX6000 RTX8000 GTX1650 GTX1660 GTX1660TI "
        "RTX2060 RTX2070 RTX2080 RTX2080TI TITANRTX",
        "ampere": "A2 A10 A10G A16 A30 A30X A40 A100 A100X A800 A2000 A4000 A4500 A5000 A5500 A6000 "
        "RTX3050 RTX3060 RTX3060TI RTX3070 RTX3070TI RTX3080 RTX3080TI RTX3090 "
        "RTX3090TI",
        "ada": "L2 L4 L20 L40 L40S L40G RTX2000ADA RTX4000ADA RTX4500ADA RTX5000ADA RTX6000ADA RTX4060 RTX4060TI RTX4070 RTX4070TI "
        "RTX4080 RTX4090 RTX4090D",
        "hopper": "H20 H100 H200 H800 GH200",
        "blackwell": "B200 B300 GB10 GB200 GB300 RTXPRO4500 RTXPRO5000 RTXPRO6000 RTXPRO6000D "
        "RTX5050 RTX5060 RTX5060TI RTX5070 RTX5070TI RTX5080 RTX5090 RTX5090D",
    }.items()
}
_ARCHITECTURE = {model: name for name, models in MODELS.items() for model in models}
#: GeForce and TITAN cards; a Quadro RTX 4000 is not one.
_GEFORCE = re.compile(r"GTX.*|TITAN.*|RTX[2-5]0[5-9]0(TI|D)?")
#: MIG-capable GPUs.
_DIVISIBLE = (
    "A30 A30X A100 A100X A800 H20 H100 H200 H800 GH200 B200 B300 GB200 GB300 "
    "RTXPRO4500 RTXPRO5000 RTXPRO6000 RTXPRO6000D"
)
_MIG = frozenset(_DIVISIBLE.split())
_OTHER_NAMES = {**{"GRACEHOPPER": "GH200", "DGXSPARK": "GB10"}, **{"RTX6000D": "RTXPRO6000D"}}
_YES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_NONE = ("none", "absent")
#: Boards of eight GPUs with NVSwitches; H100 and the like are also PCIe cards, which their names say.
_BOARD = re.compile(r" *(?:8|16) *[xX*] *(.*)")
_SXM, _CARD = re.compile(r"SXM|HGX|HBM3", re.I), re.compile(r"PCIE|NVL", re.I)
_SWITCHED = frozenset(("A100", "A800", "H20", "H100", "H200", "H800"))
_SWITCHED_NVLINK5 = frozenset(("B200", "B300"))

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


def _fact(row: str) -> Fact:
    name, kind, meaning, where, *more = row.split(" | ")
    kind, *words = kind.split()
    aliases = tuple(" ".join(more).split())
    numbers = int(words.pop()) if kind == "version" else 0
    word_lists = {"MODEL": tuple(_ARCHITECTURE), "ARCHITECTURE": tuple(MODELS)}
    allowed = word_lists.get(" ".join(words), tuple(words))
    return Fact(name, cast("Kind", kind), meaning, where, numbers, allowed, aliases)


#: Name, kind with the numbers of a complete version or the words, meaning, source, other names.
_TABLE = """
# The driver and its platform
driver | version 2 | desired driver, or its branch | policy | driver_version branch
module_type | words open proprietary | kernel modules | policy | modules
module_source | words dkms precompiled | source of kernel modules | policy
driver_from | words vendor distribution container | repository | policy
userland | version 2 | version of the driver's libraries | given by hand | libnvidia_ml
driver_loaded | version 2 | version of the loaded module | given by hand
kernel | version 3 | kernel release (uname -r) | probe | kernel_version
kernel_auto_update | flag | unattended upgrades may install another kernel | given by hand
kernel_headers | flag | kernel headers are installed | given by hand | headers
machine | words x86_64 aarch64 | architecture of the CPU | probe
os | words | distribution, ID of os-release | probe | distribution distro
os_version | version 2 | its version | probe | release
gsp | flag | GSP firmware is in use (NVreg_EnableGpuFirmware) | policy | gsp_firmware
cdmm | flag | NVreg_CoherentGPUMemoryMode=driver | policy
uvm_hmm | words on off | HMM of nvidia-uvm | policy
drm_loaded | flag | nvidia_drm is loaded | given by hand
nouveau_loaded | flag | nouveau or nova_core is loaded | probe | nouveau
# GPUs and the fabric between them
gpu | words MODEL | GPU models, all of the node | probe | gpus model
arch | words ARCHITECTURE | architectures of the GPUs | follows from gpu | architecture
geforce | flag | GeForce or TITAN cards are among the GPUs | follows from gpu
mig_capable | flag | a MIG-capable GPU is among the GPUs | follows from gpu
fabric | words pcie nvswitch nvlink5 mnnvl | GPU interconnect; follows from 8x H100-SXM5 and the like | probe | nvswitch
fabric_manager | version 2 | fabric manager | package on the node | fabricmanager fm
fabric_manager_runs | flag | its service is enabled | policy
nvlsm | version 3 | NVLink subnet manager | package on the node
imex | version 2 | nvidia-imex | package on the node
imex_runs | flag | nvidia-imex.service is enabled on the host | policy
nscq | version 2 | libnvidia-nscq | package on the node
nvsdm | version 2 | libnvsdm | package on the node
ib_umad | flag | modules ib_umad and mlx5_ib are available | probe
# CUDA, DCGM
cuda | version 2 | CUDA toolkit of applications | policy | cuda_toolkit
cuda_compat | flag | CUDA's forward compatibility package is used | package on the node
dcgm | version 3 | DCGM | package on the node
dcgm_cuda | number | CUDA major of DCGM's package | package on the node
dcgm_exporter | version 3 | dcgm-exporter, the second version in its tag | package on the node | exporter
# Container runtimes
toolkit | version 3 | NVIDIA Container Toolkit | package on the node | container_toolkit ctk
libnvidia_container | version 3 | libnvidia-container1 and -tools | package on the node
runtime_mode | words auto legacy cdi jit-cdi csv | mode of nvidia-container-runtime | policy
containerd | version 3 | containerd | package on the node
containerd_config | number | version of containerd's root configuration | given by hand
containerd_dropin | number | version of the drop-in with the nvidia handler | given by hand
containerd_imports | flag | its root configuration imports other files | given by hand
crio | version 3 | CRI-O | package on the node | cri_o
docker | version 3 | Docker Engine | package on the node
podman | version 3 | Podman | package on the node
nvidia_ctk_configures | flag | nvidia-ctk or the Operator writes the runtime's configuration | policy
cdi | flag | CDI is used | policy
nri | flag | the toolkit's NRI plugin is used | policy
cgroup_driver | words systemd cgroupfs | of the kubelet | given by hand
user_namespaces | flag | pods with hostUsers: false | given by hand
# Kubernetes
kubernetes | version 3 | Kubernetes | given by hand | k8s kubelet
kubernetes_flavour | words kubeadm k3s rke2 k0s microk8s gke eks aks openshift nkp | distribution of Kubernetes | given by hand | k8s_flavour
openshift | version 2 | OpenShift | given by hand
gpu_operator | version 3 | GPU Operator | given by hand | operator
network_operator | version 3 | Network Operator | given by hand
device_plugin | version 3 | k8s-device-plugin | given by hand
device_list_strategy | words envvar volume-mounts cdi-annotations cdi-cri | how the device plugin names GPUs to the runtime | given by hand
mig_manager | version 3 | MIG manager, nvidia-mig-parted | given by hand | mig_parted
nfd | version 3 | Node Feature Discovery | given by hand
gfd_feature_files | flag | GFD writes feature files, not NodeFeature objects | given by hand
nodes | number | GPU nodes in the cluster | given by hand
cluster_policy | flag | a ClusterPolicy exists | given by hand
gpu_cluster | flag | a GPUCluster exists | given by hand
host_driver | flag | the driver is on the host, not in a container | given by hand
kubevirt | version 3 | KubeVirt | given by hand
openshift_virtualization | version 3 | OpenShift Virtualization | given by hand
runai | version 3 | Run:ai | given by hand
# Dynamic resource allocation
dra | flag | the DRA driver is used | policy
dra_gpus | flag | it allocates GPUs (resources.gpus.enabled) | policy
compute_domains | flag | ComputeDomains are used | policy
device_plugin_runs | flag | the device plugin runs on the node too | policy
dra_gates | words ConsumableShares DeviceMetadata DynamicMIG MPSSupport NVMLDeviceHealthCheck PassthroughSupport TimeSlicingSettings FabricManagerPartitioning HostManagedIMEXDaemon ComputeDomainCliques CrashOnNVLinkFabricErrors IMEXDaemonsWithDNSNames | enabled feature gates of the DRA driver | policy
# MIG and other uses of GPUs
mig | flag | GPUs are partitioned by MIG | policy
mig_mixed | flag | MIG devices and whole GPUs on one node | policy
mig_strategy | words none single mixed | of device plugin and GFD | policy
vgpu | flag | NVIDIA vGPU, host or guest | policy
vgpu_software | version 1 | vGPU software release | given by hand
vgpu_mdev | flag | vGPUs are mediated devices | given by hand
vgpu_device_manager | version 3 | vGPU device manager | given by hand
passthrough | flag | GPUs are passed through to VMs | policy
kata | version 3 | Kata Containers | given by hand
confidential | flag | Confidential Computing mode is on | probe | cc
ppcie | flag | protected PCIe mode | probe
gpus_per_vm | number | GPUs per VM | given by hand
# Storage and network
gds | flag | GPUDirect Storage is used | policy
nvidia_fs | version 3 | nvidia-fs | package on the node
gdrcopy | version 2 | GDRCopy | package on the node | gdrdrv
rdma | words peermem dma-buf | GPUDirect RDMA mechanism | policy
ofed | version 2 | MLNX_OFED or DOCA-OFED | package on the node | mlnx_ofed doca_ofed
ofed_kind | words mlnx doca | the one that ofed is a version of | package on the node
ofed_after_driver | flag | OFED was installed after the driver was built | given by hand
# Security
secure_boot | flag | Secure Boot is on | probe
signer_enrolled | flag | the module signing key is enrolled | given by hand
selinux | words enforcing permissive disabled | SELinux | given by hand
"""
_LIST = tuple(_fact(row) for row in _TABLE.splitlines() if row and not row.startswith("#"))
#: The fact that packages of other states follow.
DRIVER = "driver"
FACTS: Mapping[str, Fact] = {fact.name: fact for fact in _LIST}
_NAMES: Mapping[str, Fact] = {**FACTS, **{alias: fact for fact in _LIST for alias in fact.aliases}}


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


def value(fact: Fact, raw: object) -> Value:
    """Parse a written or observed value of a fact.

    Raises:
        UsageError: it is invalid for this fact.
    """
    text = " ".join(str(raw).split()) if not isinstance(raw, bool) else raw
    if fact.kind == "version" and isinstance(text, str) and _YES.get(text.lower()) is False:
        return None
    if raw is None or (isinstance(text, str) and text.lower() in _NONE and fact.kind != "flag"):
        if "none" in fact.words:
            return frozenset(("none",))
        return None
    return _READERS[fact.kind](fact, raw)


def _wrong(fact: Fact, raw: object, expected: str, fix: str | None = None) -> UsageError:
    return UsageError(f"{fact.name} is {quote(raw)}, wanted {expected}", fix=fix)


def _as_version(fact: Fact, raw: object) -> Version:
    try:
        return parse(str(raw) if not isinstance(raw, bool) else "", fact.numbers)
    except ValueError:
        example = {1: "18", 2: "580.65.06"}.get(fact.numbers, "1.18.2")
        raise _wrong(fact, raw, f"a version such as {example}, or none") from None


def _as_words(fact: Fact, raw: object) -> frozenset[str]:
    items = raw if isinstance(raw, (list, tuple, set, frozenset)) else str(raw).split(",")
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
    model = gpu_models.plain(re.sub(r"^[0-9]{1,3} *[xX*] *", "", item), _ARCHITECTURE)
    model = _OTHER_NAMES.get(model, model)
    if model not in _ARCHITECTURE:
        # Other letters are another architecture: P4000 is no A4000.
        series = re.match(r"[A-Z]*", model)
        near = [name for name in _ARCHITECTURE if series and re.match(rf"{series[0]}[0-9]", name)]
        fix = suggest(model, near, "set arch instead of gpu", 2, 0.5)
        raise _wrong(fact, item, "a GPU model such as H100", fix)
    return model


def _as_flag(fact: Fact, raw: object) -> bool:
    flag = _YES.get(str(raw).strip().lower())
    if flag is None:
        raise _wrong(fact, raw, "yes or no")
    return flag


def _as_number(fact: Fact, raw: object) -> int:
    text = str(raw).strip().removeprefix("v") if not isinstance(raw, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _wrong(fact, raw, "a number")
    return int(text)


_READERS: Mapping[Kind, Callable[[Fact, object], Value]] = {
    "version": _as_version,
    "words": _as_words,
    "flag": _as_flag,
    "number": _as_number,
}


def facts(values: Mapping[str, object]) -> dict[str, Value]:
    """Parse facts from names and values, and add derived facts.

    Raises:
        UsageError: an unknown or duplicate fact, or an invalid value.
    """
    parsed: dict[str, Value] = {}
    board = next(
        (_fabric(str(raw)) for name, raw in values.items() if find(name).name == "gpu"), ""
    )
    for name, written in values.items():
        pairs = {find(name).name: written}
        if name.strip().lower() == "nvswitch":
            switched = _as_flag(FACTS["fabric"], written)
            pairs = {"fabric": (board if "nv" in board else "nvswitch") if switched else "pcie"}
        if "os" in pairs and isinstance(written, str):
            match = re.fullmatch(r"([a-z]+)[ -]?([0-9][0-9.]*)", written.strip().lower())
            pairs = {"os": match[1], "os_version": match[2]} if match else pairs
        if "ofed" in pairs and name.lower()[:4] in FACTS["ofed_kind"].words:
            pairs["ofed_kind"] = name[:4]
        for key, raw in pairs.items():
            if key in parsed:
                raise UsageError(f"{key} is set twice", fix="set it once")
            parsed[key] = value(FACTS[key], raw)
    if board:
        parsed.setdefault("fabric", frozenset((board,)))
    return with_derived(parsed)


def _fabric(gpu: str) -> str:
    """The fabric of a board of eight GPUs by their name; empty: it may have another one."""
    match = _BOARD.fullmatch(gpu)
    model = gpu_models.plain(match[1], _ARCHITECTURE) if match is not None else ""
    if model in _SWITCHED_NVLINK5:
        return "nvlink5"
    if model not in _SWITCHED:
        return ""
    return "nvswitch" if _SXM.search(gpu) else "pcie" if _CARD.search(gpu) else ""


def unclear_board(gpu: str) -> str:
    """How to say which fabric eight GPUs have, if their name leaves it open; empty if it does not."""
    match = _BOARD.fullmatch(gpu)
    model = gpu_models.plain(match[1], _ARCHITECTURE) if match is not None else ""
    if model not in _SWITCHED or _fabric(gpu):
        return ""
    module = "SXM4" if _ARCHITECTURE[model] == "ampere" else "SXM5"
    return (
        f"{gpu} may be PCIe cards, so no rule about NVSwitches decides; for a board with NVSwitches set "
        f"gpu={gpu}-{module}, for cards gpu={gpu}-PCIe"
    )


def with_derived(base: Facts) -> dict[str, Value]:
    """Facts together with those derived from them."""
    extended = dict(base)
    models = extended.get("gpu")
    if isinstance(models, frozenset):
        extended.setdefault("arch", frozenset(_ARCHITECTURE[model] for model in models))
        extended.setdefault("geforce", any(_GEFORCE.fullmatch(model) for model in models))
        extended.setdefault("mig_capable", bool(models & _MIG))
    if extended.get("compute_domains"):
        extended.setdefault("dra_gates", frozenset(DOMAIN_GATES))
    if extended.get("gpu_operator"):
        extended.setdefault("nvidia_ctk_configures", True)
    return extended


def format_value(value: Value) -> str:
    """A value as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)
