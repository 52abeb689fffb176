"""Objects of a cluster: planned, applied, repaired and removed on a real API server, then NVIDIA's programs as pods.

Real: API server, controllers, scheduler, kubelets, containerd, NVIDIA's device plugin and GPU feature discovery as pods
of the rendered DaemonSets. Simulated: the GPUs, NVML and the CUDA driver library. The configuration manager is not run.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import clusterusers
import objectpods
import pytest
import shares
from commands import Ran, gpustate
from gpupods import allocated, delete, gpu_pod, import_image, report
from labkubernetes import audit, create, get, kubectl, pod, wait_for

from gpustate import policies
from gpustate.cluster.api import Api, connect
from gpustate.cluster.node_status import NodeStatusApi
from gpustate.cluster.objects import Objects
from gpustate.errors import ClusterError
from gpustate.gpu_operator.objects import images
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import KINDS
from gpustate.reconcile.admission import Admission
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.planning import Target, plan
from gpustate.reconcile.verdicts import Verdict
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "docs/examples/clusterpolicy.yaml"
#: Every kind of object, and nothing to do on nodes.
EVERY_KIND = """\
from gpustate import Policy
from gpustate.manifests import ClusterSettings, Component, Exporter, PluginConfig
from gpustate.states.preflight import PreflightPassed

configs = {"shared": "version: v1\\n"}
policy = Policy(
    PreflightPassed(),
    cluster=ClusterSettings(
        namespace="gpus",
        privileged_namespace=True,
        config=PluginConfig("plugin-configs", "shared", configs),
        dcgm=Component(),
        dcgm_exporter=Exporter(
            pod_labels=True, env={"DCGM_EXPORTER_CONFIGMAP_DATA": "gpus:counters"}
        ),
        node_status_exporter=Component(),
    ),
)
"""
DEPLOY = "nvidia.com/gpu.deploy."
USER = "objects"
#: Of kinds that this cluster lacks, only lists are made; test_cluster_versions.py has them.
RULES = shares.share(
    "rights for cluster objects",
    [
        rule
        for rule in clusterusers.documented()
        if rule[0] != "monitoring.coreos.com" or rule[2] == "list"
    ],
    most=6,
)
COMPONENTS = (
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "gpu-feature-discovery",
    "node-status-exporter",
)
#: What the deletion of a namespace needs.
EVERYTHING = ("*", "*", "list")
#: Kinds of every cluster that the components have objects of.
USED = [
    kind
    for kind in KINDS
    if not kind.without
    and kind.name
    not in ("CustomResourceDefinition", "Deployment", "NetworkPolicy", "PodDisruptionBudget")
]


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    images_of_nodes = ("debian13", "debian13-containerd2")
    lab = lab_factory(LabSpec(nodes=2, images=images_of_nodes, kubernetes="1.36"))

    def settled() -> bool:
        before = everything(lab)
        time.sleep(3)
        return everything(lab) == before

    wait_for(settled, "the controllers have created what they create in every cluster")
    return lab


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("policy") / "objects.py"
    file.write_text(EVERY_KIND)
    return file


@pytest.fixture
def switched_off(cluster: Lab) -> None:
    """Somebody keeps the components off the Nodes, so that no pod is created."""
    words = [f"{DEPLOY}{one}=false" for one in COMPONENTS]
    kubectl(cluster, "label", "nodes", "--all", "--overwrite", *words)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def writes(lab: Lab, since: str) -> list[tuple[str, str]]:
    """What gpustate wrote through the API since then, without dry runs."""
    return [
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in audit(lab)
        if entry["requestReceivedTimestamp"] >= since
        and "gpustate/" in entry.get("userAgent", "")
        and entry["verb"] not in ("get", "list", "watch")
        and "dryRun=All" not in entry["requestURI"]
    ]


def run(lab: Lab, verb: str, policy: Path, *words: str, code: int) -> Ran:
    yes = ("--yes",) if verb in ("apply", "remove") else ()
    return gpustate(verb, policy, "-i", lab.inventory, "--cluster-objects", *yes, *words, code=code)


def everything(lab: Lab) -> dict[str, str]:
    """Every object of the kinds in use, with the version of its content."""
    found: dict[str, str] = {}
    for kind in USED:
        for item in get(lab, kind.plural, "--all-namespaces")["items"]:
            meta = item["metadata"]
            name = "/".join((kind.plural, meta.get("namespace", ""), meta["name"]))
            found[name] = meta["resourceVersion"]
    return found


def labels_of(lab: Lab) -> list[dict[str, str]]:
    names = [f"{DEPLOY}{one}" for one in COMPONENTS]
    found = [one["metadata"]["labels"] for one in get(lab, "nodes")["items"]]
    return [{key: one[key] for key in names if key in one} for one in found]


SOMEBODY = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}
#: An edit of every kind, as somebody does it with kubectl: object and merge patch.
EDITS = (
    (
        "namespace/gpus",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
    ),
    ("runtimeclass/nvidia", {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}),
    (
        "serviceaccount/nvidia-device-plugin",
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
    ),
    ("configmap/plugin-configs", {"data": {"shared": "version: v1\nflags: {}\n"}}),
    (
        "clusterrole/nvidia-device-plugin",
        {"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]},
    ),
    ("clusterrolebinding/nvidia-device-plugin", {"subjects": [SOMEBODY]}),
    ("role/nvidia-gpu-feature-discovery", {"rules": []}),
    ("rolebinding/nvidia-gpu-feature-discovery", {"subjects": [SOMEBODY]}),
    ("service/nvidia-dcgm-exporter", {"spec": {"selector": {"app": "other"}}}),
    (
        "daemonset/nvidia-device-plugin-daemonset",
        {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}},
    ),
)


def test_objects_of_every_kind_are_planned_applied_repaired_and_removed(
    cluster: Lab, every_kind: Path, switched_off: None
) -> None:
    before, since = everything(cluster), now()
    assert "cluster: https://" in run(cluster, "plan", every_kind, code=0).out
    planned = run(cluster, "plan", every_kind, "-o", "json", code=0)
    actions = {row["object"]: row["action"] for row in planned.document["clusters"][0]["objects"]}
    assert {actions[name] for name, _ in EDITS} == {"create"}
    assert run(cluster, "plan", every_kind, "--detailed-exitcode", code=2)
    assert run(cluster, "drift", every_kind, code=2)
    assert not writes(cluster, since)
    assert everything(cluster) == before

    done = run(cluster, "apply", every_kind, code=0)
    assert done.summary["failed"] == "0"
    made = set(everything(cluster)) - set(before)
    assert {name.partition("/")[0] for name in made} == {kind.plural for kind in USED}
    since, after = now(), everything(cluster)
    assert "  update" not in run(cluster, "apply", every_kind, code=0).out
    assert run(cluster, "drift", every_kind, code=0)
    assert not writes(cluster, since), "a second apply writes nothing"
    assert everything(cluster) == after
    assert labels_of(cluster) == [{f"{DEPLOY}{one}": "false" for one in COMPONENTS}] * 2

    for name, patch in EDITS:
        kubectl(
            *(cluster, "patch", name, "--namespace", "gpus", "--type", "merge"),
            *("--field-manager", "kubectl-edit", "-p", json.dumps(patch)),
        )
    create(cluster, config_map("theirs"), namespace="gpus")
    kubectl(cluster, "annotate", "runtimeclass", "nvidia", "example.com/mine=kept")
    edited, since = everything(cluster), now()
    drifted = run(cluster, "drift", every_kind, code=2)
    planned = run(cluster, "plan", every_kind, "-o", "json", code=5)
    rows = {row["object"]: row for row in planned.document["clusters"][0]["objects"]}
    for name, _ in EDITS:
        assert f"x {name}  refused" in drifted.out
        assert rows[name]["action"] == "refused"
        assert rows[name]["changes"], name
        assert 'conflict with "kubectl-edit"' in rows[name]["reason"]
    refused = run(cluster, "apply", every_kind, code=5)
    assert "take over with --force-conflicts" in refused.out
    assert everything(cluster) == edited
    assert not writes(cluster, since)

    run(cluster, "apply", every_kind, "--force-conflicts", code=0)
    assert run(cluster, "drift", every_kind, code=0)
    written = get(cluster, "configmap", "plugin-configs", "--namespace", "gpus")
    assert written["data"] == {"shared": "version: v1\n"}
    annotations = get(cluster, "runtimeclass", "nvidia")["metadata"]["annotations"]
    assert annotations["example.com/mine"] == "kept"

    removed = run(cluster, "remove", every_kind, code=0)
    assert removed.out.count("kept, because others use it: configmap/theirs") == 1
    left = set(everything(cluster)) - set(before)
    assert {name for name in left if not name.endswith(("/kube-root-ca.crt", "/default"))} == {
        "namespaces//gpus",
        "configmaps/gpus/theirs",
    }
    namespace = get(cluster, "namespace", "gpus")["metadata"]["labels"]
    assert namespace == {"kubernetes.io/metadata.name": "gpus"}
    kubectl(cluster, "delete", "configmap", "theirs", "--namespace", "gpus")
    kubectl(cluster, "delete", "namespace", "gpus")
    gone = everything(cluster)
    assert {name: gone[name] for name in before if name in gone} == before


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


def test_objects_of_others_are_kept_when_equal_and_refused_when_different(
    cluster: Lab, every_kind: Path, switched_off: None
) -> None:
    runtime_class = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    kubectl(cluster, "create", "namespace", "gpus")
    theirs = {**config_map("plugin-configs"), "data": {"shared": "version: v1\nflags: {}\n"}}
    create(cluster, runtime_class)
    create(cluster, theirs, namespace="gpus")
    refused = run(cluster, "apply", every_kind, code=5)
    assert "configmap/plugin-configs  refused" in refused.out
    assert "is not gpustate's (managed by kubectl-create), and differs" in refused.out
    kubectl(cluster, "delete", "configmap", "plugin-configs", "--namespace", "gpus")
    run(cluster, "apply", every_kind, code=0)
    labels = get(cluster, "namespace", "gpus")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "gpustate.io/owner" not in labels
    run(cluster, "remove", every_kind, code=0)
    assert get(cluster, "runtimeclass", "nvidia")["handler"] == "nvidia"
    labels = get(cluster, "namespace", "gpus")["metadata"]["labels"]
    assert labels == {"kubernetes.io/metadata.name": "gpus"}
    kubectl(cluster, "delete", "runtimeclass", "nvidia")
    kubectl(cluster, "delete", "namespace", "gpus")


def judged(api: Api, *, absent: bool) -> list[str]:
    """Write the condition of a Node and lift its taint, or remove the condition; return what went wrong."""
    nodes = NodeStatusApi(api)
    admission = Admission(nodes, f"{now()}Z", "example.com/none")
    found = [one for one in nodes.nodes() if one["metadata"]["name"] == "gpu1"]
    healthy = Verdict("True", "Validated", "by a test")
    done = (
        admission.withdraw(found) if absent else admission.report([(one, healthy) for one in found])
    )
    return [str(one) for one in (*done.notes, *done.failures) if "could not" in one.text]


def cycle(path: Path, policy: Path) -> list[str]:
    """Apply, compare and remove all objects with a kubeconfig; return what went wrong."""
    settings = settings_of(policies.load(str(policy)))
    api = connect(str(path))
    objects = Objects(api)
    labels = {"gpu1": node_labels(settings)}
    try:
        for target in (
            Target(build(settings, images()), settings.namespace, labels),
            Target((), settings.namespace, absent=True),
        ):
            changes = plan(objects, target)
            done: Applied = Applier(objects, target, 60).apply(changes)
            wrong = [*done.failures, *done.unready, *judged(api, absent=target.absent)]
            wrong += [one.reason for one in changes if one.action == "refused"]
            if wrong:
                return wrong
    except ClusterError as error:
        return [str(error)]
    finally:
        api.close()
    return []


@pytest.fixture(scope="module")
def user(cluster: Lab) -> Path:
    """Somebody who has the rights that a test grants."""
    return clusterusers.user(cluster, USER)


def test_the_documented_rights_suffice(
    cluster: Lab, every_kind: Path, switched_off: None, user: Path
) -> None:
    clusterusers.grant(cluster, USER, clusterusers.documented())
    assert wait_for(lambda: cycle(user, every_kind) == [], "the rights are known to the server", 20)


@pytest.mark.parametrize("rule", RULES, ids="-".join)
def test_every_documented_right_is_needed_and_named_when_it_is_missing(
    cluster: Lab, every_kind: Path, switched_off: None, user: Path, rule: clusterusers.Rule
) -> None:
    rules = [one for one in clusterusers.documented() if one != rule]
    if rule[1:] in (("namespaces", "create"), ("namespaces", "delete")):
        # Otherwise the namespace is kept, and is not gpustate's any more.
        rules.append(EVERYTHING)
        kubectl(cluster, "delete", "namespace", "gpus", "--ignore-not-found")
    clusterusers.grant(cluster, USER, rules)
    wrong = wait_for(lambda: cycle(user, every_kind), f"it needs {rule}", 30)
    group, resource, verb = rule
    missing = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
    assert any(missing in words for words in wrong), wrong
    assert cycle(Kubernetes(cluster).layout.user_file("admin"), every_kind) == []


@pytest.fixture(scope="module")
def with_pods(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Both nodes are set up, have the image of the policy, and nothing of the lab's does the work of the pods."""
    kubectl(cluster, "label", "nodes", "--all", *(f"{DEPLOY}{one}-" for one in COMPONENTS))
    gpustate("apply", POLICY, "-i", cluster.inventory, "--yes", code=0)
    for node in cluster.nodes:
        objectpods.import_image(node, images()["devicePlugin"])
    kubectl(cluster, "delete", "nodefeatures", "--all", "--namespace", "node-feature-discovery")
    return objectpods.settings(cluster)


def offers(lab: Lab, node: Node) -> int:
    status = get(lab, "node", node.name)["status"]
    return int(status.get("allocatable", {}).get("nvidia.com/gpu", "0"))


def test_the_rendered_daemon_sets_run_and_pods_get_gpus(
    cluster: Lab, with_pods: tuple[str, ...]
) -> None:
    done = run(cluster, "apply", POLICY, *with_pods, "--set", "rollout.pods_timeout_s=120", code=0)
    assert done.lists("daemonset/nvidia-device-plugin-daemonset", "create")
    assert done.lists("node/gpu1", "update") or done.lists("node/gpu[1-2]", "update")
    for node in cluster.nodes:
        wait_for(lambda node=node: offers(cluster, node) == 8, f"{node.name} offers 8 GPUs")
    for node in cluster.nodes:
        interpreter = import_image(node)
        name = f"two-{node.name}"
        create(cluster, gpu_pod(name, node, interpreter, {"nvidia.com/gpu": 2}))
        observed = report(cluster, name)
        given = allocated(node, get(cluster, "pod", name)["metadata"]["uid"])
        assert len(given) == 2
        assert {one["uuid"] for one in observed["cuda"] if one["ok"]} == given
        delete(cluster, name)

    def product(node: Node) -> str:
        labels: dict[str, str] = get(cluster, "node", node.name)["metadata"]["labels"]
        return labels.get("nvidia.com/gpu.product", "")

    for node in cluster.nodes:
        wait_for(lambda node=node: product(node), f"GPU feature discovery labels {node.name}")
    since = now()
    run(cluster, "apply", POLICY, *with_pods, code=0)
    run(cluster, "drift", POLICY, *with_pods, code=0)
    assert not writes(cluster, since)


def test_a_pod_that_cannot_start_is_named_with_its_reason(
    cluster: Lab, with_pods: tuple[str, ...]
) -> None:
    broken = (
        "--set",
        "devicePlugin.image=nvcr.io/none/none:v0",
        "--set",
        "rollout.pods_timeout_s=15",
    )
    failed = run(cluster, "apply", POLICY, *with_pods, *broken, code=3)
    assert "daemonset/nvidia-device-plugin-daemonset: " in failed.out
    assert "nvidia-device-plugin: " in failed.out
    assert "Image" in failed.out or "ErrImagePull" in failed.out
    run(cluster, "apply", POLICY, *with_pods, code=0)
    for node in cluster.nodes:
        wait_for(lambda node=node: offers(cluster, node) == 8, f"{node.name} offers 8 GPUs")


def namespaces(lab: Lab) -> list[str]:
    return [one["metadata"]["name"] for one in get(lab, "namespaces")["items"]]


def test_no_pod_comes_to_a_node_while_its_device_plugin_is_removed(
    cluster: Lab, with_pods: tuple[str, ...]
) -> None:
    labels = labels_of(cluster)
    run(cluster, "remove", POLICY, "--max-disruption", "none", code=5)
    assert labels_of(cluster) == labels
    assert "gpu-operator" in namespaces(cluster), "objects stay for nodes that are refused"
    over, refused = threading.Event(), set[str]()
    labelled: list[list[bool]] = []

    def create_pods() -> None:
        for number in itertools.count():
            if over.wait(0.2):
                return
            labelled.append([bool(one) for one in labels_of(cluster)])
            create(cluster, pod(f"short-{number}", "sleep 1", gpus=1))
            rows = get(cluster, "pods")["items"]
            reasons = ((one["metadata"]["name"], one["status"].get("reason")) for one in rows)
            refused.update(name for name, why in reasons if why == "UnexpectedAdmissionError")

    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create_pods)
        try:
            done = run(cluster, "remove", POLICY, "--set", "drain.force=true", code=0)
        finally:
            over.set()
        creating.result()
    assert not refused
    assert [True, False] in labelled or [False, True] in labelled, "each loses its GPUs in its turn"
    last_turn, first_deletion = (done.err.rindex(one) for one in ("release node/", "delete daemon"))
    assert last_turn < first_deletion
    assert labels_of(cluster) == [{}, {}]
    assert "gpu-operator" not in namespaces(cluster)
    for node in get(cluster, "nodes")["items"]:
        assert not node["spec"].get("unschedulable")
        assert "gpustate.io/hold" not in node["metadata"]["annotations"]
