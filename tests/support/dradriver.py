"""The image of NVIDIA's DRA driver, with the lab's builds of its programs."""

from __future__ import annotations

import shutil

import nodeimage

from gpustate_lab import programs
from gpustate_lab.kubernetes.containers import BUSYBOX
from gpustate_lab.node import Node

REPOSITORY, NAME, VERSION = "registry.k8s.io/dra-driver-nvidia", "dra-driver-nvidia-gpu", "v0.4.1"
#: The kernel module shows GPU and compute instances there, the simulated one only on the node.
_PROGRAM = """#!/usr/bin/busybox sh
for path in /proc/driver /proc/devices; do /usr/bin/busybox mount -o rbind "/host$path" "$path"; done
exec "$0.real" "$@"
"""
#: The driver copies its image's hook to the node. As in the lab's package of the toolkit, it first binds into the
#: container what the kernel module would show there.
_HOOK = """#!/bin/sh
[ "$1" != disable-device-node-modification ] || exec /usr/lib/gpustate-lab/showhardware.py /var/tmp/nvidia-cdi-hook.real "$@"
exec /var/tmp/nvidia-cdi-hook.real "$@"
"""


def import_image(node: Node) -> None:
    """Make the image that the DaemonSet names, with the lab's builds of NVIDIA's programs."""
    folder = node.root / "var/tmp"
    built = {
        "gpu-kubelet-plugin": (programs.provide("dra-driver", print), _PROGRAM),
        "nvidia-cdi-hook": (programs.provide("container-toolkit-1.20.1", print), _HOOK),
    }
    for name, (files, wrapper) in built.items():
        shutil.copy(files[name], folder / f"{name}.real")
        (folder / name).write_text(wrapper)
        (folder / name).chmod(0o755)
    image = f"{REPOSITORY}/{NAME}:{VERSION}"
    files = {f"/usr/bin/{name}": f"/var/tmp/{name}" for name in ("gpu-kubelet-plugin.real", *built)}
    shell = {"/usr/bin/busybox": f"/{BUSYBOX}"}
    plugin = files["/usr/bin/gpu-kubelet-plugin.real"]
    nodeimage.import_image(node, image, files | shell, links={}, programs=[plugin])
