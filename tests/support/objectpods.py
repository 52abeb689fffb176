"""The image that the rendered DaemonSets name, with NVIDIA's real programs and a node's C library."""

from __future__ import annotations

import nodeimage

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.kubernetes.containers import BUSYBOX
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT, PROGRAMS
from gpustate_lab.node import Node

_NAMES = ("nvidia-device-plugin", "gpu-feature-discovery")
#: The lab runs the same programs as units.
_UNITS = (PLUGIN_UNIT, "gpu-feature-discovery.service")
#: NVIDIA's image has busybox, from which the Operator's entrypoint is run too.
_SHELL = ("sh", "cat", "date", "rm", "sleep")


def import_image(node: Node, name: str) -> None:
    """Make the image on a validated node, and let pods do the work of the lab's units."""
    files = {f"/usr/bin/{program}": f"{PROGRAMS}/{program}" for program in _NAMES}
    shell = {"/usr/bin/busybox": f"/{BUSYBOX}"}
    links = {f"/usr/bin/{applet}": "busybox" for applet in _SHELL}
    nodeimage.import_image(node, name, files | shell, links=links, programs=list(files.values()))
    for unit in _UNITS:
        node.run(["systemctl", "disable", "--now", unit])


def settings(lab: Lab) -> tuple[str, ...]:
    """What the pods need in a lab: it has no kube-proxy, and the driver's files in proc are elsewhere."""
    server = Kubernetes(lab).layout.server
    host, _, port = server.removeprefix("https://").partition(":")
    reach = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port or "443",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    variables = [
        f'gfd.env[{number}].name={name},gfd.env[{number}].value="{value}"'
        for number, (name, value) in enumerate(reach.items())
    ]
    proc = "devicePlugin.env[0].name=PROC,devicePlugin.env[0].value=/host/run/gpustate-lab/proc"
    sets = ("gfd.hostNetwork=true", *variables, proc)
    return tuple(word for text in sets for word in ("--set", text))
