"""What is broken on a lab node to see ``explain`` name it, and ``apply`` repair it.

Simulated: GPUs, driver, NVIDIA's packages. Real: the damage (files, services, packages, containerd), systemd, ssh,
the repair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpustate_lab.node import Node


def sh(script: str) -> Callable[[Node], object]:
    """Damage by a script as root."""
    return lambda node: node.run(["sh", "-c", script])


def fault(name: str) -> Callable[[Node], object]:
    """A fault of the lab is switched on."""
    return lambda node: node.fault(name, on=True)


@dataclass(frozen=True)
class Break:
    """One damage.

    Args:
        cause: what ``explain`` must call it.
        state: the state that ``drift`` must find and apply repairs; empty: none does.
        damage: done to a node on which every link holds.
        heal: undoes it where no apply can.
        words: what the evidence must say.
    """

    cause: str
    state: str
    damage: Callable[[Node], object]
    words: str
    heal: Callable[[Node], object] | None = None

    def __str__(self) -> str:
        return self.cause


SPEC = "/var/run/cdi/nvidia.yaml"
BREAKS = (
    Break(
        "library-version-mismatch", "driver", fault("library-mismatch"), "libnvidia-ml 580.178.04"
    ),
    Break(
        "module-not-loaded",
        "driver",
        sh(
            "systemctl stop nvidia-persistenced nvidia-fabricmanager; "
            "for m in nvidia_drm nvidia_modeset nvidia_uvm nvidia; do rmmod $m 2>/dev/null; done; ! lsmod | grep -q '^nvidia '"
        ),
        "but not loaded",
    ),
    Break(
        "fabric-manager-down",
        "fabric-manager",
        sh("systemctl stop nvidia-fabricmanager"),
        "nvidia-fabricmanager is inactive",
    ),
    Break("gpu-without-device-node", "driver", sh("rm /dev/nvidia3"), "/dev/nvidia3 is missing"),
    Break(
        "mig-capability-without-node",
        "driver",
        sh("cd /dev/nvidia-caps && rm nvidia-cap1 && mknod -m 400 nvidia-cap1 c 511 1"),
        "/dev/nvidia-caps/nvidia-cap1 is 511:1 instead of",
    ),
    Break(
        "driver-library-damaged",
        "driver",
        sh("truncate -s 100 /usr/lib/x86_64-linux-gnu/libcuda.so.[0-9][0-9]*.*"),
        "is truncated",
    ),
    Break(
        "driver-library-missing",
        "driver",
        sh("dpkg --purge --force-depends --force-remove-reinstreq libnvidia-ml1"),
        "NVML 12",
    ),
    Break(
        "driver-library-missing",
        "driver",
        sh("dpkg --purge --force-depends --force-remove-reinstreq libcuda1"),
        "libcuda.so.1 is not installed",
    ),
    Break(
        "toolkit-missing",
        "container-toolkit",
        sh(
            "DEBIAN_FRONTEND=noninteractive apt-get -y -q --allow-change-held-packages remove nvidia-container-toolkit nvidia-container-toolkit-base"
        ),
        "nvidia-ctk is not installed",
    ),
    Break(
        "toolkit-not-usable",
        "container-toolkit",
        sh("chmod 644 /usr/bin/nvidia-container-runtime"),
        "/usr/bin/nvidia-container-runtime is a regular file of mode 644",
    ),
    Break(
        "driver-library-dangling",
        "driver",
        sh("rm /usr/lib/x86_64-linux-gnu/libcuda.so.[0-9][0-9]*.*"),
        "libcuda.so.1 leads to",
    ),
    Break(
        "device-node-not-a-device",
        "driver",
        sh("rm /dev/nvidia-uvm; mkdir /dev/nvidia-uvm"),
        "/dev/nvidia-uvm is a directory, not a device",
    ),
    Break(
        "containerd-handler-missing",
        "containerd",
        sh(
            "rm -f /etc/containerd/config.toml /etc/containerd/conf.d/*nvidia*; systemctl restart containerd"
        ),
        "no runtime handler",
    ),
    Break("containerd-stopped", "containerd", sh("systemctl stop containerd"), "is not running"),
    Break(
        "containerd-disabled",
        "containerd",
        sh("systemctl disable --now containerd"),
        "is not running, and it is disabled",
    ),
    Break(
        "module-kept-from-loading",
        "",
        sh("echo 'install nvidia /bin/false' >/etc/modprobe.d/zz.conf"),
        "/etc/modprobe.d/zz.conf:1",
        sh("rm /etc/modprobe.d/zz.conf"),
    ),
    Break(
        "results-cannot-be-written",
        "",
        sh("rm -r /run/nvidia; echo x >/run/nvidia"),
        "/run/nvidia is a regular file",
        sh("rm /run/nvidia"),
    ),
    Break(
        "module-files-gone",
        "driver",
        sh(
            'for f in /usr/src/nvidia*-[0-9]*/Makefile; do : >"$f"; done; k=$(uname -r); '
            "m=$(dkms status | sed -n 's/^\\(nvidia[^,]*\\),.*/\\1/p' | head -n 1); "
            'dkms uninstall "$m" -k "$k"; rm -rf "/var/lib/dkms/$m/$k"'
        ),
        "has no nvidia module",
    ),
    Break(
        "driver-files-missing",
        "driver",
        sh("for f in /usr/lib/firmware/nvidia/580*/gsp_ga10x.bin; do : >$f; done"),
        "gsp_ga10x.bin",
    ),
    Break("cdi-missing", "cdi", sh(f"rm {SPEC}"), "no CDI specification"),
    Break(
        "cdi-names-missing-files",
        "cdi",
        sh(f"sed -i 's|/dev/nvidia3$|/dev/nvidia33|' {SPEC}"),
        "/dev/nvidia33",
    ),
    Break(
        "gpu-lost",
        "",
        fault("gpu-off-bus:3"),
        "GPU is lost",
        lambda node: node.fault("gpu-off-bus:3", on=False),
    ),
)
