"""Plan, apply, prune and verify objects: decisions that need no real API server."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakeobjects import FakeObjects

from gpustate.errors import EXIT_ERROR, EXIT_REFUSED, EXIT_VALIDATION, ClusterError
from gpustate.manifests import ClusterSettings, Component, PluginConfig
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.kinds import KINDS
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import DraDriver, Exporter
from gpustate.plan.objects import lines, pending
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data, exit_codes
from gpustate.reconcile.planning import Action, Change, Target, for_new_pods, plan, staged

IMAGES = {"devicePlugin": "p:v1", "gfd": "g:v1"}
SETTINGS = ClusterSettings(
    privileged_namespace=True, config=PluginConfig("configs", "a", {"a": "version: v1"})
)
PLUGIN = ("DaemonSet", "nvidia-device-plugin-daemonset")
ABSENT = Target((), "gpu-operator", absent=True)
ROLLED_OUT = {
    "observedGeneration": 1,
    "desiredNumberScheduled": 2,
    "updatedNumberScheduled": 2,
    "numberAvailable": 2,
}


def target(settings: ClusterSettings = SETTINGS, **more: Any) -> Target:
    return Target(build(settings, IMAGES), settings.namespace, **more)


def apply(objects: FakeObjects, wanted: Target) -> Applied:
    clock = iter(range(1000))
    applier = Applier(
        objects, wanted, 5, sleep=lambda seconds: None, clock=lambda: float(next(clock))
    )
    return applier.apply(plan(objects, wanted))


def kept(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Objects that are kept, and why."""
    found = (one for one in changes if one.action is Action.RELEASE)
    return [(one.item["metadata"]["name"], one.reason) for one in found]


def actions(objects: FakeObjects, wanted: Target) -> dict[str, Action]:
    return {
        f"{one.item['kind']}/{one.item['metadata']['name']}": one.action
        for one in plan(objects, wanted)
    }


@pytest.fixture
def objects() -> FakeObjects:
    """A cluster in which everything was applied."""
    found = FakeObjects()
    done = apply(found, target())
    assert not done.failures
    found.requests.clear()
    return found


def test_a_plan_reads_one_list_per_kind_and_writes_nothing(objects: FakeObjects) -> None:
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}
    lists = [one for one in objects.requests if one.startswith("list")]
    assert lists == [f"list {kind.plural}" for kind in KINDS]
    assert not objects.writes


def test_a_second_apply_writes_nothing(objects: FakeObjects) -> None:
    assert not apply(objects, target()).failures
    assert not objects.writes


def test_objects_are_applied_in_order_and_deleted_in_the_opposite_order() -> None:
    objects = FakeObjects()
    apply(objects, target())
    names = [f"apply {one['kind']} {one['metadata']['name']}" for one in target().items]
    assert objects.writes == names
    objects.requests.clear()
    assert not apply(objects, ABSENT).failures
    assert objects.writes == [one.replace("apply", "delete") for one in reversed(names)]
    assert not objects.items


def test_fields_of_others_are_no_difference(objects: FakeObjects) -> None:
    objects.edit(PLUGIN, ("metadata", "labels", "example.com/theirs"), "x")
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}
    apply(objects, target(replace(SETTINGS, mig_strategy="single")))
    assert objects.items[PLUGIN]["metadata"]["labels"]["example.com/theirs"] == "x"


def test_a_changed_field_of_ours_is_a_conflict_until_it_is_forced(objects: FakeObjects) -> None:
    objects.edit(PLUGIN, ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable"), 7)
    (change,) = (one for one in plan(objects, target()) if one.action is Action.REFUSED)
    assert [(one.field, one.before, one.after) for one in change.differences] == [
        ("spec.updateStrategy.rollingUpdate.maxUnavailable", 7, 1)
    ]
    assert 'conflict with "kubectl-edit"' in change.reason
    assert "--force-conflicts" in change.reason
    refused = apply(objects, target())
    assert not objects.writes
    data = cluster_data("s", "n", refused.changes, refused)
    assert list(exit_codes(data)) == [EXIT_REFUSED]
    forced = apply(objects, target(force=True))
    assert not forced.failures
    assert [one.reason for one in forced.changes if one.reason] == ["taken over from kubectl-edit"]
    assert objects.writes == [f"apply {PLUGIN[0]} {PLUGIN[1]}"]
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}


def test_a_field_that_gpustate_would_only_own_is_no_difference(objects: FakeObjects) -> None:
    owners = objects.owners[PLUGIN]
    objects.owners[PLUGIN] = {path: one for path, one in owners.items() if "spec" not in path}
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}
    assert not apply(objects, target()).failures
    assert not objects.writes


def test_one_refused_object_keeps_all_from_being_written() -> None:
    objects = FakeObjects()
    runtime_class = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "other",
    }
    objects.add(runtime_class)
    done = apply(objects, target())
    assert not objects.writes
    (refused,) = (one for one in done.changes if one.action is Action.REFUSED)
    assert refused.reason.startswith("it exists, is not gpustate's (managed by kubectl-create)")
    assert [one.field for one in refused.differences] == ["handler"]
    assert done.refusals == [
        f"nothing is written: 1 object is refused; {len(target().items) - 1} more would have been written"
    ]
    text = [
        "".join(piece for piece, _ in one) for one in lines(cluster_data("s", "n", done.changes))
    ]
    assert [one for one in text if one.startswith("  +")] == []


def test_an_equal_object_of_others_is_left_alone_and_survives() -> None:
    objects = FakeObjects()
    objects.add(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )
    assert actions(objects, target())["RuntimeClass/nvidia"] is Action.FOREIGN
    assert not apply(objects, target()).failures
    assert not apply(objects, ABSENT).failures
    assert list(objects.items) == [("RuntimeClass", "nvidia")]
    assert "gpustate" not in set(objects.owners["RuntimeClass", "nvidia"].values())


def test_an_object_of_the_operator_is_refused(objects: FakeObjects) -> None:
    owner = {"kind": "ClusterPolicy", "name": "cluster-policy", "controller": True}
    objects.items[PLUGIN]["metadata"]["ownerReferences"] = [owner]
    (change,) = (one for one in plan(objects, target(force=True)) if one.action is Action.REFUSED)
    assert change.reason.startswith("it belongs to the GPU Operator (ClusterPolicy cluster-policy)")


def test_what_the_policy_no_longer_has_is_pruned(objects: FakeObjects) -> None:
    smaller = target(replace(SETTINGS, feature_discovery=Component(enabled=False), config=None))
    found = actions(objects, smaller)
    deleted = {name for name, action in found.items() if action is Action.DELETE}
    assert "DaemonSet/gpu-feature-discovery" in deleted
    assert "ConfigMap/configs" in deleted
    assert "DaemonSet/nvidia-device-plugin-daemonset" not in deleted
    assert not apply(objects, smaller).failures
    assert set(actions(objects, smaller).values()) == {Action.UNCHANGED}


DRA = ClusterSettings(
    device_plugin=Component(enabled=False),
    feature_discovery=Component(enabled=False),
    dra_driver=DraDriver(image="d:v1", compute_domains=False),
)


def user(name: str, node: str = "n1", phase: str = "Running", **limits: str) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return {
        **{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml"}},
        **{"spec": {"nodeName": node, "containers": containers}, "status": {"phase": phase}},
    }


def claim(name: str, **result: Any) -> dict[str, Any]:
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", **result}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": "train"}]}
    meta = {"name": name, "namespace": "ml"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "status": status}  # fmt: skip


def refusal(objects: FakeObjects, wanted: Target) -> str:
    words = [one.reason for one in plan(objects, wanted) if one.action is Action.REFUSED]
    assert len(words) < 2
    return words[0] if words else ""


def test_the_device_plugin_stays_while_pods_use_its_gpus_and_dra_comes(
    objects: FakeObjects,
) -> None:
    objects.kinds |= {"DeviceClass", "ResourceClaimTemplate", "ResourceClaim"}
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    for one in (
        user("dp", **{"nvidia.com/gpu": "2"}),
        user("mig", **{"nvidia.com/mig-1g.10gb": "1"}),
        user("done", phase="Succeeded", **{"nvidia.com/gpu": "2"}),
        user("waits", "", **{"nvidia.com/gpu": "2"}),
        user("cpu", cpu="2"),
    ):
        objects.add(one)
    assert refusal(objects, target(DRA)) == (
        "the DRA driver would offer GPUs as free that are in use by pod ml/dp on n1, pod ml/mig on n1; delete these pods "
        "first, or drain their Nodes: kubectl drain NODE --ignore-daemonsets"
    )
    before = list(objects.writes)
    assert apply(objects, target(DRA)).failures == []
    assert objects.writes == before
    for name in ("dp", "mig"):
        del objects.items["Pod", name]
    assert refusal(objects, target(DRA)) == ""


def test_the_dra_driver_stays_while_its_claims_are_allocated_and_the_device_plugin_comes() -> None:
    objects = FakeObjects()
    objects.kinds |= {"DeviceClass", "ResourceClaimTemplate", "ResourceClaim"}
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    assert not apply(objects, target(DRA)).failures
    objects.add(claim("monitors", adminAccess=True))
    objects.add(claim("other", driver="nic.example.com"))
    assert refusal(objects, target()) == ""
    objects.add(claim("two"))
    assert "the device plugin would offer GPUs as free that are in use by resourceclaim ml/two of pod train" in refusal(objects, target())  # fmt: skip
    assert "list pods" not in objects.requests


@pytest.fixture
def dra() -> FakeObjects:
    """A cluster with the DRA driver and its monitoring."""
    found = FakeObjects()
    found.kinds |= {"DeviceClass", "ResourceClaimTemplate", "ResourceClaim"}
    found.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    assert not apply(found, target(replace(DRA, dcgm_exporter=Exporter(image="e:v1")))).failures
    found.requests.clear()
    return found


def test_the_dra_driver_is_not_removed_while_pods_hold_its_claims(dra: FakeObjects) -> None:
    dra.add(claim("monitors", adminAccess=True))
    assert refusal(dra, ABSENT) == ""
    dra.add(claim("two"))
    words = (
        "only the DRA driver can release resourceclaim ml/two of pod train; delete these pods first"
    )
    assert words in refusal(dra, ABSENT)
    nothing = replace(SETTINGS, device_plugin=Component(enabled=False))
    assert words in refusal(dra, target(nothing)), "disabled, without the device plugin"
    assert apply(dra, ABSENT).refusals
    assert not dra.writes
    assert refusal(dra, replace(ABSENT, drained=True)) == ""


def test_the_dra_driver_goes_after_the_last_claim_is_released(dra: FakeObjects) -> None:
    wanted = replace(ABSENT, drained=True)
    dra.add(claim("of-exporter", adminAccess=True))
    dra.add(claim("two"))
    removed: list[str] = []

    def sleep(seconds: float) -> None:
        removed.extend(one for one in dra.writes if one.startswith("delete DaemonSet"))
        for name in ("of-exporter", "two"):
            dra.items.pop(("ResourceClaim", name), None)

    said: list[str] = []
    applier = Applier(dra, wanted, 5, said.append, sleep=sleep, clock=lambda: 0.0)
    assert not applier.apply(plan(dra, wanted)).failures
    assert removed == ["delete DaemonSet nvidia-dcgm-exporter-dra"], "its pods hold claims as well"
    assert "waiting for the release of resourceclaim ml/of-exporter of pod train, resourceclaim ml/two of pod train" in said  # fmt: skip
    assert ("DaemonSet", "nvidia-dra-driver-kubelet-plugin") not in dra.items


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("0", "2", target(replace(SETTINGS, mig_strategy="mixed"))),
        ("16", "8", target(replace(SETTINGS, mig_strategy="mixed"))),
        ("2", "0", target(replace(SETTINGS, device_plugin=Component(enabled=False)))),
        ("0", "2", replace(target(SETTINGS), labels={"gpu1": {f"{DEPLOY}device-plugin": "true"}})),
    ],
    ids=["started", "restarted", "deleted", "labelled again"],
)
def test_kubelets_have_reported_what_the_plugin_offers_when_the_run_ends(
    objects: FakeObjects, before: str, after: str, wanted: Target
) -> None:
    """Who changes the driver next would wait for GPUs that nothing offers any more."""
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu1"}}
    objects.add({**node, "status": {"allocatable": {"nvidia.com/gpu": before}}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    labels = objects.items[PLUGIN]["spec"]["selector"]["matchLabels"]
    meta = {"name": "plugin-x", "namespace": "gpu-operator", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "gpu1"}}
    objects.add({**pod, "status": ready})
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) > 3:
            objects.items["Node", "gpu1"]["status"]["allocatable"]["nvidia.com/gpu"] = after

    applier = Applier(objects, wanted, 60, sleep=sleep, clock=lambda: 0.0)
    assert not applier.apply(plan(objects, wanted)).failures
    assert len(waited) == 4
    if after == "8":  # as before: only a later report can be of the plugin that started
        now = itertools.count()
        same = target(replace(SETTINGS, mig_strategy="single"))
        applier = Applier(objects, same, 60, sleep=waited.append, clock=lambda: float(next(now)))
        assert not applier.apply(plan(objects, same)).failures
        assert 8 < len(waited) < 16


def test_the_dra_driver_stays_with_a_claim_that_is_not_released(dra: FakeObjects) -> None:
    dra.add(claim("two"))
    done = apply(dra, replace(ABSENT, drained=True))
    assert done.failures == [
        "the DRA driver stays, which alone can release resourceclaim ml/two of pod train; delete these pods"
    ]
    assert ("DaemonSet", "nvidia-dra-driver-kubelet-plugin") in dra.items
    assert "run the same command again to continue" in done.notes[-1]


def test_programs_of_compute_domains_need_their_definitions() -> None:
    objects = FakeObjects()
    objects.kinds |= {"DeviceClass", "ResourceClaimTemplate"}
    domains = target(replace(DRA, dra_driver=DraDriver(image="d:v1")))
    programs = {
        "DaemonSet/nvidia-dra-driver-kubelet-plugin",
        "Deployment/nvidia-dra-driver-controller",
    }
    refused = {
        name for name, action in actions(objects, domains).items() if action is Action.REFUSED
    }
    assert refused == programs
    # Of an older chart, whose upgrade adds no definition.
    objects.kinds.add("ComputeDomain")
    assert Action.REFUSED in actions(objects, domains).values()
    objects.kinds.add("ComputeDomainClique")
    assert Action.REFUSED not in actions(objects, domains).values()


def test_without_a_switch_no_pod_is_listed(objects: FakeObjects) -> None:
    objects.requests.clear()
    off = target(replace(SETTINGS, device_plugin=Component(enabled=False)))
    assert actions(objects, off)["DaemonSet/nvidia-device-plugin-daemonset"] is Action.DELETE
    plan(objects, ABSENT)
    assert not {"list pods", "list resourceclaims"} & set(objects.requests)


def test_a_target_that_does_not_prune_keeps_it(objects: FakeObjects) -> None:
    wanted = target(ClusterSettings(feature_discovery=Component(enabled=False)), prune=False)
    before = set(objects.items)
    assert Action.DELETE not in actions(objects, wanted).values()
    assert apply(objects, wanted).failures == []
    assert set(objects.items) == before


def test_copied_labels_make_no_object_ours(objects: FakeObjects) -> None:
    labels = {"app.kubernetes.io/managed-by": "gpustate", "gpustate.io/owner": "cluster-objects"}
    copy = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "copy", "namespace": "gpu-operator", "labels": labels},
    }
    objects.add(copy)
    assert "ServiceAccount/copy" not in actions(objects, target())


def test_a_namespace_with_objects_of_others_is_kept(objects: FakeObjects) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "namespace": "gpu-operator"},
        "data": {"a": "b"},
    }
    objects.add(theirs)
    expected = [("gpu-operator", "kept, because others use it: configmap/theirs")]
    assert kept(plan(objects, ABSENT)) == expected
    done = apply(objects, ABSENT)
    assert not done.failures
    assert kept(done.changes) == expected
    assert not done.notes
    assert set(objects.items) == {("Namespace", "gpu-operator"), ("ConfigMap", "theirs")}
    assert not objects.items["Namespace", "gpu-operator"]["metadata"].get("labels")


@pytest.mark.parametrize(
    "kind",
    [
        "example.com/v1 Widget",
        "networking.k8s.io/v1 Ingress",
        "v1 ResourceQuota",
        "v1 LimitRange",
        "coordination.k8s.io/v1 Lease",
        "autoscaling/v2 HorizontalPodAutoscaler",
    ],
)
@pytest.mark.parametrize("wanted", [ABSENT, target(replace(SETTINGS, namespace="other"))])
def test_a_namespace_is_kept_for_an_object_of_any_kind(
    objects: FakeObjects, kind: str, wanted: Target
) -> None:
    version, _, name = kind.partition(" ")
    meta = {"name": "theirs", "namespace": "gpu-operator"}
    objects.add({"apiVersion": version, "kind": name, "metadata": meta})
    expected = [("gpu-operator", f"kept, because others use it: {name.lower()}/theirs")]
    assert kept(plan(objects, wanted)) == expected
    assert kept(apply(objects, wanted).changes) == expected
    left = [
        which
        for which, one in objects.items.items()
        if one["metadata"].get("namespace") == "gpu-operator"
    ]
    assert left == [(name, "theirs")]
    assert ("Namespace", "gpu-operator") in objects.items


def test_a_namespace_stays_as_planned_and_is_kept_for_what_came_later(objects: FakeObjects) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "namespace": "gpu-operator"},
    }
    empty = plan(objects, ABSENT)
    assert not kept(empty)
    objects.add(theirs)
    full = plan(objects, ABSENT)
    copied = copy.deepcopy(objects)
    done = Applier(objects, ABSENT, 5).apply(empty)
    assert kept(done.changes) == kept(full)
    copied.delete(theirs)
    done = Applier(copied, ABSENT, 5).apply(full)
    assert kept(done.changes) == kept(full)
    assert list(copied.items) == [("Namespace", "gpu-operator")]


def test_a_namespace_whose_content_cannot_be_listed_is_kept(objects: FakeObjects) -> None:
    objects.unlisted = ["widgets.example.com"]
    done = apply(objects, ABSENT)
    assert not done.failures
    ((_, reason),) = kept(done.changes)
    assert reason == (
        "kept, because these cannot be listed there: widgets.example.com; "
        "if nobody needs it, kubectl delete namespace gpu-operator"
    )
    assert list(objects.items) == [("Namespace", "gpu-operator")]


def test_what_the_cluster_and_our_programs_write_keeps_no_namespace(objects: FakeObjects) -> None:
    for kind, name in (
        ("ConfigMap", "kube-root-ca.crt"),
        ("ServiceAccount", "default"),
        ("Lease", "nfd-master.nfd.kubernetes.io"),
        ("Lease", "nvidia-dra-driver-controller"),
    ):
        meta = {"name": name, "namespace": "gpu-operator"}
        objects.add({"apiVersion": "v1", "kind": kind, "metadata": meta})
    owners = [{"kind": "DaemonSet", "name": "x", "uid": "1", "controller": True}]
    objects.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x-1", "namespace": "gpu-operator", "ownerReferences": owners},
        }
    )
    done = apply(objects, ABSENT)
    assert not kept(done.changes)
    assert ("Namespace", "gpu-operator") not in objects.items


def test_a_foreign_namespace_gets_pod_security_labels_and_loses_only_these() -> None:
    objects = FakeObjects()
    objects.add(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "gpu-operator", "labels": {"team": "x"}},
        }
    )
    assert not apply(objects, target()).failures
    labels = objects.items["Namespace", "gpu-operator"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "gpustate.io/owner" not in labels
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}
    assert not apply(objects, ABSENT).failures
    assert objects.items["Namespace", "gpu-operator"]["metadata"]["labels"] == {"team": "x"}


@pytest.mark.parametrize("labels", [{}, {"pod-security.kubernetes.io/enforce": "privileged"}])
def test_an_object_waits_for_a_label_that_the_run_adds_to_its_namespace(
    monkeypatch: pytest.MonkeyPatch, labels: dict[str, str]
) -> None:
    objects = FakeObjects()
    meta = {"name": "gpu-operator", "labels": labels}
    objects.add({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    plain, needed = objects.apply, "pod-security.kubernetes.io/audit"

    def judged(item: dict[str, Any], **options: bool) -> dict[str, Any]:
        namespace = objects.items["Namespace", "gpu-operator"]
        if item["kind"] == "ConfigMap" and needed not in namespace["metadata"].get("labels", {}):
            raise ClusterError(f"forbidden: it requires the `{needed}` label on the namespace")
        return plain(item, **options)

    monkeypatch.setattr(objects, "apply", judged)
    done = apply(objects, target())
    assert not done.failures
    assert not [one for one in done.changes if one.action is Action.REFUSED]
    assert ("ConfigMap", "configs") in objects.items
    del objects.items["ConfigMap", "configs"]
    needed = "not/of.ours"
    assert actions(objects, target())["ConfigMap/configs"] is Action.REFUSED


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def test_nodes_are_labelled_and_values_of_others_are_kept(objects: FakeObjects) -> None:
    deploy = "nvidia.com/gpu.deploy.device-plugin"
    for one in (node("gpu1"), node("gpu2", **{deploy: "false"}), node("other")):
        objects.add(one)
    wanted = target(labels=dict.fromkeys(("gpu1", "gpu2", "gone"), node_labels(SETTINGS)))
    assert not apply(objects, wanted).failures
    labels = {
        name: objects.items["Node", name]["metadata"]["labels"]
        for name in ("gpu1", "gpu2", "other")
    }
    assert labels["gpu1"] == node_labels(SETTINGS)
    assert labels["gpu2"] == {**node_labels(SETTINGS), deploy: "false"}
    assert not labels["other"]
    assert ("Node", "gone") not in objects.items
    bare = target(labels={"gpu1": {"nvidia.com/gpu.present": "true"}, "other": {}})
    assert not apply(objects, bare).failures
    assert objects.items["Node", "gpu1"]["metadata"]["labels"] == bare.labels["gpu1"]
    assert not any("other" in one for one in objects.writes)
    assert not apply(objects, replace(bare, labels={"gpu1": {}})).failures
    assert not objects.items["Node", "gpu1"]["metadata"]["labels"], "it has no GPU any more"
    assert not apply(objects, wanted).failures
    objects.edit(("Node", "gpu1"), ("metadata", "labels", deploy), "false", "kubectl-label")
    assert set(actions(objects, wanted).values()) <= {Action.UNCHANGED, Action.UPDATE}
    assert not apply(objects, wanted).failures
    assert objects.items["Node", "gpu1"]["metadata"]["labels"][deploy] == "false"
    assert not apply(objects, ABSENT).failures
    assert objects.items["Node", "gpu1"]["metadata"]["labels"] == {deploy: "false"}
    assert objects.items["Node", "gpu2"]["metadata"]["labels"] == {deploy: "false"}


def test_a_removal_keeps_every_object_for_nodes_that_stay(objects: FakeObjects) -> None:
    for name in ("gpu1", "gpu2"):
        objects.add(node(name))
    wanted = target(labels=dict.fromkeys(("gpu1", "gpu2"), node_labels(SETTINGS)))
    assert not apply(objects, wanted).failures
    before = set(objects.items)
    removal = replace(ABSENT, kept_nodes=frozenset({"gpu2"}))
    assert set(actions(objects, removal)) == {"Node/gpu1"}
    assert not apply(objects, removal).failures
    assert set(objects.items) == before
    assert not objects.items["Node", "gpu1"]["metadata"]["labels"]
    assert objects.items["Node", "gpu2"]["metadata"]["labels"] == node_labels(SETTINGS)


def test_a_failed_request_ends_the_apply_and_is_reported(objects: FakeObjects) -> None:
    objects.denied.add(f"apply {PLUGIN[0]} {PLUGIN[1]}")
    done = apply(objects, target(replace(SETTINGS, mig_strategy="single")))
    assert done.failures == [f"apply {PLUGIN[0]} {PLUGIN[1]} is forbidden; add a rule"]
    assert list(exit_codes(cluster_data("s", "n", done.changes, done))) == [EXIT_ERROR]
    assert done.notes == ["1 of 2 objects were written; run the same command again to continue"]


@pytest.mark.parametrize("request_", ["list namespaces", "list daemonsets"])
def test_a_server_that_stops_after_the_writes_hides_none_of_them(request_: str) -> None:
    objects = FakeObjects()
    count = len(target().items)
    applier = Applier(objects, target(), 5)
    changes = plan(objects, target())
    objects.denied.add(request_)
    done = applier.apply(changes)
    assert done.failures == [f"{request_} is forbidden; add a rule"]
    assert len(done.changes) == count
    again = "run the same command again to continue"
    assert done.notes == [f"{count} of {count} objects were written; {again}"]


def test_a_refused_dry_run_refuses_the_object(objects: FakeObjects) -> None:
    objects.denied.add(f"dry run of {PLUGIN[0]} {PLUGIN[1]}")
    assert actions(objects, target())["/".join(PLUGIN)] is Action.REFUSED


def test_an_object_that_may_not_be_deleted_keeps_all_from_being_written(
    objects: FakeObjects,
) -> None:
    objects.denied.add("delete DaemonSet gpu-feature-discovery")
    smaller = replace(SETTINGS, feature_discovery=Component(enabled=False), mig_strategy="single")
    done = apply(objects, target(smaller))
    assert not objects.writes
    (refused,) = (one for one in done.changes if one.action is Action.REFUSED)
    assert "delete DaemonSet gpu-feature-discovery is forbidden; add a rule" in refused.reason


def test_pods_that_never_run_are_reported_with_their_reason(objects: FakeObjects) -> None:
    objects.statuses = [{**ROLLED_OUT, "numberAvailable": 1}]
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "gpu-operator", "labels": {"app": PLUGIN[1]}},
        "spec": {"nodeName": "gpu1"},
        "status": {"containerStatuses": [{"name": "nvidia-device-plugin", **waiting}]},
    }
    objects.items["Pod", "p"] = pod
    done = apply(objects, target())
    assert done.unready[1] == (
        f"daemonset/{PLUGIN[1]}: 1 of 2 pods are available after 5 s; "
        "p on gpu1: nvidia-device-plugin: ErrImagePull: not found"
    )
    assert list(exit_codes(cluster_data("s", "n", done.changes, done))) == [EXIT_VALIDATION]
    applier = Applier(
        objects, target(), 300, stop=lambda: True, clock=itertools.count(7.0, 2.0).__next__
    )
    assert "1 of 2 pods are available after 2 s; p on" in applier._wait_for_pods()[1]
    why = "p on gpu1: nvidia-device-plugin: ErrImagePull: not found"
    stuck = [f"daemonset/{PLUGIN[1]}: 1 of 2 pods are available; {why}"]
    assert list(applier.stuck()) == stuck
    creating = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    for status in ({}, {"containerStatuses": [{"name": "nvidia-device-plugin", **creating}]}):
        objects.items["Pod", "p"] = {**pod, "status": status}
        assert list(applier.stuck()) == []
    objects.items["Pod", "p"] = pod
    objects.items["Pod", "q"] = {**pod, "metadata": {**pod["metadata"], "name": "q"}}
    told: list[str] = []
    ticks = iter(map(float, range(100)))
    waiting_for = replace(applier, emit=told.append, stop=lambda: False, timeout_s=20)
    lines = replace(waiting_for, sleep=lambda _: None, clock=ticks.__next__)._wait_for_pods()
    words = "p on gpu1, q on gpu1: nvidia-device-plugin: ErrImagePull: not found"
    assert lines[1].endswith(f" after 20 s; {words}")
    assert told.count(words) == 1
    del objects.items["Pod", "q"]
    ended = {"ready": False, "restartCount": 5, "lastState": {"terminated": {"exitCode": 2}}}
    crashed = {"phase": "Running", "containerStatuses": [{"name": "plugin", **ended}]}
    objects.items["Pod", "p"] = {**pod, "status": crashed}
    assert applier._wait_for_pods()[1].endswith(
        "; p on gpu1: plugin: restarted 5 times, last ended with exit code 2; read its log: kubectl logs -n "
        f"gpu-operator daemonset/{PLUGIN[1]} --all-containers --prefix --tail 20"
    )
    objects.items["Pod", "p"] = pod
    for nodes, waits in (("gpu1", True), ("gpu2", False), ("gpu1 gpu2", True)):
        some = replace(applier, nodes=frozenset(nodes.split()), clock=itertools.count().__next__)
        lines = [line for line in some._wait_for_pods() if PLUGIN[1] in line]
        assert bool(lines) == waits, nodes
    objects.statuses = [{**ROLLED_OUT, "updatedNumberScheduled": 0}, ROLLED_OUT]
    assert not apply(objects, target()).unready


@pytest.mark.parametrize("listed", [True, False])
def test_a_daemon_set_without_pods_is_reported_with_the_last_event(
    objects: FakeObjects, listed: bool
) -> None:
    objects.statuses = [{**ROLLED_OUT, "updatedNumberScheduled": 0, "numberAvailable": 0}]
    about = {"kind": PLUGIN[0], "name": PLUGIN[1]}
    for number, words in enumerate(("quota", 'pods "x" is forbidden: violates PodSecurity')):
        objects.items["Event", f"e{number}"] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"e{number}", "namespace": "gpu-operator"},
            "reason": "FailedCreate",
            "message": words,
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            "involvedObject": about,
        }
    if not listed:
        objects.denied.add("list events")
    done = apply(objects, target())
    (line,) = (one for one in done.unready if PLUGIN[1] in one)
    waiting = f"daemonset/{PLUGIN[1]}: 0 of 2 pods are updated after 5 s"
    failed = '; creating a pod failed: pods "x" is forbidden: violates PodSecurity'
    assert line == waiting + failed * listed
    assert not any("forbidden" in one for one in done.unready if one != line)


def test_the_document_has_every_object_and_the_page_those_that_change(objects: FakeObjects) -> None:
    changes = plan(objects, target(replace(SETTINGS, mig_strategy="mixed")))
    data = cluster_data("https://s", "gpu-operator", changes)
    assert len(data["objects"]) == len(changes)
    assert pending(data) == 2
    text = ["".join(piece for piece, _ in one) for one in lines(data)]
    assert text[0] == "cluster: https://s, namespace gpu-operator"
    assert "  ~ daemonset/nvidia-device-plugin-daemonset  update" in text
    assert text[-1] == f"  {len(changes) - 2} unchanged"
    whole = "\n".join("".join(piece for piece, _ in row) for row in lines(data, full=True))
    assert all(str(row["object"]) in whole for row in data["objects"])


def labelled(count: int) -> tuple[FakeObjects, Target]:
    """Nodes without labels, and the labels they should have."""
    objects = FakeObjects()
    for number in range(count):
        meta = {"name": f"n{number}", "labels": {"zone": "a"}}
        objects.add({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    wanted = {f"n{number}": {"a/b": "true"} for number in range(count)}
    return objects, Target((), "gpus", wanted)


def node_changes(objects: FakeObjects, wanted: Target) -> list[tuple[str, Action, list[str]]]:
    return [
        (one.item["metadata"]["name"], one.action, [row.field for row in one.differences])
        for one in plan(objects, wanted)
    ]


def dry_runs(objects: FakeObjects) -> list[str]:
    return [one for one in objects.requests if one.startswith("dry run")]


def test_labels_of_many_nodes_cost_one_dry_run_and_none_once_they_are_there() -> None:
    objects, wanted = labelled(50)
    field = ["metadata.labels[a/b]"]
    assert node_changes(objects, wanted) == [(f"n{n}", Action.UPDATE, field) for n in range(50)]
    assert dry_runs(objects) == ["dry run of Node n0"]
    for change in plan(objects, wanted):
        objects.apply(change.item)
    objects.requests.clear()
    assert {action for _, action, _ in node_changes(objects, wanted)} == {Action.UNCHANGED}
    assert not dry_runs(objects)
    assert [action for _, action, _ in node_changes(objects, replace(wanted, absent=True))] == (
        [Action.RELEASE] * 50
    )


def test_a_label_that_another_manager_has_applied_too_is_judged_by_the_server() -> None:
    objects, wanted = labelled(3)
    for change in plan(objects, wanted):
        objects.apply(change.item)
    fields = {"f:metadata": {"f:labels": {"f:a/b": {}}}}
    entry = {"manager": "other", "operation": "Apply", "fieldsV1": fields}
    objects.shared["Node", "n1"] = entry
    objects.requests.clear()
    other = replace(wanted, labels={f"n{n}": {"a/b": "pre-installed"} for n in range(3)})
    node_changes(objects, other)
    assert dry_runs(objects) == ["dry run of Node n0", "dry run of Node n1"]


def test_labels_that_others_hold_as_well_are_no_difference() -> None:
    objects, wanted = labelled(3)
    for change in plan(objects, wanted):
        objects.apply(change.item)
    for name in wanted.labels:
        objects.shared["Node", name] = {
            "manager": "other",
            "operation": "Update",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:a/b": {}, "f:zone": {}}}},
        }
    objects.requests.clear()
    for labels in ({"a/b": "true", "zone": "a"}, {}):
        now = replace(wanted, labels=dict.fromkeys(wanted.labels, labels))
        assert {action for _, action, _ in node_changes(objects, now)} == {Action.UNCHANGED}
    assert not dry_runs(objects)


def test_labels_of_programs_that_a_run_keeps_off_stay_paused(objects: FakeObjects) -> None:
    deploy = "nvidia.com/gpu.deploy.device-plugin"
    objects.add(node("gpu1"))
    wanted = target(labels={"gpu1": node_labels(SETTINGS)})
    assert not apply(objects, wanted).failures
    paused = "paused-for-mig-change"
    objects.edit(("Node", "gpu1"), ("metadata", "labels", deploy), paused, "gpustate-labels")
    assert not apply(objects, wanted).failures
    assert objects.items["Node", "gpu1"]["metadata"]["labels"][deploy] == paused
    assert not apply(objects, ABSENT).failures
    assert not objects.items["Node", "gpu1"]["metadata"]["labels"]


CONFIGS = ("ConfigMap", "configs")


def test_a_file_that_somebody_added_is_kept_and_removed_only_on_request(
    objects: FakeObjects,
) -> None:
    objects.edit(CONFIGS, ("data", "b"), "version: v1")
    (change,) = (one for one in plan(objects, target()) if one.differences)
    assert change.action is Action.FOREIGN
    assert [one.field for one in change.differences] == ["data.b"]
    assert change.reason == "added by kubectl-edit, and kept; --force-conflicts removes it"
    assert not apply(objects, target()).failures
    assert "b" in objects.items[CONFIGS]["data"]
    done = apply(objects, target(force=True))
    assert not done.failures
    assert list(objects.items[CONFIGS]["data"]) == ["a"]
    assert set(actions(objects, target()).values()) == {Action.UNCHANGED}


def test_an_object_that_argo_cd_applies_too_is_not_deleted(objects: FakeObjects) -> None:
    tracked = ("metadata", "annotations", "argocd.argoproj.io/tracking-id")
    objects.edit(PLUGIN, tracked, "gpu-stack:apps/DaemonSet:gpu-operator/x", "argocd-controller")
    without = replace(SETTINGS, device_plugin=Component(enabled=False))
    for wanted in (target(without), ABSENT):
        refused = [one for one in plan(objects, wanted) if one.action is Action.REFUSED]
        assert [one.item["metadata"]["name"] for one in refused] == [PLUGIN[1]]
        assert "Argo CD application gpu-stack applies it too" in refused[0].reason
    assert Action.REFUSED not in actions(objects, target(without, force=True)).values()


def test_what_is_written_before_nodes_is_read_by_a_list_per_kind(objects: FakeObjects) -> None:
    wanted = target(replace(SETTINGS, mig_strategy="mixed"))
    changes = list(for_new_pods(plan(objects, staged(wanted))))
    lists = [one for one in objects.requests if one.startswith("list")]
    assert len(lists) == len(set(lists)) == len({one["kind"] for one in staged(wanted).items})
    assert {one.item["kind"] for one in changes} == {"DaemonSet"}
    assert all(one.item["spec"]["updateStrategy"] == {"type": "OnDelete"} for one in changes)


def test_what_new_pods_need_is_there_before_their_template(objects: FakeObjects) -> None:
    """Pods that are created again while a node is held would wait for a ConfigMap, and the node for them."""
    bare = apply(objects, target(ClusterSettings(privileged_namespace=True)))
    assert not bare.failures
    wanted = target(replace(SETTINGS, config=PluginConfig("others", "a", {"a": "version: v1"})))
    changes = list(for_new_pods(plan(objects, staged(wanted))))
    names = [(one.item["kind"], one.item["metadata"]["name"]) for one in changes]
    assert names.index(("ConfigMap", "others")) < names.index(PLUGIN)
    assert ("ClusterRole", "nvidia-device-plugin") in names[: names.index(PLUGIN)]
    unchanged = target(replace(SETTINGS, config=None))
    assert not list(for_new_pods(plan(objects, staged(unchanged))))
