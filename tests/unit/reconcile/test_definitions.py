"""Kinds that a cluster may lack, and custom resource definitions: skipped, waited for, kept, or left to others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakeobjects import FakeObjects

from gpustate.errors import EXIT_VALIDATION
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings, Exporter, Monitor, ownership
from gpustate.manifests.build import build
from gpustate.plan.objects import lines, pending
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data, exit_codes
from gpustate.reconcile.planning import Action, Target, is_kept, is_ours, plan

MONITORED = ClusterSettings(dcgm_exporter=Exporter(monitor=Monitor(enabled=True)))
DISCOVERY = ClusterSettings(node_feature_discovery={}, module_rules=True)
DEFINITION = ("CustomResourceDefinition", ownership.NFD_DEFINITION)
RULES = ("CustomResourceDefinition", "nodefeaturerules.nfd.k8s-sigs.io")
ABSENT = Target((), "gpu-operator", absent=True)
FEATURE_RULE = {
    "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
    "kind": "NodeFeatureRule",
    "metadata": {"name": "theirs"},
    "spec": {"rules": []},
}


def target(settings: ClusterSettings) -> Target:
    return Target(build(settings, images()), settings.namespace)


def apply(objects: FakeObjects, wanted: Target) -> Applied:
    clock = iter(range(1000))
    applier = Applier(
        objects, wanted, 5, sleep=lambda seconds: None, clock=lambda: float(next(clock))
    )
    return applier.apply(plan(objects, wanted))


def page(data: dict[str, Any]) -> list[str]:
    return ["".join(piece for piece, _ in one) for one in lines(data)]


def test_objects_of_a_kind_that_the_cluster_lacks_are_skipped_with_one_line() -> None:
    objects = FakeObjects()
    done = apply(objects, target(MONITORED))
    assert not done.failures
    data = cluster_data("s", "n", done.changes, done)
    assert list(exit_codes(data)) == []
    (monitors,) = (one for one in page(data) if "servicemonitor/" in one)
    assert monitors == (
        "  ! servicemonitor/nvidia-dcgm-exporter  skipped: the cluster has no ServiceMonitor: install "
        "prometheus-operator, or set dcgmExporter.serviceMonitor.enabled to false"
    )
    assert ("ServiceMonitor", "nvidia-dcgm-exporter") not in objects.items
    assert pending(cluster_data("s", "n", plan(objects, target(MONITORED)))) == 0
    objects.kinds = {"ServiceMonitor", "PrometheusRule"}
    assert pending(cluster_data("s", "n", plan(objects, target(MONITORED)))) == 2
    assert not apply(objects, target(MONITORED)).failures
    assert ("PrometheusRule", "nvidia-dcgm-exporter") in objects.items


def test_an_object_waits_for_the_definition_that_is_applied_before_it() -> None:
    objects = FakeObjects()
    changes = {one.item["kind"]: one.action for one in plan(objects, target(DISCOVERY))}
    assert changes["NodeFeatureRule"] is Action.CREATE
    assert not [one for one in objects.requests if one.startswith("dry run of NodeFeatureRule")]
    assert not apply(objects, target(DISCOVERY)).failures
    objects.requests.clear()
    assert not apply(objects, target(DISCOVERY)).failures
    assert not objects.writes


def test_a_definition_that_is_not_served_at_once_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = FakeObjects()
    served, refusals = objects._check_served, iter([True, True])

    def late(kind: Any) -> None:
        if kind.name == "NodeFeatureRule" and RULES in objects.items and next(refusals, False):
            objects.items.pop(RULES)  # as if it were not there yet
            try:
                served(kind)
            finally:
                objects.items[RULES] = kept

    apply(objects, target(DISCOVERY))
    kept = objects.items[RULES]
    objects.items.pop(("NodeFeatureRule", "nvidia-kernel-modules"))
    monkeypatch.setattr(objects, "_check_served", late)
    changes = [one for one in plan(objects, target(DISCOVERY)) if one.action is Action.CREATE]
    refusals = iter([True, True])
    applier = Applier(objects, target(DISCOVERY), 5, sleep=lambda seconds: None)
    assert not applier.apply(changes).failures
    assert ("NodeFeatureRule", "nvidia-kernel-modules") in objects.items


def test_node_feature_discovery_of_others_is_used_and_nothing_of_it_is_touched() -> None:
    objects = FakeObjects()
    theirs = next(one for one in build(DISCOVERY, images()) if one["kind"] == DEFINITION[0])
    for name in (DEFINITION[1], RULES[1]):
        meta = {"name": name}
        objects.add({**theirs, "metadata": meta, "spec": {**theirs["spec"], "names": names(name)}})
    done = apply(objects, target(DISCOVERY))
    assert not done.failures
    assert not [one for one in objects.items if one[0] in ("Deployment", "NetworkPolicy")]
    assert ("NodeFeatureRule", "nvidia-kernel-modules") in objects.items
    (line,) = (one for one in page(cluster_data("s", "n", done.changes, done)) if "  ! " in one)
    assert line.endswith("skipped: node feature discovery is in the cluster already, and is used")
    assert not apply(objects, ABSENT).failures
    assert DEFINITION in objects.items


def names(definition: str) -> dict[str, str]:
    kind = {"nodefeaturerules": "NodeFeatureRule", "nodefeatures": "NodeFeature"}
    plural = definition.partition(".")[0]
    return {"kind": kind[plural], "plural": plural}


def test_removal_deletes_definitions_unless_others_have_objects_of_them() -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add(FEATURE_RULE)
    planned = plan(objects, ABSENT)
    done = apply(objects, ABSENT)
    assert not done.failures
    for changes in (planned, done.changes):
        (kept,) = (one for one in changes if one.action is Action.RELEASE)
        assert kept.reason.startswith("kept, because others use it: nodefeaturerule/theirs")
    assert not done.notes
    assert set(objects.items) == {RULES, ("NodeFeatureRule", "theirs")}
    assert "gpustate.io/owner" not in objects.items[RULES]["metadata"].get("labels", {})
    assert objects.items[RULES]["spec"]["names"]["plural"] == "nodefeaturerules"
    objects.requests.clear()
    assert not apply(objects, ABSENT).failures
    assert not objects.writes, "it is not gpustate's any more"


def test_a_deployment_is_waited_for() -> None:
    objects = FakeObjects()
    objects.status_of = {"Deployment": {"updatedReplicas": 1, "availableReplicas": 0}}
    done = apply(objects, target(DISCOVERY))
    assert sorted(one.partition(":")[0] for one in done.unready) == [
        "deployment/gpu-operator-node-feature-discovery-gc",
        "deployment/gpu-operator-node-feature-discovery-master",
    ]
    assert "0 of 1 pods are available" in done.unready[0]
    data = cluster_data("s", "n", done.changes, done)
    assert list(exit_codes(data)) == [EXIT_VALIDATION]


GFD = "gpu-feature-discovery"
FEATURES = {
    "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
    "kind": "NodeFeature",
    "metadata": {"name": "nvidia-features-for-gpu1", "namespace": "gpu-operator"},
    "spec": {"labels": {"nvidia.com/gpu.count": "8"}},
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "gpu1",
        "labels": {
            "nvidia.com/gpu.count": "8",
            "feature.node.kubernetes.io/pci-10de.present": "true",
            "example.com/theirs": "x",
        },
        "annotations": {
            "nfd.node.kubernetes.io/feature-labels": "nvidia.com/gpu.count,pci-10de.present",
            "nfd.node.kubernetes.io/feature-annotations": "note",
            "nfd.node.kubernetes.io/extended-resources": "vendor.example/dongle",
            "nfd.node.kubernetes.io/taints": "vendor.example/slow=yes:NoSchedule",
            "feature.node.kubernetes.io/note": "x",
            "example.com/theirs": "x",
        },
    },
    "spec": {
        "taints": [
            {"key": "vendor.example/slow", "value": "yes", "effect": "NoSchedule"},
            {"key": "theirs", "effect": "NoSchedule"},
        ]
    },
    "status": {"capacity": {"cpu": "4", "vendor.example/dongle": "1"}, "allocatable": {"cpu": "4"}},
}


def left_on(objects: FakeObjects) -> dict[str, Any]:
    """What is on the Node of what is read here."""
    node = objects.items["Node", "gpu1"]
    return {
        "labels": sorted(node["metadata"]["labels"]),
        "annotations": sorted(node["metadata"]["annotations"]),
        "taints": [one["key"] for one in node["spec"]["taints"]],
        "capacity": sorted(node["status"]["capacity"]),
    }


PRUNED = {
    "labels": ["example.com/theirs"],
    "annotations": ["example.com/theirs"],
    "taints": ["theirs"],
    "capacity": ["cpu"],
}


def test_removal_takes_what_our_node_feature_discovery_wrote_on_nodes_and_its_definitions() -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add(FEATURES, GFD)
    objects.add(NODE, "nfd-master")
    done = apply(objects, ABSENT)
    assert not done.failures
    assert done.notes == ["node/gpu1: 2 labels of node feature discovery removed"]
    assert left_on(objects) == PRUNED
    assert DEFINITION not in objects.items
    written = objects.writes.index("patch Node gpu1")
    roles = [at for at, one in enumerate(objects.writes) if one.startswith("delete ClusterRole")]
    assert max(roles) < written, "its master may not write labels again"


def test_a_removal_takes_what_a_named_instance_wrote_on_nodes() -> None:
    """An instance puts its name before the prefix of its annotations, except that of taints."""
    settings = replace(DISCOVERY, node_feature_discovery={"master": {"instance": "blue"}})
    objects = FakeObjects()
    apply(objects, target(settings))
    written = NODE["metadata"]["annotations"]
    notes = {
        f"blue.{name}" if name.startswith("nfd.") and not name.endswith("/taints") else name: value
        for name, value in written.items()
    }
    objects.add({**NODE, "metadata": {**NODE["metadata"], "annotations": notes}}, "nfd-master")
    assert not apply(objects, ABSENT).failures
    assert left_on(objects) == PRUNED


def test_renamed_objects_of_node_feature_discovery_replace_the_former_ones() -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    before = set(objects.items)
    values = {"fullnameOverride": "nfd", "master": {"instance": "blue"}}
    renamed = target(replace(DISCOVERY, node_feature_discovery=values))
    assert not apply(objects, renamed).failures
    names = {(one["kind"], one["metadata"]["name"]) for one in renamed.items}
    assert set(objects.items) & (before | names) == names | {("Namespace", "gpu-operator")}
    args = objects.items["Deployment", "nfd-master"]["spec"]["template"]["spec"]["containers"][0]
    assert "-instance=blue" in args["args"]


def test_a_removal_that_was_interrupted_prunes_nodes_when_it_goes_on() -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add(NODE, "nfd-master")
    objects.denied = {"patch Node gpu1"}
    assert apply(objects, ABSENT).failures
    objects.denied = set()
    assert not apply(objects, ABSENT).failures
    assert left_on(objects) == PRUNED


@pytest.mark.parametrize(
    ("namespace", "manager"), [("elsewhere", GFD), ("gpu-operator", "kubectl-create")]
)
def test_features_that_others_publish_keep_the_definition(namespace: str, manager: str) -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    meta = {**FEATURES["metadata"], "namespace": namespace}
    objects.add({**FEATURES, "metadata": meta}, manager)
    done = apply(objects, ABSENT)
    assert any("nodefeature/nvidia-features-for-gpu1" in one.reason for one in done.changes)
    assert DEFINITION in objects.items


def kept_for_others() -> FakeObjects:
    """A cluster after a removal that kept the definitions, because others have objects of them."""
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    meta = {**FEATURES["metadata"], "namespace": "elsewhere"}
    objects.add({**FEATURES, "metadata": meta}, GFD)
    objects.add(FEATURE_RULE)
    done = apply(objects, ABSENT)
    assert sum(one.reason.startswith("kept") for one in done.changes) == 2
    assert {DEFINITION, RULES} <= set(objects.items)
    return objects


def test_a_definition_that_was_kept_for_others_is_taken_back_by_an_installation() -> None:
    objects = kept_for_others()
    (changed, rules) = (
        one
        for one in plan(objects, target(DISCOVERY))
        if ("CustomResourceDefinition", one.item["metadata"]["name"]) in (DEFINITION, RULES)
    )
    assert {changed.action, rules.action} == {Action.UPDATE}
    assert all(one.field.startswith("metadata.labels") for one in changed.differences)
    assert not apply(objects, target(DISCOVERY)).failures
    assert ("DaemonSet", "gpu-operator-node-feature-discovery-worker") in objects.items
    objects.requests.clear()
    assert not apply(objects, target(DISCOVERY)).failures
    assert not objects.writes
    del (
        objects.items["NodeFeatureRule", "theirs"],
        objects.items["NodeFeature", FEATURES["metadata"]["name"]],
    )
    assert not apply(objects, ABSENT).failures
    assert not [one for one in objects.items if one[0] == DEFINITION[0]]


def test_a_kept_definition_that_another_discovery_uses_or_another_manager_applies_is_theirs() -> (
    None
):
    objects = kept_for_others()
    meta = {"name": "gpu1", "namespace": "elsewhere"}
    objects.add({**FEATURES, "metadata": meta}, "nfd-worker")
    changes = {one.item["kind"]: one.action for one in plan(objects, target(DISCOVERY))}
    assert changes["CustomResourceDefinition"] is changes["Deployment"] is Action.SKIPPED

    objects = kept_for_others()
    objects.edit(DEFINITION, ("spec", "names", "singular"), "nodefeature", "helm")
    changes = {one.item["kind"]: one.action for one in plan(objects, target(DISCOVERY))}
    assert changes["CustomResourceDefinition"] is changes["Deployment"] is Action.SKIPPED


def test_a_definition_whose_labels_another_manager_applies_too_is_given_away() -> None:
    """Labels that both have applied stay when gpustate gives its own up."""
    fields: dict[str, Any] = {"f:spec": {}, "f:metadata": {"f:labels": {"f:gpustate.io/owner": {}}}}
    theirs = {"manager": "argocd-controller", "operation": "Apply", "fieldsV1": fields}
    ours = {"manager": ownership.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    meta: dict[str, Any] = {"name": "x", "labels": dict(ownership.OWNER)}
    item = {"kind": DEFINITION[0], "metadata": {**meta, "managedFields": [ours, theirs]}}
    assert is_ours(item)
    given_up = {**ours, "fieldsV1": {"f:spec": {}}}
    item = {"kind": DEFINITION[0], "metadata": {**meta, "managedFields": [given_up, theirs]}}
    assert not is_ours(item)
    assert not is_kept(item)


def test_labels_stay_where_another_discovery_uses_our_definitions() -> None:
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    meta = {"name": "gpu1", "namespace": "elsewhere"}
    objects.add({**FEATURES, "metadata": meta}, "nfd-worker")
    objects.add(NODE, "nfd-master")
    before = left_on(objects)
    done = apply(objects, ABSENT)
    assert not done.failures
    assert left_on(objects) == before
    assert (
        "labels of node feature discovery stay on Nodes: another one runs in namespace elsewhere"
        in done.notes
    )


def test_an_apply_without_node_feature_discovery_removes_its_labels_and_keeps_what_is_used() -> (
    None
):
    objects = FakeObjects()
    apply(objects, target(DISCOVERY))
    objects.add(FEATURES, GFD)
    objects.add(NODE, "nfd-master")
    without = target(ClusterSettings(module_rules=True))
    planned = [one for one in plan(objects, without) if "from the Nodes" in one.reason]
    assert len(planned) == 1
    assert not apply(objects, without).failures
    assert left_on(objects) == PRUNED
    assert {DEFINITION, RULES} <= set(objects.items), "GPU feature discovery and a rule need them"
    objects.requests.clear()
    assert not apply(objects, without).failures
    assert not objects.writes
    assert not apply(objects, target(DISCOVERY)).failures
    assert ("DaemonSet", "gpu-operator-node-feature-discovery-worker") in objects.items
    assert not apply(objects, ABSENT).failures
    assert not [one for one in objects.items if one[0] == "CustomResourceDefinition"]


def test_labels_of_node_feature_discovery_of_others_stay() -> None:
    objects = FakeObjects()
    theirs = next(one for one in build(DISCOVERY, images()) if one["kind"] == DEFINITION[0])
    for name in (DEFINITION[1], RULES[1]):
        meta = {"name": name}
        objects.add({**theirs, "metadata": meta, "spec": {**theirs["spec"], "names": names(name)}})
    objects.add(NODE, "nfd-master")
    before = left_on(objects)
    assert not apply(objects, target(DISCOVERY)).failures
    assert not apply(objects, ABSENT).failures
    assert left_on(objects) == before
