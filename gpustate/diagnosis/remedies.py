"""The fix for each failed check of the validation.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    NVIDIA/gpu-operator documentation, troubleshooting; nvidia-smi(1), return values; NVIDIA/nvidia-modprobe, main;
    cuda.h, CUresult; NVIDIA fabric manager user guide: CUDA 802 until the fabric is up.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpustate.formats import xids

APPLY = "gpustate apply POLICY -l NODE"
VALIDATE = "gpustate validate POLICY -l NODE"
MODE_CDI = f"use CDI (not where docker run --gpus is used, which NVIDIA's hook then refuses): {APPLY} --set container-toolkit.mode=cdi"


def by_apply(fix: str, *states: str) -> str:
    """A fix that an apply makes, with the states that POLICY needs for it and the command.

    Args:
        fix: what the apply does, in the imperative.
        states: names of states.
    """
    return f"{fix} (state{'s' * (len(states) > 1)} {' and '.join(states)}): {APPLY}"


NO_GPU = "check power, risers and passthrough to VMs in the firmware's settings; list NVIDIA's devices: lspci -nn -d 10de:"
MISSING_GPU = "of the last good validation is missing on PCI"
GPU_COUNT = (
    "look at the BMC's log and at lspci -d 10de:; find the reason: dmesg | grep -E 'Xid|AER'; accept fewer GPUs: "
    f"{VALIDATE} --set validator.gpus=NUMBER"
)
FOREIGN_DRIVER = "disable that module and reboot: gpustate apply nouveau -l NODE"
NOT_LOADED = (
    "load it: modprobe nvidia; if that fails, find the reason (signature, nouveau, a GPU that this branch does "
    "not support): dmesg | grep -E 'NVRM|nvidia'"
)
NO_MODULE = by_apply("build the module for this kernel, with headers and DKMS", "driver")
RELOAD = by_apply("load the installed driver, by reloading its modules or a reboot", "driver")
ONE_MODULE = by_apply("build or install the module in the libraries' version", "driver")
ONE_SET = by_apply("install all driver packages in one version", "driver")
NO_LIBCUDA = by_apply(
    "install the driver's CUDA library (libcuda1, libnvidia-compute or nvidia-driver-cuda)",
    "driver",
)
TORN = by_apply("reinstall its package in the same version", "driver")
LOST = (
    "1. find the reason: dmesg | grep -E 'NVRM|Xid|AER'; 2. drain the node and reboot it: systemctl reboot; 3. if the GPU "
    "does not come back, power-cycle the node; 4. if it is lost again, replace it"
)
CONFIDENTIAL = "attest the GPUs, then set their ready state: nvidia-smi conf-compute -srs 1"
REFUSED_BOARD = "find the reason for that board: dmesg | grep NVRM; replace it if it is broken"
UVM_NOT_LOADED = f"load it: modprobe nvidia-uvm; or apply (state driver): {APPLY}"
CAPABILITY_NODES = (
    "create one from its file below /proc/driver/nvidia/capabilities: nvidia-modprobe -f FILE; create all "
    f"(state driver or mig): {APPLY}"
)
NO_TOOLKIT = by_apply("install the container toolkit", "container-toolkit")
TOOLKIT_BROKEN = by_apply("install the toolkit's packages in one version", "container-toolkit")
NO_LOW_LEVEL = (
    "install runc (containerd.io includes it), or name an installed one in nvidia-container-runtime.runtimes "
    "of /etc/nvidia-container-runtime/config.toml; check: nvidia-container-runtime --version"
)
NO_CONTAINERD = f"install containerd, or validate without containers: {VALIDATE} --set validator.containers=none"
TOOLKIT_CONFIG = by_apply(
    "fix that line, or remove the file, without which the toolkit has its defaults: "
    "rm /etc/nvidia-container-runtime/config.toml; then apply",
    "container-toolkit",
)
CONTAINERD_CONFIG = by_apply(
    "fix what the message names, or restore the file's original (cp -p); systemctl restart containerd; then apply",
    "containerd",
)
CONTAINERD_STOPPED = (
    f"start containerd: systemctl start containerd; or apply (state containerd): {APPLY}"
)
CONTAINERD_DISABLED = f"enable and start containerd: systemctl enable --now containerd; or apply (state containerd): {APPLY}"


def device_nodes(missing: Sequence[str]) -> str:
    """The fix for device nodes, some of which are missing. With ``-u`` the numbers are those of nvidia-uvm alone."""
    names = [path.replace("ctl", "255").partition("/dev/nvidia")[2] for path in missing]
    minors = "".join(f" -c={name}" for name in names if name.isdecimal())
    commands = [f"nvidia-modprobe{minors}"] if minors else []
    commands += ["nvidia-modprobe -u -c=0"] if "-uvm" in names else []
    wrong = by_apply("replace wrong ones", "driver")
    return f"create what is missing: {' && '.join(commands)}; {wrong}" if commands else wrong


def runtime_down(unit: str) -> str:
    """The fix for a runtime that does not run."""
    fix = (
        f"unmask it if it is masked (systemctl unmask {unit}), fix what its journal reports "
        f"(journalctl -u {unit} -n 50), and start it: systemctl enable --now {unit}"
    )
    return f"{fix}; or apply (state {unit}): {APPLY}" if unit in ("docker", "crio") else fix


def ordering_cycle(units: Sequence[str]) -> str:
    """How a cycle of units ends."""
    services = " ".join(unit for unit in units if unit.endswith(".service"))
    refresh = "nvidia-cdi-refresh.service" in units
    newer = "; or install NVIDIA's container toolkit 1.19.1 or later" if refresh else ""
    return (
        f"remove one After= or Before= between these units, which this shows: systemctl cat {services}; "
        f"then: systemctl daemon-reload && systemctl start {services}{newer}"
    )


CONTAINERD_DOWN = (
    "fix what its journal reports: journalctl -u containerd -n 50; then: systemctl start containerd"
)
NO_HANDLER = by_apply("register the runtime handler", "containerd")
NO_CRIO_HANDLER = by_apply("register the runtime handler", "crio")
NO_BUNDLED_HANDLER = by_apply("register the runtime handler", "{state}")
BUNDLED_DEAD = "fix what the message names, and restart {state}; its journal and its containerd's log have details"
CRI_DISABLED = by_apply(
    "for pods, remove that entry from disabled_plugins in /etc/containerd/config.toml; systemctl restart containerd; "
    "then apply",
    "containerd",
)
CRI_DEAD = (
    "fix what the message names in the runtime's configuration, and restart the runtime; containerd's plugins "
    "and their errors: ctr plugins ls -d"
)
NO_TYPE = by_apply("set runtime_type = io.containerd.runc.v2 in its table", "containerd")
NOT_READ = f"restart containerd: systemctl restart containerd; or apply (state containerd): {APPLY}"
CGROUP_DRIVERS = (
    "set SystemdCgroup of these handlers, and the kubelet's cgroupDriver, to the same driver; then: "
    "systemctl restart UNIT kubelet"
)
HANDLER_BINARY = by_apply(
    "install the container toolkit and fix the handler", "container-toolkit", "containerd"
)
REFRESH_CDI = "systemctl restart nvidia-cdi-refresh"
CDI = by_apply("generate the CDI specification", "cdi") + f"; or: {REFRESH_CDI}"
MIG_STRATEGY = (
    "set the device plugin's MIG strategy to single or mixed (mig.strategy of a ClusterPolicy or mig_strategy of cluster: in a "
    "policy, applied with --cluster-objects; else MIG_STRATEGY in its DaemonSet); if it is set, restart its pod: "
    "kubectl delete pod -n NAMESPACE POD; to use whole GPUs, select the MIG layout all-disabled"
)
CDI_STALE = (
    by_apply("regenerate the CDI specification", "cdi")
    + "; or, for the file that is named: nvidia-ctk cdi generate --output=FILE"
)
#: What nvidia-cdi-refresh and the state ``cdi`` keep up to date.
CDI_KEPT = "/var/run/cdi/nvidia.yaml"
CDI_TWICE = by_apply("remove the file that is not kept up to date: rm FILE; then apply", "cdi")
CDI_OFF = by_apply(
    "set enable_cdi = true, and cdi_spec_dirs with the specification's folder, in containerd's configuration; then apply",
    "containerd",
)
CDI_BROKEN = (
    by_apply("regenerate the CDI specification", "cdi") + f"; or remove it, then: {REFRESH_CDI}"
)
CDI_NO_FILE = by_apply("move it away, then generate the specification", "cdi")
ALL_HELD = (
    "fix a GPU and end its quarantine: gpustate node quarantine -l NODE --gpu GPU --end; then apply "
    f"(state cdi): {APPLY}"
)
QUARANTINE_FILE = (
    "rewrite it: gpustate node quarantine -l NODE --gpu GPU --for 1d --reason WHY; or end every quarantine: "
    "gpustate node quarantine -l NODE --end"
)
EARLIER = f"fix an earlier check that failed, if there is one; then: {VALIDATE}"
NO_DEVICE = (
    "create MIG devices if MIG mode is on (state mig), otherwise fix the checks before this one: "
    + APPLY
)

_NVML = {
    9: NOT_LOADED,
    10: by_apply(
        "switch persistence mode on, without which every query initialises all GPUs", "persistenced"
    )
    + "; if it is on, find out what the driver waits for: dmesg | grep -E 'NVRM|Xid'; ps -eo pid,stat,args | grep ' D'",
    11: "check MSI-X, IOMMU settings and nouveau, then reboot; find the reason: dmesg | grep -E 'NVRM|nouveau'",
    12: by_apply(
        "install the driver's libraries (libnvidia-ml1) in the driver's version, and run ldconfig",
        "driver",
    ),
    13: by_apply(
        "libnvidia-ml is older than its caller: install all driver packages in one version",
        "driver",
    ),
    14: "power-cycle the node, and replace the GPU if the error stays; show the infoROM: nvidia-smi -q",
    15: LOST,
    16: f"drain the node and reset the GPU: {xids.RESET_COMMAND}",
    17: "give the process access to the device nodes: check cgroups and modes: ls -l /dev/nvidia*",
    18: RELOAD,
    127: "install python3 (complete, not python3-minimal) or nvidia-smi (package nvidia-utils)",
}

_CUDA = {
    1: by_apply(
        "the driver rejects a call it should support: install driver and libcuda in one version",
        "driver",
    ),
    2: "the test needs about 500 MiB of GPU memory, and NVML names no process that has the rest: nvidia-smi -q -d MEMORY",
    3: "libcuda could not start; find the reason: dmesg | grep NVRM",
    35: by_apply(
        "libcuda is older than the kernel module: install all driver packages in one version",
        "driver",
    ),
    46: "the GPU is in exclusive mode and taken by what NVML does not name, or its mode is Prohibited; show both: nvidia-smi; "
    "change the mode: nvidia-smi -i INDEX -c DEFAULT",
    100: "CUDA finds no such device: check /dev/nvidia*, MIG mode and Xids: dmesg | grep Xid",
    101: "CUDA finds no such device: check /dev/nvidia*, MIG mode and Xids: dmesg | grep Xid",
    214: "uncorrectable memory error: drain the node, reset the GPU, and replace it if the error comes back; reset it: "
    + xids.RESET_COMMAND,
    218: by_apply(
        "the driver cannot compile the test's kernel: install all driver packages, libnvidia-ptxjitcompiler among "
        "them, in one version",
        "driver",
    ),
    221: by_apply("install libnvidia-ptxjitcompiler in the driver's version", "driver"),
    222: "this driver is too old for the test's kernel: install 384 or newer",
    304: "the operating system refused a call: check /dev/nvidia-uvm and dmesg: dmesg | grep -E 'NVRM|nvidia'",
    700: "the GPU's memory or its driver is at fault; find the reason: dmesg | grep 'Xid.*31'",
    719: f"reset the GPU: {xids.RESET_COMMAND}; find the reason: dmesg | grep Xid",
    802: "the NVLink fabric is not up: start nvidia-fabricmanager in the driver's version: "
    "systemctl restart nvidia-fabricmanager; show the fabric's state: nvidia-smi -q | grep -A4 Fabric",
    803: RELOAD,
    804: "a forward-compatibility libcuda (cuda-compat) shadows the driver's: remove it from ld.so.conf and "
    "LD_LIBRARY_PATH; find it: ldconfig -p | grep libcuda",
    999: "reload nvidia-uvm if no job runs: modprobe -r nvidia_uvm && modprobe nvidia_uvm; find the reason: "
    "dmesg | grep -E 'NVRM|Xid'",
}


def nvml(code: int) -> str:
    """The fix for an NVML error."""
    return _NVML.get(
        code, "find the reason: dmesg | grep -E 'NVRM|Xid'; show the GPU's state: nvidia-smi -q"
    )


def cuda(code: int | None, text: str = "") -> str:
    """The fix for a CUDA error; ``None``: the kernel gave a wrong result, or no answer as ``text`` says."""
    if code is None and "no answer" in text:
        return (
            "look at the node's load and at what the driver waits for: dmesg | grep -E 'NVRM|Xid'; without persistence "
            f"mode every program initialises all GPUs; for slow nodes: {VALIDATE} --set validator.timeout_s=SECONDS"
        )
    if code is None:
        return "drain the node and test the GPU: dcgmi diag -r 3; look for Xids: dmesg | grep Xid"
    return _CUDA.get(
        code, "find the reason: dmesg | grep -E 'NVRM|Xid'; show the GPU's state: nvidia-smi -q"
    )
