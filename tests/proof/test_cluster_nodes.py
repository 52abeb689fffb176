"""Nodes of a real cluster: labels, start-up taint, condition, quarantine, and why pods wait.

Real: API server, controllers, scheduler, kubelets, containerd, NVIDIA's device plugin as pods of the rendered
DaemonSet. Simulated: the GPUs, NVML, the driver's files in proc, and the CUDA driver library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import clusterusers
import objectpods
import pytest
from commands import Ran, gpustate
from gpupods import delete, gpu_pod, import_image, report
from labkubernetes import audit, create, get, kubectl, pod, wait_for, wait_phase

from gpustate.gpu_operator.objects import images
from gpustate.manifests.settings import STARTUP_TAINT
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
DEPLOY = "nvidia.com/gpu.deploy."
GPU = "nvidia.com/gpu"
#: As a kubelet puts it on with --register-with-taints, and one of others.
TAINTS = (f"{STARTUP_TAINT}=new:NoSchedule", "example.com/theirs=x:PreferNoSchedule")


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    """Two nodes that are set up, and have joined with taints; no object of the policy is there yet."""
    lab = lab_factory(
        LabSpec(nodes=2, images=("debian13", "debian13-containerd2"), kubernetes="1.36")
    )
    gpustate("apply", POLICY, "-i", lab.inventory, "--yes", code=0)
    for node in lab.nodes:
        objectpods.import_image(node, images()["devicePlugin"])
        import_image(node)
    kubectl(lab, "delete", "nodefeatures", "--all", "--namespace", "node-feature-discovery")
    kubectl(lab, "taint", "nodes", "--all", *TAINTS)
    return lab


def run(lab: Lab, verb: str, *words: Any, code: int = 0) -> Ran:
    return gpustate(verb, *words, "-i", lab.inventory, code=code)


def apply(lab: Lab, *words: Any, code: int = 0) -> Ran:
    own = ("--cluster-objects", "--yes", *objectpods.settings(lab))
    return run(lab, "apply", POLICY, *own, *words, code=code)


def taints(lab: Lab, name: str) -> set[str]:
    return {one["key"] for one in get(lab, "node", name)["spec"].get("taints", ())}


def condition(lab: Lab, name: str) -> dict[str, Any]:
    found = get(lab, "node", name)["status"]["conditions"]
    return next((one for one in found if one["type"] == "GPUHealthy"), {})


def offers(lab: Lab, name: str) -> int:
    return int(get(lab, "node", name)["status"]["allocatable"].get(GPU, "0"))


def writes(lab: Lab, since: str) -> list[tuple[str, str]]:
    return [
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in audit(lab)
        if entry["requestReceivedTimestamp"] >= since
        and "gpustate/" in entry.get("userAgent", "")
        and entry["verb"] not in ("get", "list", "watch")
        and "dryRun=All" not in entry["requestURI"]
    ]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


@contextmanager
def fault(node: Node, name: str) -> Iterator[None]:
    node.fault(name, on=True)
    try:
        yield
    finally:
        node.fault(name, on=False)


def test_a_new_node_is_labelled_validated_and_admitted(cluster: Lab) -> None:
    kubectl(cluster, "label", "node", "gpu2", f"{DEPLOY}dcgm=false")
    kubectl(cluster, "label", "node", "gpu2", f"{DEPLOY}mig-manager=paused-for-mig-change")
    done = apply(cluster)
    for name in ("gpu1", "gpu2"):
        assert f"node/{name}: start-up taint {STARTUP_TAINT} lifted" in done.out
        assert f"node/{name}: GPUHealthy is True (Validated: " in done.out
        assert taints(cluster, name) == {"example.com/theirs"}
        assert offers(cluster, name) == 8
        assert condition(cluster, name)["status"] == "True"
    labels = get(cluster, "node", "gpu1")["metadata"]["labels"]
    found = {key.removeprefix(DEPLOY): labels[key] for key in labels if key.startswith(DEPLOY)}
    others = ("dcgm", "dcgm-exporter", "node-status-exporter", "operator-validator", "client")
    assert found == {
        **{"driver": "pre-installed", "container-toolkit": "pre-installed"},
        **dict.fromkeys(("device-plugin", "gpu-feature-discovery", "mig-manager", *others), "true"),
    }
    labels = get(cluster, "node", "gpu2")["metadata"]["labels"]
    assert labels[f"{DEPLOY}dcgm"] == "false"
    assert labels[f"{DEPLOY}mig-manager"] == "paused-for-mig-change"
    since = now()
    time.sleep(1)
    again = apply(cluster)
    assert "GPUHealthy" not in again.out
    assert not writes(cluster, since), "nothing was validated anew, so there is no heartbeat"
    kubectl(cluster, "taint", "nodes", "--all", "example.com/theirs-")


def test_a_failed_validation_keeps_the_taint_and_says_so(cluster: Lab) -> None:
    before = condition(cluster, "gpu1")
    kubectl(cluster, "taint", "node", "gpu1", TAINTS[0])
    with fault(cluster.node("gpu1"), "reset-needed:3"):
        failed = run(cluster, "validate", POLICY, "-l", "gpu1", code=3)
        assert f"start-up taint {STARTUP_TAINT} stays: " in failed.out
        assert taints(cluster, "gpu1") == {STARTUP_TAINT}
        bad = condition(cluster, "gpu1")
        assert (bad["status"], bad["reason"]) == ("False", "RecoveryRequired")
        assert bad["lastTransitionTime"] > before["lastTransitionTime"]
        assert bad["lastHeartbeatTime"] >= bad["lastTransitionTime"]
        assert condition(cluster, "gpu2")["status"] == "True"
    good = run(cluster, "validate", POLICY, "-l", "gpu1")
    assert f"start-up taint {STARTUP_TAINT} lifted" in good.out
    assert taints(cluster, "gpu1") == set()
    first = condition(cluster, "gpu1")
    time.sleep(1)
    run(cluster, "validate", POLICY, "-l", "gpu1")
    second = condition(cluster, "gpu1")
    assert second["lastTransitionTime"] == first["lastTransitionTime"]
    assert second["lastHeartbeatTime"] > first["lastHeartbeatTime"]
    ready = get(cluster, "node", "gpu1")["status"]["conditions"]
    assert {one["type"] for one in ready} >= {"Ready", "MemoryPressure", "GPUHealthy"}


def test_health_reports_a_fault_and_takes_it_back_as_unknown(cluster: Lab) -> None:
    verb = ("--node-condition", "-l", "gpu2")
    with fault(cluster.node("gpu2"), "reset-needed:1"):
        run(cluster, "health", *verb, code=3)
        assert condition(cluster, "gpu2")["reason"] == "RecoveryRequired"
    run(cluster, "health", *verb)
    assert condition(cluster, "gpu2")["status"] == "Unknown"
    run(cluster, "validate", POLICY, "-l", "gpu2")
    assert condition(cluster, "gpu2")["status"] == "True"


def remove_condition(lab: Lab, name: str) -> None:
    gone = [{"$patch": "delete", "type": "GPUHealthy"}]
    patch = json.dumps({"status": {"conditions": gone}})
    kubectl(lab, "patch", "node", name, "--subresource=status", "--type=strategic", "-p", patch)


def test_another_writer_of_the_condition_is_named_and_left_alone(cluster: Lab) -> None:
    theirs = {"type": "GPUHealthy", "status": "False", "reason": "Npd", "message": "theirs"}
    patch = json.dumps({"status": {"conditions": [theirs]}})
    kubectl(
        *(cluster, "patch", "node", "gpu2", "--subresource=status", "--type=strategic"),
        *("--field-manager=node-problem-detector", "-p", patch),
    )
    done = run(cluster, "validate", POLICY, "-l", "gpu2")
    assert "GPUHealthy has another writer" in done.out
    assert "node-problem-detector" in done.out
    assert condition(cluster, "gpu2")["reason"] == "Npd"
    remove_condition(cluster, "gpu2")
    run(cluster, "validate", POLICY, "-l", "gpu2")
    assert condition(cluster, "gpu2")["status"] == "True"


def uuids(node: Node) -> list[str]:
    text = node.run("nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout
    return text.split()


def test_a_quarantined_gpu_is_offered_to_no_pod(cluster: Lab) -> None:
    node = cluster.node("gpu1")
    held, interpreter = uuids(node)[3], import_image(node)
    words = ("--gpu", "3", "--for", "1h", "-m", "RMA 4711", "-l", "gpu1")
    done = run(cluster, "node", "quarantine", *words)
    assert "the device plugin was restarted; the Node offers nvidia.com/gpu: 7" in done.out
    assert get(cluster, "node", "gpu1")["status"]["capacity"][GPU] == "7"
    create(cluster, gpu_pod("seven", node, interpreter, {GPU: 7}))
    seen = set(report(cluster, "seven")["nvml"]["uuids"])
    assert seen == set(uuids(node)) - {held}
    delete(cluster, "seven")
    for number in range(3):
        create(cluster, gpu_pod(f"one-{number}", node, interpreter, {GPU: 1}))
        assert report(cluster, f"one-{number}")["nvml"]["uuids"] != [held]
    delete(cluster, *(f"one-{number}" for number in range(3)))

    run(cluster, "validate", POLICY, "-l", "gpu1")
    assert "in quarantine: " in condition(cluster, "gpu1")["message"]
    create(cluster, pod("eight", "true", node="gpu1", gpus=8))
    found = causes(cluster, "eight", "gpu-in-quarantine")
    assert held in found["gpu-in-quarantine"]["evidence"]
    delete(cluster, "eight")

    done = run(cluster, "node", "quarantine", "--gpu", "3", "--end", "-l", "gpu1")
    assert "the Node offers nvidia.com/gpu: 8" in done.out
    # A validation's image has the same content, and is removed by its digest.
    import_image(node)
    create(cluster, gpu_pod("all", node, interpreter, {GPU: 8}))
    assert held in report(cluster, "all")["nvml"]["uuids"]
    delete(cluster, "all")


# --- why a pod waits ------------------------------------------------------------------------------


def causes(lab: Lab, name: str, wanted: str) -> dict[str, dict[str, Any]]:
    """Causes of a pod by word, once one of them is there: the scheduler and kubelets take a while."""
    found: dict[str, dict[str, Any]] = {}

    def explained() -> bool:
        words = ("--pod", f"default/{name}", "-o", "json")
        ran = gpustate("explain", *words, "-i", lab.inventory)
        found.clear()
        found.update({one["cause"]: one for one in ran.document["pod"]["causes"]})
        return wanted in found

    wait_for(explained, f"{wanted} of {name}, not {sorted(found)}", 60)
    return found


def test_every_cause_of_a_real_scheduler_is_named(cluster: Lab) -> None:
    both = {"gpu1", "gpu2"}

    def explain(wanted: str, item: dict[str, Any], nodes: set[str] | None = None) -> str:
        create(cluster, item)
        name = item["metadata"]["name"]
        found = causes(cluster, name, wanted)[wanted]
        if nodes is not None:
            assert set(found["nodes"]) == nodes, found
        kubectl(cluster, "delete", "pod", name, "--now", "--ignore-not-found")
        assert found["remedy"]
        return str(found["evidence"])

    assert "offers 8" in explain("too-many", pod("many", "true", gpus=9), both)
    wrong = pod("mig", "true")
    wrong["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-3g.40gb": 1}}
    assert "the Node offers nvidia.com/gpu: 8" in explain("other-resource", wrong, both)
    selected = pod("selected", "true", gpus=1, nodeSelector={"nvidia.com/gpu.product": "none"})
    explain("selector", selected, both)
    gated = pod("gated", "true", gpus=1, schedulingGates=[{"name": "example.com/gate"}])
    explain("scheduling-gate", gated)
    explain("no-scheduler", pod("nobody", "true", gpus=1, schedulerName="none"))

    kubectl(cluster, "cordon", "gpu1")
    assert "kubectl" in explain("cordoned", pod("cordoned", "true", node="gpu1", gpus=1), {"gpu1"})
    kubectl(cluster, "uncordon", "gpu1")
    for key, cause in (
        (f"{STARTUP_TAINT}=new", "not-validated"),
        (f"{GPU}=present", "gpu-taint"),
        ("example.com/team=a", "taint"),
    ):
        kubectl(cluster, "taint", "node", "gpu1", f"{key}:NoSchedule")
        evidence = explain(cause, pod("tainted", "true", node="gpu1", gpus=1), {"gpu1"})
        assert key in evidence
        kubectl(cluster, "taint", "node", "gpu1", f"{key.partition('=')[0]}-")

    holding = pod("holding", "sleep 1000", node="gpu1", gpus=7)
    create(cluster, holding)
    wait_phase(cluster, "holding", "Running")
    evidence = explain("in-use", pod("waits", "true", node="gpu1", gpus=2), {"gpu1"})
    assert "default/holding (7)" in evidence
    delete(cluster, "holding")
    explain("other-resource-short", hungry(pod("hungry", "true", gpus=1)), both)


def hungry(item: dict[str, Any]) -> dict[str, Any]:
    item["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "5k"}
    return item


def test_a_pod_that_could_not_be_created_or_started_is_explained(cluster: Lab) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {f"requests.{GPU}": "1"}},
    }
    create(cluster, quota)
    create(cluster, job("refused", gpus=2))
    found = causes(cluster, "refused", "quota-exceeded")["quota-exceeded"]
    assert "exceeded quota: gpus" in found["evidence"]
    kubectl(cluster, "delete", "job", "refused")
    kubectl(cluster, "delete", "resourcequota", "gpus")

    create(cluster, job("classless", gpus=1, runtimeClassName="none"))
    causes(cluster, "classless", "runtime-class-missing")
    kubectl(cluster, "delete", "job", "classless")

    handler = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "odd"},
        "handler": "odd",
    }
    create(cluster, handler)
    create(cluster, pod("handler", "true", node="gpu2", gpus=1, runtimeClassName="odd"))
    found = causes(cluster, "handler", "handler-missing")["handler-missing"]
    assert found["nodes"] == ["gpu2"]
    delete(cluster, "handler")
    kubectl(cluster, "delete", "runtimeclass", "odd")

    unknown = pod("unknown", "true", node="gpu1", gpus=1)
    unknown["spec"]["containers"][0] |= {
        "image": "gpustate.invalid/none:1",
        "imagePullPolicy": "Never",
    }
    create(cluster, unknown)
    causes(cluster, "unknown", "image")
    delete(cluster, "unknown")


def job(name: str, *, gpus: int, **spec: Any) -> dict[str, Any]:
    template = pod(name, "true", gpus=gpus, **spec)["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"spec": template}},
    }


def test_a_device_plugin_that_is_off_or_broken_is_the_cause(cluster: Lab) -> None:
    kubectl(cluster, "label", "node", "gpu1", "--overwrite", f"{DEPLOY}device-plugin=false")
    wait_for(lambda: offers(cluster, "gpu1") == 0, "gpu1 offers none")
    create(cluster, pod("offline", "true", node="gpu1", gpus=1))
    found = causes(cluster, "offline", "device-plugin-off")
    assert found["device-plugin-off"]["nodes"] == ["gpu1"]
    delete(cluster, "offline")
    kubectl(cluster, "label", "node", "gpu1", f"{DEPLOY}device-plugin-")
    apply(cluster)
    wait_for(lambda: offers(cluster, "gpu1") == 8, "gpu1 offers its GPUs")


# --- rights and removal ---------------------------------------------------------------------------

RULES = [("", "nodes", "list"), ("", "nodes", "patch"), ("", "nodes/status", "patch")]


@pytest.mark.parametrize("rule", RULES, ids="-".join)
def test_a_missing_right_is_named(cluster: Lab, rule: clusterusers.Rule) -> None:
    user = clusterusers.user(cluster, "admits")
    rules = [one for one in clusterusers.documented() if one != rule]
    if rule == ("", "nodes", "list"):
        rules = [one for one in rules if one[:2] != ("", "nodes")] + RULES[1:]
    clusterusers.grant(cluster, "admits", rules)
    kubectl(cluster, "taint", "node", "gpu1", TAINTS[0])
    missing = f'{{apiGroups: ["{rule[0]}"], resources: ["{rule[1]}"], verbs: ["{rule[2]}"]}}'

    def named() -> bool:
        remove_condition(cluster, "gpu1")
        words = ("apply", POLICY, "-l", "gpu1", "--kubeconfig", user, "--cluster-objects", "--yes")
        ran = gpustate(*words, *objectpods.settings(cluster), "-i", cluster.inventory)
        return missing in ran.out + ran.err

    wait_for(named, f"{missing} is named", 60)
    kubectl(cluster, "taint", "node", "gpu1", f"{STARTUP_TAINT}-", check=False)


def test_remove_leaves_no_label_and_no_condition(cluster: Lab) -> None:
    # The nodes are refused, and the objects are removed before that.
    words = ("--cluster-objects", "--yes", "--max-disruption", "none")
    done = run(cluster, "remove", POLICY, *words, code=5)
    assert "node/gpu2: condition GPUHealthy removed" in done.out
    for name in ("gpu1", "gpu2"):
        wait_for(lambda name=name: not condition(cluster, name), f"{name} has no condition")
        labels = get(cluster, "node", name)["metadata"]["labels"]
        left = {key: value for key, value in labels.items() if key.startswith("nvidia.com/gpu.")}
        theirs = {f"{DEPLOY}dcgm": "false", f"{DEPLOY}mig-manager": "paused-for-mig-change"}
        own = {key for key in left if key.startswith(DEPLOY) or key.endswith("present")}
        assert own == (set(theirs) if name == "gpu2" else set())
