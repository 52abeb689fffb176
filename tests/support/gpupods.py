"""Pods that use GPUs: an image of a node's own Python, what a pod saw, and what the device plugin gave it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from labkubernetes import get, kubectl, logs, pod, wait_phase

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

IMAGE = "docker.io/library/gpustate-lab-cuda:1"
#: The program that the validator has brought to a node.
VALIDATOR = "/var/lib/gpustate/validator/validate.pyz"
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_UUID = rb"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
MARK = "gpustate-container="
#: Runs the CUDA proof on every device that nvidia-smi lists in the container: MIG devices where there are any.
_PROVE = """
import os, re, sys
sys.path.insert(0, '/')
from gpustate.nodeside import container_inside
found = []
if os.path.exists('/usr/bin/nvidia-smi'):
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    os.posix_spawn('/usr/bin/nvidia-smi', ['nvidia-smi', '-L'], os.environ, file_actions=actions)
    os.close(writing)
    text = open(reading).read()
    found = re.findall(r'UUID: (MIG-[^)]+)', text) or re.findall(r'UUID: (GPU-[^)]+)', text)
sys.argv = ['proof', '60', *found]
container_inside.main()
"""
_MAKE = f"""
import sys
sys.path.insert(0, {VALIDATOR!r})
from gpustate.nodeside import container_image
data, command = container_image.make({IMAGE!r})
open('/run/gpustate-test-image.tar', 'wb').write(data)
print(command[0])
"""


def import_image(node: Node) -> str:
    """Make an image of a validated node's own Python and the CUDA proof; return its interpreter."""
    interpreter = node.run(["python3", "-ISB", "-c", _MAKE]).stdout.strip()
    node.run(
        "ctr -n k8s.io images import /run/gpustate-test-image.tar; rm /run/gpustate-test-image.tar"
    )
    return interpreter


def gpu_pod(
    name: str, node: Node, interpreter: str, resources: dict[str, int], **spec: Any
) -> dict[str, Any]:
    """A pod that asks for GPUs and runs the CUDA proof on each that it sees."""
    made = pod(name, "", node=node.name, **spec)
    made["spec"]["containers"][0] |= {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [interpreter, "-ISB", "-c", _PROVE],
        "resources": {"limits": resources},
    }
    return made


def gpu_deployment(
    name: str, node: Node, interpreter: str, resources: dict[str, int]
) -> dict[str, Any]:
    """A deployment of one such pod that stays after the CUDA proof."""
    spec = gpu_pod(name, node, interpreter, resources, restartPolicy="Always")["spec"]
    spec["containers"][0]["command"][-1] += "import time\ntime.sleep(100000)\n"
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def report(lab: Lab, name: str) -> dict[str, Any]:
    """What the finished pod printed of its devices, files, GPUs and kernels."""
    wait_phase(lab, name, "Succeeded")
    return printed(logs(lab, name))


def printed(text: str) -> dict[str, Any]:
    """The report in a pod's log."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return found


def working(lab: Lab, app: str, but: set[str]) -> str | None:
    """Id of the running container of a deployment that has reported two GPUs, unless it is one of ``but``."""
    for one in get(lab, "pods", "--selector", f"app={app}")["items"]:
        for status in one["status"].get("containerStatuses", []):
            identity: str = status.get("containerID", "")
            if not status["state"].get("running") or identity in but:
                continue
            done = kubectl(lab, "logs", one["metadata"]["name"], check=False).stdout
            if MARK in done and sum(gpu["ok"] for gpu in printed(done)["cuda"]) == 2:
                return identity
    return None


def allocated(node: Node, pod_uid: str) -> set[str]:
    """The devices that the plugin's Allocate answered for a pod, as the kubelet keeps the answer.

    They are CDI names, or the value of ``NVIDIA_VISIBLE_DEVICES``.
    """
    text = node.run(["cat", CHECKPOINT]).stdout
    entries = json.loads(text)["Data"]["PodDeviceEntries"] or []
    names: set[str] = set()
    for entry in entries:
        if entry["PodUID"] == pod_uid:
            answer = base64.b64decode(entry["AllocResp"])
            names |= {one.decode() for one in re.findall(_UUID, answer)}
    return names


def delete(lab: Lab, *names: str) -> None:
    kubectl(lab, "delete", "pod", *names, "--now")


def opened(lab: Lab, name: str) -> list[str]:
    """What opening the pod's GPU, nvidiactl and a GPU that the pod has not answers."""
    opening = (
        "[ -e /tmp/other ] || mknod /tmp/other c 195 99;"
        "for device in /dev/nvidia[0-9]* /dev/nvidiactl /tmp/other; do (: < $device) 2>&1; done; :"
    )
    return kubectl(lab, "exec", name, "--", "sh", "-c", opening).stdout.splitlines()
