"""The sh fragment that looks for traces of known problems; it prints lines ``key=value`` and only reads.

Every program has two seconds, an exporter five, and ``walk`` puts a limit around the whole, so that a node on which something
hangs is explained anyway, with less.

Surprising: /proc/keys names enrolled Secure Boot keys without any tool; a make.log lies in a DKMS tree only
while its build has failed, for a good one is moved away.

Sources:
    systemctl(1), show; dkms(8); keyrings(7), proc_keys(5); mokutil(1); apt(8), history.log.
    UEFI specification: SecureBoot is one byte behind four bytes of attributes.
    kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint: RegisteredDevices.
    NVIDIA/gpu-operator#2781: SW_MNG in the VPD of the network function that manages NVLink 5 switches.
    NVIDIA/dcgm-exporter, README: flags and variables.
    systemd, org.freedesktop.systemd1: UnitsLoadTimestamp is the time of the last (re)load of units.
"""

from __future__ import annotations

from gpustate import shell
from gpustate.diagnosis import chain_probe
from gpustate.formats import dkms, modprobe
from gpustate.formats.unit_log import TELLING, UNIT_SAYS
from gpustate.ops.reloads import GPU_SCOPES
from gpustate.probes import (
    cdi_driver_files,
    file_owners,
    listeners,
    shadowing_libraries,
    slurm_gpus,
)
from gpustate.probes.kernels import MODULE_CHECKS, NAMES

#: Services whose state tells something.
UNITS = (
    *("nvidia-fabricmanager.service", "nvidia-imex.service", "nvlsm.service"),
    *("nvidia-persistenced.service", "containerd.service", "docker.service"),
    *("docker.socket", "crio.service", "k3s.service", "k3s-agent.service"),
    *("rke2-server.service", "rke2-agent.service", "kubelet.service"),
    *("nvidia-dcgm.service", "dcgm-exporter.service", "nvidia-dcgm-exporter.service"),
    *("slurmd.service", "gpustate-mps.service", "gpustate-mig.service"),
)

_MODPROBE = (
    "options[[:space:]]+nvidia|(blacklist|install|alias)[[:space:]]+(nvidia|nouveau|nova_core)"
)
#: Seconds after which an exporter that took a request and has not begun to answer counts as hanging.
SILENT_S = 5

_KERNEL = shell.load("kernel", "gpustate.explain")

#: While an operator's container has the modules, the node itself may have none.
_MODULE_FILE_CHECK = f"""
if [ -r "$PROC/driver/nvidia/version" ]; then (
{MODULE_CHECKS}ko "$kernel" {NAMES} || ko "$kernel" nvidia-uvm nvidia-modeset || {{ echo no_module=1; exit 0; }}
whole "$kernel" "$module_file" || printf 'not_whole=%s\\n' "$lost_module"
) fi
"""

_HARDWARE = shell.load("hardware", "gpustate.explain")

_UNITS = UNIT_SAYS + shell.load("units", "gpustate.explain")

_CONTAINERS = chain_probe.CDI_SPECS + shell.load("containers", "gpustate.explain")

_CLUSTER = slurm_gpus.CONFIGLESS + shell.load("cluster", "gpustate.explain")

SCRIPT = (
    GPU_SCOPES
    + file_owners.SCRIPT
    + shell.fill(_KERNEL, LOG=dkms.INTERESTING_ERE, MODPROBE=modprobe.lines(_MODPROBE))
    + _MODULE_FILE_CHECK
    + shadowing_libraries.SCRIPT
    + _HARDWARE
    + shell.fill(
        _UNITS,
        UNITS=" ".join(UNITS),
        TELLING=TELLING,
        LISTENER=listeners.script(),
        SILENT=str(SILENT_S),
    )
    + _CONTAINERS
    + cdi_driver_files.SCRIPT
    + _CLUSTER
)
