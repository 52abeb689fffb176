"""Draining a Node leaves the same pods as ``kubectl drain`` does on the same state of a real cluster.

One exception: where a budget is known to refuse a pod for ever, no pod of the Node is evicted.

Real: API server, controller-manager with its disruption controller, scheduler, kubectl. The Nodes of the
comparison have no machine: their leases and the status of their pods are written by the test, which is all that
a drain is about, and their pods are gone as soon as they are deleted.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import draincases
import pytest
import shares
import yaml
from draincases import Case
from labkubernetes import kubectl, wait_for

from gpustate import policies
from gpustate.cluster import api as api_module
from gpustate.cluster.api import connect
from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.core.facts import NodeFacts
from gpustate.errors import GpustateError
from gpustate.schedulers.base import Member, NotDrainedError, Scope, Why
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.client import Client, Refused
from gpustate_lab.kubernetes.cluster import Kubernetes as LabKubernetes
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

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
            client.create(leases, {"metadata": {"name": name}, "spec": {"holderIdentity": name}})
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            for name in (KUBECTL, OURS):
                spec = {"spec": {"renewTime": now, "leaseDurationSeconds": 40}}
                client.request("PATCH", f"{leases}/{name}", spec, "merge-patch+json")
                client.request("PATCH", f"/api/v1/nodes/{name}/status", ready, "merge-patch+json")
            if over.wait(_HEARTBEAT_S):
                return


@pytest.fixture(scope="module")
def scheduler(cluster: Lab) -> Iterator[Kubernetes]:
    api = connect(str(LabKubernetes(cluster).layout.user_file("admin")))
    yield Kubernetes(api)
    api.close()


@pytest.fixture
def client(cluster: Lab) -> Iterator[Client]:
    with LabKubernetes(cluster).layout.client() as found:
        yield found


def path_of(namespace: str, item: dict[str, Any]) -> str:
    """Where objects of its kind are created."""
    kind, group = item["kind"].lower(), item["apiVersion"]
    return f"{'/api' if group == 'v1' else '/apis'}/{group}/namespaces/{namespace}/{kind}s"


def prepare(client: Client, case: Case, namespace: str, node: str) -> None:
    """Create the case's objects, and wait until the cluster has taken note of them."""
    core = f"/api/v1/namespaces/{namespace}"
    client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    wait_for(lambda: exists(client, f"{core}/serviceaccounts/default"), "the service account")
    client.create(f"{core}/configmaps", {"metadata": {"name": "owner"}})
    uid = client.get(f"{core}/configmaps/owner")["metadata"]["uid"]
    for kind in case.kinds:
        for one in draincases.objects(kind, node, uid):
            client.create(path_of(namespace, one), one)

    def pods() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = client.get(f"{core}/pods")["items"]
        return found if len(found) == len(case.kinds) else None

    for pod in wait_for(pods, f"the pods of {case}"):
        kind = pod["metadata"]["labels"]["kind"]
        status = {"phase": "Running", "conditions": READY, **draincases.STATUS.get(kind, {})}
        name = pod["metadata"]["name"]
        patch = {"status": status}
        client.request("PATCH", f"{core}/pods/{name}/status", patch, "merge-patch+json")

    def budgets_known() -> bool:
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        return all(counted(one) for one in client.get(path)["items"])

    wait_for(budgets_known, f"the budgets of {case} are counted")


def counted(budget: dict[str, Any]) -> bool:
    """The disruption controller has seen whether the pod is Ready; of two budgets for one pod it updates one."""
    kind, status = budget["spec"]["selector"]["matchLabels"]["kind"], budget["status"]
    if status.get("observedGeneration") != budget["metadata"]["generation"]:
        return False
    ready = 0 if kind in ("unready-guarded", "always-allow") else 1
    return kind == "twice-guarded" or bool(status.get("currentHealthy") == ready)


def exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except Refused as error:
        if error.status == 404:
            return False
        raise
    return True


def left(client: Client, namespace: str) -> list[str]:
    """Pods that are still there and not on their way out."""
    pods = client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return sorted(
        one["metadata"]["labels"]["kind"]
        for one in pods
        if not one["metadata"].get("deletionTimestamp")
    )


def remove(client: Client, namespace: str) -> None:
    """Delete everything of a case."""
    core = f"/api/v1/namespaces/{namespace}"
    client.request("DELETE", f"/apis/apps/v1/namespaces/{namespace}/daemonsets")
    for pod in client.get(f"{core}/pods")["items"]:
        if pod["metadata"].get("finalizers"):
            path = f"{core}/pods/{pod['metadata']['name']}"
            client.request("PATCH", path, {"metadata": {"finalizers": None}}, "merge-patch+json")
    client.request("DELETE", f"{core}/pods")
    client.request("DELETE", f"/api/v1/namespaces/{namespace}")
    wait_for(lambda: not client.get(f"{core}/pods")["items"], f"the pods of {namespace} are gone")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_pods_stay_as_with_kubectl(
    cluster: Lab, client: Client, scheduler: Kubernetes, case: Case
) -> None:
    tag = f"{time.time_ns():x}"
    spaces = {KUBECTL: f"kubectl-{tag}", OURS: f"ours-{tag}"}
    for node, space in spaces.items():
        prepare(client, case, space, node)

    def theirs() -> str:
        words = case.options.words(case.timeout_s)
        done = kubectl(cluster, "drain", KUBECTL, *words, check=False)
        return done.stderr if done.returncode else ""

    def ours() -> str:
        try:
            member = Member(OURS, ready=True, schedulable=True)
            scheduler.drain(
                member,
                Scope.ALL,
                case.options.policy(case.timeout_s),
                lambda _: None,
                lambda: False,
            )
        except GpustateError as error:
            return str(error)
        return ""

    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(theirs), pool.submit(ours)
            reason, problem = first.result(), second.result()
        assert bool(reason) == bool(problem), (reason, problem)
        stay = left(client, spaces[KUBECTL])
        if {*case.kinds} & {*stay} & draincases.DEAD_ENDS:
            stay = sorted(case.kinds)
        assert left(client, spaces[OURS]) == stay
        if problem:
            assert any(f"/{kind}" in problem for kind in case.kinds), problem
    finally:
        uncordon = {"spec": {"unschedulable": None}}
        client.request("PATCH", f"/api/v1/nodes/{KUBECTL}", uncordon, "merge-patch+json")
        for space in spaces.values():
            remove(client, space)


UPGRADE_POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec:
  driver:
    upgradePolicy:
      autoUpgrade: true
      waitForCompletion: {podSelector: "kind in (controlled)", timeoutSeconds: %d}
      podDeletion: {timeoutSeconds: 60}
      drain: {enable: true, timeoutSeconds: 60}
"""


@pytest.mark.parametrize("timeout_s", [0, 12], ids=["completes", "too-late"])
def test_pods_that_are_to_complete_are_waited_for_before_any_is_evicted(
    client: Client, scheduler: Kubernetes, tmp_path: Path, timeout_s: int
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(UPGRADE_POLICY % timeout_s)
    policy = policies.load(str(file)).drain
    assert policy is not None
    space = f"ours-{time.time_ns():x}"
    prepare(client, Case(("controlled", "guarded"), draincases.Options()), space, OURS)
    told: list[str] = []
    member = Member(OURS, ready=True, schedulable=True)
    began = time.monotonic()
    try:
        with ThreadPoolExecutor(1) as pool:
            words = (member, Scope.ALL, policy, told.append, lambda: False)
            draining = pool.submit(scheduler.drain, *words)
            wait_for(lambda: told, "the drain waits")
            assert told == [f"waiting for {space}/controlled to complete"]
            time.sleep(4)
            assert left(client, space) == ["controlled", "guarded"], "nothing is evicted before"
            if not timeout_s:
                path = f"/api/v1/namespaces/{space}/pods/controlled/status"
                done = {"status": {"phase": "Succeeded"}}
                client.request("PATCH", path, done, "merge-patch+json")
            draining.result(timeout=90)
        assert left(client, space) == []
        late = f"{space}/controlled did not complete within {timeout_s} s"
        assert (late in told) is bool(timeout_s)
        assert time.monotonic() - began > timeout_s
    finally:
        remove(client, space)


def claim_objects(
    name: str, driver: str, pod: str, uid: str, **result: Any
) -> list[dict[str, Any]]:
    """A ResourceClaim and its status, as a scheduler allocates it for a pod."""
    request: dict[str, Any] = {"deviceClassName": "any", **result}
    device = {"request": "gpu", "driver": driver, "pool": OURS, "device": "gpu-0", **result}
    return [
        {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
        },
        {
            "status": {
                "allocation": {"devices": {"results": [device]}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
            }
        },
    ]


def test_pods_with_a_claim_on_a_gpu_leave_for_a_reset_and_no_others(
    client: Client, scheduler: Kubernetes
) -> None:
    space = f"ours-{time.time_ns():x}"
    core = f"/api/v1/namespaces/{space}"
    claims = f"/apis/resource.k8s.io/v1/namespaces/{space}/resourceclaims"
    labels = {"resource.kubernetes.io/admin-access": "true"}
    client.create("/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
    wait_for(lambda: exists(client, f"{core}/serviceaccounts/default"), "the service account")
    client.create(f"{core}/configmaps", {"metadata": {"name": "owner"}})
    owner = client.get(f"{core}/configmaps/owner")["metadata"]["uid"]
    drivers: dict[str, dict[str, Any]] = {
        "gpu": {"driver": "gpu.nvidia.com"},
        "monitor": {"driver": "gpu.nvidia.com", "adminAccess": True},
        "network": {"driver": "net.example.net"},
    }
    try:
        for kind in (*drivers, "unread", "plain"):
            (one,) = draincases.objects(kind, OURS, owner)
            if kind != "plain":
                one["spec"]["resourceClaims"] = [{"name": "claim", "resourceClaimName": kind}]
                one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "claim"}]}
            client.create(f"{core}/pods", one)
            running = {"status": {"phase": "Running", "conditions": READY}}
            client.request("PATCH", f"{core}/pods/{kind}/status", running, "merge-patch+json")
        for kind, result in drivers.items():
            uid = client.get(f"{core}/pods/{kind}")["metadata"]["uid"]
            claim, status = claim_objects(kind, pod=kind, uid=uid, **result)
            client.create(claims, claim)
            client.request("PATCH", f"{claims}/{kind}/status", status, "merge-patch+json")
        member = Member(OURS, ready=True, schedulable=True)
        rules = EvictionRules(timeout_s=60.0)
        policy = DrainPolicy(gpu_pods=rules, node=rules)
        scheduler.drain(member, Scope.GPU, policy, lambda _: None, lambda: False)
        assert left(client, space) == ["monitor", "network", "plain"], "unread counts as a GPU"
        scheduler.drain(member, Scope.ALL, policy, lambda _: None, lambda: False)
        assert left(client, space) == []
    finally:
        remove(client, space)


def test_a_pod_that_stays_terminating_is_explained(client: Client, scheduler: Kubernetes) -> None:
    space = f"ours-{time.time_ns():x}"
    prepare(client, Case(("finalizer",), draincases.Options()), space, OURS)
    policy = DrainPolicy(node=EvictionRules(timeout_s=5.0))
    member = Member(OURS, ready=True, schedulable=True)
    try:
        with pytest.raises(
            NotDrainedError, match=r"nobody removes its finalizer example\.net/keep"
        ):
            scheduler.drain(member, Scope.ALL, policy, lambda _: None, lambda: False)
    finally:
        remove(client, space)


def test_the_service_account_of_a_pod_reaches_its_cluster(
    cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl(cluster, "create", "serviceaccount", "gpustate")
    bind = ("create", "clusterrolebinding", "gpustate", "--clusterrole=view")
    kubectl(cluster, *bind, "--serviceaccount=default:gpustate")
    token = kubectl(cluster, "create", "token", "gpustate").stdout
    config = yaml.safe_load(LabKubernetes(cluster).layout.user_file("admin").read_text())
    (named,) = config["clusters"]
    authority = base64.b64decode(named["cluster"]["certificate-authority-data"])
    for name, data in (("token", token.encode()), ("namespace", b"default"), ("ca.crt", authority)):
        (tmp_path / name).write_bytes(data)
    address = urlsplit(named["cluster"]["server"])
    monkeypatch.setattr(api_module, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    api = connect("in-cluster")
    assert not api.may("patch", "", "nodes")
    assert api.may("list", "", "pods")
    api.close()


def test_kubectl_describe_shows_what_happened_to_a_node(
    cluster: Lab, scheduler: Kubernetes
) -> None:
    why = Why("20261124-1", "ann@ops1", "driver 580")
    told: list[str] = []
    scheduler.take_lease(why, told.append, lambda: False)
    (member,) = (one for one in scheduler.members(fresh=True) if one.name == OURS)
    held = scheduler.hold(member, why)
    scheduler.note(held, "changing")
    scheduler.refresh(member, NodeFacts(), told.append, lambda: False)
    scheduler.note(held, "failed")
    scheduler.release(held)
    scheduler.drop_lease()
    text = kubectl(cluster, "describe", "node", OURS).stdout
    for reason in ("GpustateHold", "GpustateChanged", "GpustateFailed", "GpustateReleased"):
        assert reason in text, text
    assert "cordoned (run 20261124-1 of ann@ops1: driver 580)" in text
    assert told == []
