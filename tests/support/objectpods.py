"""The image that the rendered DaemonSets name, with NVIDIA's real programs and a node's C library."""

from __future__ import annotations

import json

from gpupods import VALIDATOR

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.kubernetes.containers import BUSYBOX
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT, PROGRAMS
from gpustate_lab.node import Node

_NAMES = ("nvidia-device-plugin", "gpu-feature-discovery")
#: The lab runs the same programs as units.
_UNITS = (PLUGIN_UNIT, "gpu-feature-discovery.service")
_MAKE = (
    f"BUSYBOX = {f'/{BUSYBOX}'!r}"
    + """
import os, sys
sys.path.insert(0, sys.argv[2])
from gpustate.nodeside import container_image as image
files = {}
for name in sys.argv[4:]:
    program = os.path.realpath(sys.argv[3] + "/" + name)
    found = image.libraries(program, ())
    files.update({image._merged(one): os.path.realpath(place) for one, place in found.items()})
    files["/usr/bin/" + name] = program
links = {name: os.readlink(name) for name in ("/lib", "/lib64", "/bin", "/sbin") if os.path.islink(name)}
# NVIDIA's image has busybox, from which the Operator's entrypoint is run too.
files["/usr/bin/busybox"] = BUSYBOX
links.update({"/usr/bin/" + name: "busybox" for name in ("sh", "cat", "date", "rm", "sleep")})
with open("/run/gpustate-test-image.tar", "wb") as file:
    file.write(image._archive(sys.argv[1], image._layer(files, links)))
"""
)


def import_image(node: Node, name: str) -> None:
    """Make the image on a validated node, and let pods do the work of the lab's units."""
    node.run(["python3", "-ISB", "-c", _MAKE, name, VALIDATOR, PROGRAMS, *_NAMES])
    node.run(
        "ctr -n k8s.io images import /run/gpustate-test-image.tar; rm /run/gpustate-test-image.tar"
    )
    for unit in _UNITS:
        node.run(["systemctl", "disable", "--now", unit])


def settings(lab: Lab) -> tuple[str, ...]:
    """What the pods need in a lab: it has no kube-proxy, and the driver's files in proc are elsewhere."""
    server = Kubernetes(lab).layout.server
    host, _, port = server.removeprefix("https://").partition(":")
    reach = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port or "443"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ]
    proc = [{"name": "PROC", "value": "/host/run/gpustate-lab/proc"}]
    return (
        *("--set", "gfd.hostNetwork=true", "--set-json", f"gfd.env={json.dumps(reach)}"),
        *("--set-json", f"devicePlugin.env={json.dumps(proc)}"),
    )
