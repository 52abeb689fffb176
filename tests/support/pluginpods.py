"""NVIDIA's device plugin as the pods of a DaemonSet, where the lab runs it as a unit."""

from __future__ import annotations

from typing import Any

from gpupods import VALIDATOR
from labkubernetes import create

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT, PROGRAMS
from gpustate_lab.node import Node

#: The name that the real image has; this one has the real program and the node's C library.
IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"
NAMESPACE, NAME = "kube-system", "nvidia-device-plugin-daemonset"
_PROGRAM = "/usr/bin/nvidia-device-plugin"
_SOCKETS = "/var/lib/kubelet/device-plugins"
_MAKE = f"""
import os, sys
sys.path.insert(0, {VALIDATOR!r})
from gpustate.nodeside import container_image as image
program = os.path.realpath({f"{PROGRAMS}/nvidia-device-plugin"!r})
found = image.libraries(program, ())
files = {{image._merged(name): os.path.realpath(place) for name, place in found.items()}}
files[{_PROGRAM!r}] = program
links = {{name: os.readlink(name) for name in ("/lib", "/lib64", "/bin", "/sbin") if os.path.islink(name)}}
with open("/run/gpustate-test-image.tar", "wb") as file:
    file.write(image._archive({IMAGE!r}, image._layer(files, links)))
"""


def import_image(node: Node) -> None:
    """Make the image on a validated node."""
    node.run(["python3", "-ISB", "-c", _MAKE])
    node.run(
        "ctr -n k8s.io images import /run/gpustate-test-image.tar; rm /run/gpustate-test-image.tar"
    )


def daemon_set() -> dict[str, Any]:
    """The DaemonSet; its pods get every GPU by volume mount, and give them to others in the same way."""
    labels = {"app": NAME}
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [_PROGRAM],
        "env": [
            {"name": "DEVICE_LIST_STRATEGY", "value": "volume-mounts"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "volumeMounts": [
            {"name": "sockets", "mountPath": _SOCKETS},
            {"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "runtimeClassName": "nvidia",
                    "terminationGracePeriodSeconds": 2,
                    "containers": [container],
                    "volumes": [
                        {"name": "sockets", "hostPath": {"path": _SOCKETS}},
                        {"name": "null", "hostPath": {"path": "/dev/null"}},
                    ],
                },
            },
        },
    }


def deploy(lab: Lab) -> None:
    """Stop the lab's units, and let pods do their work."""
    for node in lab.nodes:
        import_image(node)
        node.run(["systemctl", "disable", "--now", PLUGIN_UNIT])
    create(lab, daemon_set(), namespace=NAMESPACE)
