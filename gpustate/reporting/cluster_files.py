"""What a support bundle has of a Kubernetes cluster: Nodes, and gpustate's and NVIDIA's pods on them.

Values that users put into pods (environment, commands, volumes) are left out: they may be secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate.cluster import pods
from gpustate.cluster.api import connect
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.facts import NodeFacts
from gpustate.errors import GpustateError
from gpustate.schedulers.eviction import is_operand

Json = dict[str, Any]


def collect(
    kubeconfig: Kubeconfig, facts: Mapping[str, NodeFacts]
) -> tuple[dict[str, Json], dict[str, str]]:
    """Objects by node, and why there are none for others.

    Args:
        kubeconfig: of the cluster.
        facts: of the nodes, by name.

    Raises:
        GpustateError: the cluster cannot be used.
    """
    api = connect(kubeconfig.path, kubeconfig.context)
    try:
        index = pods.NodeIndex(api.nodes())
        found: dict[str, Json] = {}
        missing: dict[str, str] = {}
        for name, known in facts.items():
            machine = pods.Machine(known.boot_id, known.machine_id, known.system_uuid)
            try:
                node = index.match(machine, any_boot=True)
                on_it = api.pods_on(node["metadata"]["name"])
            except pods.Verdict as verdict:
                missing[name] = verdict.check.evidence
                continue
            except GpustateError as error:
                missing[name] = str(error)
                continue
            found[name] = {
                "node": node_data(node),
                "pods": [pod_data(pod) for pod in on_it if _is_ours(pod) or is_operand(pod)],
            }
        return found, missing
    finally:
        api.close()


def _is_ours(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in pods.LABELS.items())


def node_data(node: Json) -> Json:
    """A Node without who manages its fields and which images it has."""
    meta = {key: value for key, value in node["metadata"].items() if key != "managedFields"}
    status = {key: value for key, value in (node.get("status") or {}).items() if key != "images"}
    return {"metadata": meta, "spec": node.get("spec") or {}, "status": status}


def pod_data(pod: Json) -> Json:
    """A pod: names, images and status."""
    meta = pod["metadata"]
    containers = (pod.get("spec") or {}).get("containers") or ()
    return {
        **{key: meta.get(key) for key in ("namespace", "name", "uid", "labels", "ownerReferences")},
        "created": meta.get("creationTimestamp"),
        "images": [str(one.get("image") or "") for one in containers],
        "status": pod.get("status") or {},
    }
