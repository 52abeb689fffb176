"""The sh function that finds the containers which a ``systemctl daemon-reload`` would rob of their GPUs.

With the systemd cgroup driver a container is a scope, and systemd owns its list of devices. A hook that
injects GPUs behind runc's back writes to the cgroup itself; systemd writes its own list again at every
daemon-reload, and the GPUs are gone: NVML answers "Unknown Error" until the container is recreated. It is
the same where runc was told of the devices and /dev/char had no links for them, for it then leaves them out.

So a scope is judged by what systemd holds of it: processes that have /dev/nvidiactl in their root, and a
list of devices that lacks a device node of NVIDIA's there. Scopes are transient units, which have their files in one folder.

Sources:
    NVIDIA/nvidia-container-toolkit#48, discussion #1133; systemd.resource-control(5), DeviceAllow;
    systemd.unit(5), transient units.
"""

from gpustate import shell

GPU_SCOPES = shell.load("gpu_scopes", "gpustate.ops")
