"""Draining a Node leaves the same pods as ``kubectl drain`` does on the same state of a real cluster.

Real: API server, controller-manager with its disruption controller, scheduler, kubectl. The Nodes of the
comparison have no machine: their leases and the status of their pods are written by the test, which is all that
a drain is about, and their pods are gone as soon as they are deleted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import draincases
import pytest
import shares
from draincases import Case
from labkubernetes import create, get, kubectl, wait_for

from gpustate.cluster.api import connect
from gpustate.errors import GpustateError
from gpustate.schedulers.base import Member, Scope
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes as LabKubernetes
from gpustate_lab.spec import LabSpec

CASES = shares.share("drains compared with kubectl's", draincases.CASES, most=6)
KUBECTL, OURS = "kubectl1", "ours1"
_HEARTBEAT_S = 5.0
READY = [{"type": "Ready", "status": "True"}]


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Iterator[Lab]:
    lab = lab_factory(LabSpec(nodes=1, images=("debian13",), kubernetes="1.36"))
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        beating = pool.submit(beat, lab, over)
        yield lab
        over.set()
        beating.result()


def beat(lab: Lab, over: threading.Event) -> None:
    """Make the Nodes, and keep them Ready as their kubelets would."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}}
    with LabKubernetes(lab).layout.client() as client:
        for name in (KUBECTL, OURS):
            labels = {"kubernetes.io/hostname": name}
            client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            client.request("PATCH", f"/api/v1/nodes/{name}/status", ready, "merge-patch+json")
            client.create(leases, {"metadata": {"name": name}, "spec": {"holderIdentity": name}})
        while not over.wait(_HEARTBEAT_S):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            for name in (KUBECTL, OURS):
                spec = {"spec": {"renewTime": now, "leaseDurationSeconds": 40}}
                client.request("PATCH", f"{leases}/{name}", spec, "merge-patch+json")


@pytest.fixture(scope="module")
def scheduler(cluster: Lab) -> Iterator[Kubernetes]:
    api = connect(str(LabKubernetes(cluster).layout.user_file("admin")))
    yield Kubernetes(api)
    api.close()


def prepare(lab: Lab, case: Case, namespace: str, node: str) -> None:
    """Create the case's objects, and wait until the cluster has taken note of them."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    create(lab, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    create(lab, owner, namespace=namespace)
    uid = get(lab, "configmap", "owner", "-n", namespace)["metadata"]["uid"]
    create(
        lab,
        *(one for kind in case.kinds for one in draincases.objects(kind, node, uid)),
        namespace=namespace,
    )

    def created() -> bool:
        return len(get(lab, "pods", "-n", namespace)["items"]) == len(case.kinds)

    wait_for(created, f"the pods of {case}")
    for pod in get(lab, "pods", "-n", namespace)["items"]:
        kind = pod["metadata"]["labels"]["kind"]
        status = {"phase": "Running", "conditions": READY, **draincases.STATUS.get(kind, {})}
        patch = json.dumps({"status": status})
        name = pod["metadata"]["name"]
        kubectl(lab, "patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch)

    def budgets_known() -> bool:
        budgets = get(lab, "pdb", "-n", namespace)["items"]
        return all(
            one["status"].get("observedGeneration") == one["metadata"]["generation"]
            and one["status"].get("currentHealthy")
            == int(
                "unready" not in one["spec"]["selector"]["matchLabels"]["kind"]
                and one["metadata"]["name"] != "unready"
            )
            for one in budgets
        )

    wait_for(budgets_known, f"the budgets of {case} are counted")


def left(lab: Lab, namespace: str) -> list[str]:
    """Pods that are still there and not on their way out."""
    pods = get(lab, "pods", "-n", namespace)["items"]
    return sorted(
        one["metadata"]["labels"]["kind"]
        for one in pods
        if not one["metadata"].get("deletionTimestamp")
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_pods_stay_as_with_kubectl(
    cluster: Lab, scheduler: Kubernetes, case: Case
) -> None:
    tag = f"{time.time_ns():x}"
    spaces = {KUBECTL: f"kubectl-{tag}", OURS: f"ours-{tag}"}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda node: prepare(cluster, case, spaces[node], node), spaces))

    def theirs() -> bool:
        done = kubectl(cluster, "drain", KUBECTL, *case.options.words, check=False)
        return done.returncode == 0

    def ours() -> str:
        try:
            member = Member(OURS, ready=True, schedulable=True)
            scheduler.drain(member, Scope.ALL, case.options.policy, lambda _: None, lambda: False)
        except GpustateError as error:
            return str(error)
        return ""

    try:
        with ThreadPoolExecutor(2) as pool:
            succeeded, problem = pool.submit(theirs), pool.submit(ours)
            assert succeeded.result() == (problem.result() == ""), problem.result()
        assert left(cluster, spaces[OURS]) == left(cluster, spaces[KUBECTL])
        if problem.result():
            assert any(f"/{kind}" in problem.result() for kind in case.kinds), problem.result()
    finally:
        kubectl(cluster, "uncordon", KUBECTL)
        for space in spaces.values():
            for pod in get(cluster, "pods", "-n", space)["items"]:
                if pod["metadata"].get("finalizers"):
                    patch = json.dumps({"metadata": {"finalizers": None}})
                    kubectl(
                        cluster, "patch", "pod", pod["metadata"]["name"], "-n", space, "-p", patch
                    )
            kubectl(cluster, "delete", "daemonset", "--all", "-n", space, "--wait=false")
            kubectl(cluster, "delete", "pods", "--all", "-n", space, "--now", "--wait=false")
            kubectl(cluster, "delete", "namespace", space, "--wait=false")

        def gone() -> bool:
            pods: list[Any] = get(
                cluster, "pods", "-A", "--field-selector", "spec.nodeName=kubectl1"
            )["items"]
            pods += get(cluster, "pods", "-A", "--field-selector", "spec.nodeName=ours1")["items"]
            return not pods

        wait_for(gone, "the pods of the case are gone")
