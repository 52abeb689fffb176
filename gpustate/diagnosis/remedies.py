"""The next move for each way in which the chain of proofs breaks.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    NVIDIA/gpu-operator documentation, troubleshooting; nvidia-smi(1), return values;
    cuda.h, CUresult; NVIDIA fabric manager user guide: CUDA 802 until the fabric is up.
"""

from __future__ import annotations

NO_GPU = "look for the GPUs with lspci -nn -d 10de: and in the firmware's settings (power, risers, passed through to a VM)"
GPU_COUNT = "look for Xid 79 and PCIe errors in dmesg, power-cycle the node, and have a GPU that stays away replaced"
FOREIGN_DRIVER = "keep that module away and reboot: gpustate apply nouveau"
NOT_LOADED = "modprobe nvidia, and read dmesg for why it was not loaded (signature, nouveau, no GPU this branch drives)"
NO_MODULE = (
    "build the module for this kernel: gpustate apply with the state driver (headers and DKMS)"
)
RELOAD = (
    "load the installed driver: gpustate apply with the state driver (unload and load, or reboot)"
)
ONE_SET = "install one matched set of driver packages: gpustate apply with the state driver"
NO_LIBCUDA = (
    "install the driver's CUDA library (libcuda1 or nvidia-driver-cuda) in the driver's version"
)
TORN = "install its package again at the same version: gpustate apply with the state driver"
NOT_IN_NVML = "read dmesg for NVRM and Xid lines of these addresses; reset or reboot brings a GPU back that fell off the bus"
DEVICE_NODES = "nvidia-modprobe -c=MINOR -u makes them; those that are gone or wrong: gpustate apply with the state driver"
CAPABILITY_NODES = "nvidia-modprobe -f FILE makes one, of its file below /proc/driver/nvidia/capabilities; gpustate apply with the state driver or mig makes all"
NO_TOOLKIT = "install it: gpustate apply with the state container-toolkit"
TOOLKIT_BROKEN = (
    "put the toolkit's packages at one version: gpustate apply with the state container-toolkit"
)
NO_LOW_LEVEL = (
    "install runc (containerd.io has one of its own), or name one that is there in nvidia-container-runtime.runtimes "
    "of /etc/nvidia-container-runtime/config.toml"
)
NO_CONTAINERD = "install containerd, or prove without it (containers: none)"
TOOLKIT_CONFIG = "fix that line, or copy back what is kept of the file; then gpustate apply with the state container-toolkit"
CONTAINERD_CONFIG = (
    "fix what it names, or copy back what is kept of the file (cp -p), and restart containerd; then "
    "gpustate apply with the state containerd"
)
CONTAINERD_STOPPED = (
    "start it: gpustate apply with the state containerd, or systemctl start containerd"
)
CONTAINERD_DOWN = "systemctl status containerd and journalctl -u containerd say why; then start it"
NO_HANDLER = "register it: gpustate apply with the state containerd"
NO_CRIO_HANDLER = "register it: gpustate apply with the state crio"
NO_BUNDLED_HANDLER = "register it: gpustate apply with the state {state}"
BUNDLED_DEAD = (
    "fix what it names, and restart {state}; its journal and its containerd's log have more"
)
CRI_DISABLED = (
    "for pods, take that entry out of disabled_plugins (/etc/containerd/config.toml), and systemctl restart containerd; "
    "then gpustate apply with the state containerd"
)
CRI_DEAD = "fix what it names in the runtime's configuration, and restart it; ctr plugins ls shows containerd's plugins"
NOT_READ = "restart it: gpustate apply with the state containerd, or systemctl restart containerd"
CGROUP_DRIVERS = (
    "set SystemdCgroup of these handlers, and cgroupDriver of the kubelet, to the same driver"
)
HANDLER_BINARY = "install the container toolkit, or fix the handler: gpustate apply with container-toolkit and containerd"
CDI = "generate it: gpustate apply with the state cdi, or systemctl restart nvidia-cdi-refresh"
CDI_STALE = (
    "generate it anew: gpustate apply with the state cdi, or systemctl restart nvidia-cdi-refresh"
)
CDI_BROKEN = "write it anew: gpustate apply with the state cdi, or remove it and systemctl restart nvidia-cdi-refresh"
CDI_NO_FILE = "move it away, then generate the specification: gpustate apply with the state cdi"
ALL_HELD = "fix one, then end its quarantine: gpustate quarantine -l NODE --gpu GPU --end; then apply with the state cdi"
QUARANTINE_FILE = (
    "write it anew: gpustate quarantine NODE --gpu GPU --for 1d --reason WHY, or --end"
)
EARLIER = "fix the links before this one, if one is broken, then run gpustate validate"
NO_DEVICE = "with MIG mode on, create MIG devices; otherwise fix the links before this one"

_NVML = {
    9: NOT_LOADED,
    10: "a GPU hangs: look for Xid lines in dmesg, then reset it or reboot",
    11: "look at MSI-X, IOMMU settings and nouveau, then reboot",
    12: "install the driver's libraries (libnvidia-ml1) in the driver's version, and run ldconfig",
    13: "libnvidia-ml is older than what asks it: install one matched set of driver packages",
    14: "have the GPU replaced if a power cycle does not help (nvidia-smi -q shows the infoROM)",
    15: "the GPU fell off the bus: look for Xid 79 in dmesg, drain, then reset it or reboot; replace it when it comes back",
    16: "drain the node and reset the GPU: nvidia-smi --gpu-reset -i INDEX",
    17: "the process is kept from the device nodes: look at cgroups and /dev/nvidia*",
    18: RELOAD,
    127: "install python3 (the whole, not python3-minimal) or nvidia-smi (nvidia-utils)",
}

_CUDA = {
    1: "the driver refused a call it should know: put driver and libcuda at one version",
    2: "GPU memory is full: a workload holds it; the proof needs some 500 MiB",
    3: "libcuda could not start: read dmesg for NVRM lines",
    35: "libcuda is older than the kernel module: install one matched set of driver packages",
    46: "the GPU is in exclusive mode and taken, or its mode is Prohibited: stop the workload, or nvidia-smi -c DEFAULT",
    100: "CUDA sees no such device: look for Xid lines in dmesg, /dev/nvidia* and MIG mode",
    101: "CUDA sees no such device: look for Xid lines in dmesg, /dev/nvidia* and MIG mode",
    214: "uncorrectable memory error: drain, reset the GPU, and have it replaced when it comes back",
    218: "the driver cannot compile the proof's kernel: install one matched set (libnvidia-ptxjitcompiler belongs to it)",
    221: "install libnvidia-ptxjitcompiler in the driver's version",
    222: "this driver is too old for the proof's kernel (it needs 384 or newer)",
    304: "the operating system refused a call: look at /dev/nvidia-uvm and at dmesg",
    700: "look for Xid 31 in dmesg; memory of the GPU or its driver is at fault",
    719: "look for Xid lines in dmesg; reset the GPU",
    802: "the NVLink fabric is not up: nvidia-fabricmanager must run at the driver's version (nvidia-smi -q shows Fabric)",
    803: RELOAD,
    804: "a forward-compatibility libcuda (cuda-compat) shadows the driver's: take it out of ld.so.conf and LD_LIBRARY_PATH",
    999: "read dmesg for NVRM and Xid lines; nvidia-uvm may need a reload",
}


def nvml(code: int) -> str:
    """The next move for an NVML error."""
    return _NVML.get(code, "read dmesg for NVRM and Xid lines; nvidia-smi -q shows the GPU's state")


def cuda(code: int | None) -> str:
    """The next move for a CUDA error; ``None``: the kernel gave a wrong result or no answer."""
    if code is None:
        return "look for Xid lines in dmesg; drain the node and run dcgmi diag -r 3"
    return _CUDA.get(code, "read dmesg for NVRM and Xid lines, then reset the GPU or reboot")
