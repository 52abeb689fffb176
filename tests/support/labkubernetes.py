"""Read a lab's cluster as its users: ``kubectl`` of the lab, and what tests wait for."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes import containers
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.node import Node

#: A machine under load takes several times as long.
WAIT_S = 90.0


def kubectl(
    lab: Lab, *arguments: str, user: str = "admin", stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the lab's kubectl as one of its users."""
    layout = Kubernetes(lab).layout
    result = subprocess.run(
        [layout.programs / "kubectl", f"--kubeconfig={layout.user_file(user)}", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not check or result.returncode == 0, result.stderr
    return result


def get(lab: Lab, *arguments: str, user: str = "admin") -> Any:
    """What ``kubectl get ... -o json`` prints."""
    return json.loads(kubectl(lab, "get", *arguments, "-o", "json", user=user).stdout)


def wait_for(what: Callable[[], Any], wanted: str, timeout_s: float = WAIT_S) -> Any:
    """Return what ``what`` returns as soon as it is true."""
    deadline = time.monotonic() + timeout_s * PATIENCE
    while True:
        seen = what()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {wanted}"
        time.sleep(0.25)


def pod(name: str, command: str, *, node: str = "", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A pod with the lab's busybox that runs a shell command once.

    Args:
        node: it is scheduled to; any when left out.
        gpus: that it asks for.
        spec: more of the pod's ``spec``.
    """
    limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {
                    "name": "main",
                    "image": containers.BUSYBOX_TAG.rpartition("/")[2],
                    "command": ["sh", "-c", command],
                    **limits,
                }
            ],
            **spec,
        },
    }


def create(
    lab: Lab, *items: dict[str, Any], user: str = "admin", namespace: str = "default"
) -> None:
    """Create objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
    kubectl(lab, "create", "--namespace", namespace, "-f", "-", user=user, stdin=text)


def wait_phase(lab: Lab, name: str, phase: str, namespace: str = "default") -> dict[str, Any]:
    """Return the pod once it has that phase; one that ends otherwise is shown.

    A pod that the kubelet did not admit, as a device plugin has just registered anew, is made again, as controllers do.
    """

    def reached() -> dict[str, Any] | None:
        seen: dict[str, Any] = get(lab, "pod", name, "--namespace", namespace)
        status = seen["status"]
        if status.get("reason") == "UnexpectedAdmissionError":
            words = ("replace", "--force", "--namespace", namespace, "-f", "-")
            kubectl(lab, *words, stdin=json.dumps(seen))
            return None
        assert status.get("phase") in (phase, "Pending", "Running"), status
        return seen if status["phase"] == phase else None

    try:
        result: dict[str, Any] = wait_for(reached, f"pod {name} {phase}")
    except AssertionError as error:
        status = get(lab, "pod", name, "--namespace", namespace)["status"]
        raise AssertionError(f"{error}: {status}") from None
    return result


def logs(lab: Lab, name: str, namespace: str = "default") -> str:
    return kubectl(lab, "logs", name, "--namespace", namespace).stdout


def wait_ready(lab: Lab, node: str, boot_id: str) -> dict[str, Any]:
    """Return the Node once the kubelet of that boot says that it is Ready."""
    Kubernetes(lab).wait_node(lab.node(node))
    seen: dict[str, Any] = get(lab, "node", node)
    assert seen["status"]["nodeInfo"]["bootID"] == boot_id
    return seen


WAYS = ("reboot", "power loss", "reset")


@dataclass(frozen=True)
class Return:
    """When a node was back, on the monotonic clock.

    Args:
        began: it was interrupted.
        up: it answered over ssh, and was set up again where that was needed.
        ready: its kubelet said so.
    """

    began: float
    up: float
    ready: float

    def __str__(self) -> str:
        return f"ssh after {self.up - self.began:.1f} s, Ready {self.ready - self.up:.1f} s later"


def bring_back(
    lab: Lab, node: Node, way: str, restore: Callable[[], object] = lambda: None
) -> Return:
    """Interrupt a node in one of :data:`WAYS`, and wait until it is Ready as the same Node.

    Args:
        restore: sets a node up again that was reset.
    """
    uid = get(lab, "node", node.name)["metadata"]["uid"]
    began = time.monotonic()
    if way == "reboot":
        node.reboot()
    elif way == "power loss":
        node.kill()
        node.boot()
    else:
        node.reset()
        wait_ready(lab, node.name, node.boot_id())  # by its ids gpustate knows the Node
        restore()
    up = time.monotonic()
    seen = wait_ready(lab, node.name, node.boot_id())
    assert seen["metadata"]["uid"] == uid
    return Return(began, up, time.monotonic())


def audit(lab: Lab) -> list[dict[str, Any]]:
    """Every complete entry of the API server's audit log."""
    text = Path(Kubernetes(lab).layout.audit_log).read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
