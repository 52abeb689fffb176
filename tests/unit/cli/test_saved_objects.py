"""A saved plan with objects: applied as it is, refused when the cluster is another, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from fakeobjects import FakeObjects

from gpustate import Plan, Policy, api
from gpustate.api import clusters as api_clusters
from gpustate.api import objects as api_objects
from gpustate.api.clusters import Clusters
from gpustate.cli import objects
from gpustate.core.change import Change
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.engine import fleet
from gpustate.errors import PolicyError, RefusedError, UsageError
from gpustate.formats import masking
from gpustate.manifests import ClusterSettings, Component
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import Kind
from gpustate.plan import document as documents
from gpustate.plan import html, markdown, render
from gpustate.plan import objects as plan_objects
from gpustate.rollout.maintenance import WITHDRAWS
from gpustate.schedulers.base import Member
from gpustate.schedulers.kubernetes.members import HOLD
from gpustate.states.nouveau import NouveauBlacklisted

LABEL = Change("labels", "a", "b")
PLUGIN = ("DaemonSet", "nvidia-device-plugin-daemonset")
POLICY = Policy(
    NouveauBlacklisted(),
    cluster=ClusterSettings(
        namespace="gpus",
        device_plugin=Component(image="p:v1", env={"LICENSE_TOKEN": "hunter2hunter2"}),
        feature_discovery=Component(image="g:v1"),
    ),
)
ROLLED_OUT = {
    "observedGeneration": 1,
    **dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), 1),
}


class Cluster(FakeObjects):
    """One that others look for an Operator in, too."""

    def find(self, kind: Kind, namespace: str, **more: Any) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    found.statuses = [ROLLED_OUT]

    @contextmanager
    def connected(kubeconfig: object) -> Iterator[Cluster]:
        yield found

    monkeypatch.setattr(api_clusters, "opened", connected)
    monkeypatch.setattr(Clusters, "_admit", lambda *args, **more: None)
    monkeypatch.setattr(Clusters, "_withdrawal", lambda *args, **more: nullcontext())
    return found


NODES = Inventory("hosts", (InventoryNode("gpu1", vars={"gpustate_kubeconfig": "k"}),))


def found(policy: Policy = POLICY, *, absent: bool = False) -> Clusters:
    made = objects.clusters(policy, "p.yaml", NODES, {"cluster_objects": True}, absent=absent)
    assert made is not None
    return made


def saved(policy: Policy = POLICY, *, absent: bool = False) -> dict[str, Any]:
    """The document of a plan, as it is read from its file again."""
    nodes = [NodeResult("gpu1")]
    made = documents.plan_document(
        policy, "p.yaml", nodes, run="r", created="2026-11-25T00:00:00Z", context=CONTEXT
    )
    made = found(policy, absent=absent).document(made, nodes)
    again: dict[str, Any] = documents.read_plan(json.loads(json.dumps(made)), place="plan.json")
    return again


CONTEXT = {
    "inventory": "hosts",
    "person": "me",
    "retry": ["gpustate", "plan", "p.yaml", "--cluster-objects"],
}


def clusters(
    document: dict[str, Any], *, resumed: bool = False, policy: Policy = POLICY
) -> Clusters:
    made = objects.clusters_of_plan(
        document, lambda name: policy, "plan.json", NODES, {}, resumed=resumed
    )
    assert made is not None
    return made


def actions(rows: list[dict[str, Any]]) -> set[str]:
    return {one["action"] for data in rows for one in data["objects"]} - {"skipped"}


def test_a_program_plans_applies_and_compares_objects(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "run", lambda *_: fleet.FleetResult("r", [NodeResult("gpu1")]))
    monkeypatch.setattr(api_objects, "remove_marks", lambda *_: ["a mark stays"])
    how: dict[str, Any] = {"cluster_objects": True, "schedulers": api.Schedulers(ignore=True)}
    planned = api.plan(POLICY, NODES, **how)
    assert actions(planned.document["clusters"]) == {"create"}
    assert " objects_refused=0" in planned.summary
    assert not cluster.items, "nothing is written"
    applied = api.apply(
        documents.read_plan(planned.document, place="p"),
        NODES,
        read_policy=lambda _: POLICY,
        schedulers=how["schedulers"],
    )
    assert applied.exit_code == 0
    assert actions(applied.document["clusters"]) == {"create"}, "a plan has its objects with it"
    assert actions(api.apply(POLICY, NODES, **how).document["clusters"]) == {"unchanged"}
    drifted = api.drift(POLICY, NODES, **how)
    assert actions(drifted.document["clusters"]) == {"unchanged"}
    removed = api.apply(POLICY, NODES, remove=True, **how)
    assert "delete" in actions(removed.document["clusters"])
    assert "a mark stays" in removed.document["clusters"][0]["notes"]
    assert "clusters" not in api.plan(POLICY, NODES, schedulers=how["schedulers"]).document


def test_exactly_the_saved_changes_are_applied(cluster: Cluster) -> None:
    document = saved()
    assert actions(document["clusters"]) == {"create"}
    assert not cluster.writes
    done = clusters(document).apply([NodeResult("gpu1")])
    assert actions(done) == {"create"}
    assert not done[0].get("failures")
    container = cluster.items[PLUGIN]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "LICENSE_TOKEN", "value": "hunter2hunter2"} in container["env"]
    assert actions(found().plan([])) == {"unchanged"}


def test_a_secret_is_not_in_the_plan_and_is_read_again(cluster: Cluster) -> None:
    document = saved()
    text = json.dumps(document) + markdown.report(document) + html.report(document)
    assert "hunter2" not in text
    assert document["policy"]["cluster"]["device_plugin"]["env"] == {"LICENSE_TOKEN": masking.MASK}
    with pytest.raises(PolicyError, match=r"p\.yaml has none for cluster\.device_plugin\.env"):
        clusters(document, policy=Policy(NouveauBlacklisted()))


def test_a_secret_that_only_the_cluster_has_is_not_in_the_plan(cluster: Cluster) -> None:
    found().apply([])
    containers = cluster.items[PLUGIN]["spec"]["template"]["spec"]["containers"]
    edited = [{**containers[0], "env": [{"name": "OLD_PASSWORD", "value": "opensesame"}]}]
    path = ("spec", "template", "spec", "containers")
    cluster.edit(PLUGIN, path, edited, manager="gpustate")
    document = saved()
    assert actions(document["clusters"]) == {"unchanged", "update"}
    assert "opensesame" not in json.dumps(document)
    assert "OLD_PASSWORD" in json.dumps(document)


def test_a_cluster_that_has_changed_is_refused_in_one_line(cluster: Cluster) -> None:
    found().apply([])
    document = saved()
    assert actions(document["clusters"]) == {"unchanged"}
    clusters(document)
    cluster.edit(PLUGIN, ("spec", "updateStrategy", "type"), "OnDelete", manager="gpustate")
    with pytest.raises(RefusedError) as error:
        clusters(document)
    assert str(error.value) == (
        "https://fake: the cluster has changed since the plan was made: "
        "daemonset/nvidia-device-plugin-daemonset (unchanged in the plan, update of "
        "spec.updateStrategy.type now); make a new plan: gpustate plan p.yaml --cluster-objects "
        "--out FILE"
    )


def test_what_changes_while_the_nodes_are_changed_is_refused_too(cluster: Cluster) -> None:
    made = clusters(saved())
    cluster.add(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "other",
        }
    )
    cluster.requests.clear()
    (done,) = made.apply([])
    (row,) = (one for one in done["objects"] if one["object"] == "runtimeclass/nvidia")
    assert row["action"] == "refused"
    assert row["reason"].startswith("it has changed since the plan was made: create in the plan")
    assert not cluster.writes
    assert api_objects.codes({"clusters": [done]}) == [5]


def test_a_plan_that_was_applied_in_part_goes_on(cluster: Cluster) -> None:
    document = saved()
    found().apply([])
    with pytest.raises(RefusedError, match="create in the plan, unchanged now"):
        clusters(document)
    assert actions(clusters(document, resumed=True).apply([])) == {"unchanged"}


def test_a_removal_is_saved_and_applied(cluster: Cluster) -> None:
    found().apply([])
    document = saved(absent=True)
    assert document["objects"]["absent"]
    assert actions(document["clusters"]) == {"delete"}
    made = clusters(document)
    assert made.absent
    made.apply(())
    assert not cluster.items


def test_another_cluster_and_one_that_could_not_be_read_are_refused(cluster: Cluster) -> None:
    document = saved()
    other = {**document, "clusters": [{**document["clusters"][0], "server": "https://other"}]}
    with pytest.raises(RefusedError, match="is for the cluster https://other, and k is of https"):
        clusters(other)
    cluster.denied.add("list namespaces")
    failed = saved()
    cluster.denied.clear()
    with pytest.raises(RefusedError, match="no objects of this cluster: list namespaces is forb"):
        clusters(failed)


def test_an_altered_plan_and_one_of_another_version_are_refused(cluster: Cluster) -> None:
    document = saved()
    document["clusters"][0]["objects"].pop()
    with pytest.raises(PolicyError, match="altered after it was made"):
        documents.read_plan(document, place="plan.json")
    document = saved()
    document["objects"]["fingerprint"] = "0" * 16
    document["id"] = documents._id_of(document)
    with pytest.raises(PolicyError, match="this one makes other objects of its policy"):
        documents.read_plan(document, place="plan.json")


def test_every_format_shows_the_objects(cluster: Cluster) -> None:
    found().apply([])
    cluster.edit(PLUGIN, ("spec", "updateStrategy", "type"), "<b>|`x`", manager="kubectl-edit")
    document = saved()
    text = render.objects_page(document).plain()
    assert "cluster: https://fake, namespace gpus\n" in text
    assert "x daemonset/nvidia-device-plugin-daemonset  refused\n" in text
    shown = markdown.report(document)
    assert "## Objects of the clusters\n\n### https\\://fake, namespace gpus\n" in shown
    assert "\n  x daemonset/nvidia-device-plugin-daemonset  refused\n" in shown
    assert "  spec.updateStrategy.type: '<b>|`x`' -> 'RollingUpdate'\n      conflict with" in shown
    page = html.report(document)
    assert '<h2 id="h-objects">Objects of the clusters</h2>' in page
    assert "  x daemonset/nvidia-device-plugin-daemonset  refused\n" in page
    assert "&lt;b&gt;|`x`" in page
    assert "unchanged" in page


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {}},
    "status": {"nodeInfo": {"bootID": "b1", "machineID": "m1", "systemUUID": "u1"}},
}
OTHER = {"boot_id": "b2", "machine_id": "m2", "system_uuid": "u2"}
KUBELET = {**OTHER, "agents": ["kubelet"]}
SAME = {"boot_id": "b1", "machine_id": "m1", "system_uuid": "u1", "agents": ["kubelet"]}
NO_NODE = "nothing is written: no Node of the cluster is gpu1, where a kubelet runs; check that"


@pytest.mark.parametrize("absent", [False, True])
def test_the_cluster_of_other_nodes_is_refused(cluster: Cluster, absent: bool) -> None:
    cluster.add(NODE)
    if absent:
        found().apply([NodeResult("gpu1", facts={**SAME})])
    cluster.requests.clear()
    nodes = [NodeResult("gpu1", NodeStatus.REFUSED, facts={**KUBELET})]
    made = found(absent=absent)
    for rows in (made.plan(nodes), made.apply(nodes)):
        (line,) = rows[0]["refusals"]
        assert line.startswith(f"https://fake: {NO_NODE}")
        assert not rows[0]["objects"]
        assert api_objects.codes({"clusters": rows}) == [5]
    assert not cluster.writes


@pytest.mark.parametrize(
    "facts",
    [OTHER, SAME, {**SAME, "agents": []}, {}],
    ids=["no kubelet yet", "its Node", "a stopped kubelet", "not reached"],
)
def test_the_cluster_of_a_node_is_not_refused(cluster: Cluster, facts: dict[str, Any]) -> None:
    cluster.add(NODE)

    def refusals(made: Clusters, *nodes: NodeResult) -> list[str]:
        (row,) = made.plan(nodes)
        return list(row.get("refusals", ()))

    gpu1 = NodeResult("gpu1", facts={**facts})
    assert refusals(found(), gpu1) == []
    other = NodeResult("gpu2", facts={**KUBELET})
    hosts = Inventory("hosts", (*NODES.nodes, InventoryNode("gpu2", vars=NODES.nodes[0].vars)))
    made = objects.clusters(POLICY, "p.yaml", hosts, {"cluster_objects": True}, absent=False)
    assert made is not None
    lines = refusals(made, gpu1, other)
    if facts.get("boot_id") == "b1":
        assert lines == []
    else:
        assert "no Node of the cluster is gpu2, where" in lines[0]


@pytest.mark.parametrize(
    "state",
    [
        {"would_refuse": True},
        {"status": NodeStatus.LOCKED},
        {"status": NodeStatus.LOCKED, "facts": {}},
    ],
    ids=["refused", "locked", "locked, and not probed"],
)
def test_a_removal_keeps_the_objects_while_a_node_is_not_changed(
    cluster: Cluster, state: dict[str, Any]
) -> None:
    info = {"bootID": "b2", "machineID": "m2", "systemUUID": "u2"}
    cluster.add(NODE)
    status = {"nodeInfo": info, "addresses": [{"type": "Hostname", "address": "gpu2"}]}
    cluster.add({**NODE, "metadata": {"name": "n2", "labels": {}}, "status": status})
    variables = NODES.nodes[0].vars
    hosts = Inventory("hosts", (*NODES.nodes, InventoryNode("gpu2", vars=variables)))
    options = {"cluster_objects": True}

    def made(*, absent: bool) -> Clusters:
        clusters_ = objects.clusters(POLICY, "p.yaml", hosts, options, absent=absent)
        assert clusters_ is not None
        return clusters_

    gpu = {"address": "0000:1b:00.0", "device_id": "2330", "class_id": "030200", "driver": "nvidia"}
    nodes = [
        NodeResult("gpu1", facts={**SAME, "pci": [gpu]}),
        NodeResult("gpu2", **{"facts": {**KUBELET, "pci": [gpu]}, **state}),
    ]
    there = {**KUBELET, "pci": [gpu]}
    made(absent=False).apply([nodes[0], NodeResult("gpu2", facts=there)])
    assert cluster.items["Node", "n2"]["metadata"]["labels"]
    removal = made(absent=True)
    (planned,) = removal.plan(nodes)
    assert [one["object"] for one in planned["objects"]] == ["node/n1"]
    assert "the removal is refused on n2; run it again" in planned["notes"][-1]

    document = documents.plan_document(
        POLICY, "p.yaml", nodes, run="r", created="2026-11-25T00:00:00Z", context=CONTEXT
    )
    document = removal.document(document, nodes)
    later = objects.clusters_of_plan(document, lambda name: POLICY, "p", hosts, {}, resumed=False)
    assert later is not None
    facts = [nodes[0], NodeResult("gpu2", facts=there)]
    for kept, seen in ((removal, nodes), (later, facts)):
        (done,) = kept.apply(seen)
        assert "the removal is refused on n2" in done["notes"][-1]
        assert PLUGIN in cluster.items
        assert not cluster.items["Node", "n1"]["metadata"]["labels"]
        assert cluster.items["Node", "n2"]["metadata"]["labels"]


@pytest.mark.parametrize(
    "status",
    [NodeStatus.ROLLED_BACK, NodeStatus.FAILED, NodeStatus.UNREACHABLE, NodeStatus.REFUSED],
)
@pytest.mark.parametrize("absent", [False, True])
def test_no_object_is_written_when_no_node_succeeded(
    cluster: Cluster, status: NodeStatus, absent: bool
) -> None:
    cluster.add(NODE)
    if absent:
        found().apply([])
    cluster.requests.clear()
    # As of a saved removal that every node refuses as stale.
    made = clusters(saved(absent=True)) if absent else found()
    (done,) = made.apply([NodeResult("gpu1", status, facts={**SAME})])
    what = "the objects stay" if absent else "nothing is written"
    assert done["notes"][0].startswith(f"{what}: no node of the cluster succeeded")
    assert not done["objects"]
    assert not cluster.writes


def test_a_removal_takes_what_offers_gpus_from_each_node_in_its_turn_and_the_objects_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[str, str, str]] = []

    class Scheduler:
        def __init__(self, api: Cluster) -> None:
            self.api = api

        def members(self) -> list[Member]:
            names = (name for kind, name in cluster.items if kind == "Node")
            return [Member(name, ready=True, schedulable=False) for name in names]

        def note(self, member: Member, phase: str, why: str) -> None:
            noted.append((member.name, phase, why))

    monkeypatch.setattr(api_clusters, "connected", nullcontext)
    monkeypatch.setattr(api_clusters, "Kubernetes", Scheduler)
    info = {"bootID": "b2", "machineID": "m2", "systemUUID": "u2"}
    cluster.add(NODE)
    cluster.add({**NODE, "metadata": {"name": "n2", "labels": {}}, "status": {"nodeInfo": info}})
    hosts = Inventory("hosts", (*NODES.nodes, InventoryNode("gpu2", vars=NODES.nodes[0].vars)))
    gpu = {"address": "0000:1b:00.0", "device_id": "2330", "class_id": "030200", "driver": "nvidia"}
    nodes = [
        NodeResult("gpu1", facts={**SAME, "pci": [gpu]}),
        NodeResult("gpu2", facts={**KUBELET, "pci": [gpu]}),
    ]

    def made(*, absent: bool) -> Clusters:
        options = {"cluster_objects": True}
        clusters_ = objects.clusters(POLICY, "p.yaml", hosts, options, absent=absent)
        assert clusters_ is not None
        return clusters_

    def labels() -> list[bool]:
        return [bool(cluster.items["Node", name]["metadata"]["labels"]) for name in ("n1", "n2")]

    made(absent=False).apply(nodes)
    for name in ("n1", "n2"):
        cluster.items["Node", name]["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    removal = made(absent=True)
    nodes[0].states = [StateResult("driver", Outcome.PENDING, Plan((LABEL,)))]
    (row,) = removal.plan(nodes)
    (note,) = (one for one in row["notes"] if "at once" in one)
    assert note.startswith("n2: what offers their GPUs goes from all of these at once, after the")
    assert any("each from its turn on" in one for one in row["notes"])

    removal.stage(nodes[0])
    assert labels() == [True, True], "it is in service, so new pods would come to it meanwhile"
    cluster.items["Node", "n1"]["status"]["allocatable"] = {}
    hold = {"person": "p", "text": "t", "phase": "held", "since": ""}
    for run in ("of-another", removal.run):
        assert labels() == [True, True], "another run holds it, and its pods are not ours to end"
        text = json.dumps({**hold, "run": run})
        cluster.items["Node", "n1"]["metadata"]["annotations"] = {HOLD: text}
        removal.stage(nodes[0])
    assert labels() == [False, True]
    assert noted == [("n1", "changing", WITHDRAWS)]
    (kept,) = removal.apply([replace(nodes[0], status=NodeStatus.LOCKED), nodes[1]])
    assert "n1: they have had their turn, and offer no GPUs" in kept["notes"]
    assert PLUGIN in cluster.items
    removal.apply(nodes)
    assert labels() == [False, False]
    assert PLUGIN not in cluster.items


def test_a_failed_request_says_what_was_written_and_how_to_go_on(cluster: Cluster) -> None:
    document = saved()
    made, planned = found(), clusters(document)
    cluster.denied.add("apply Namespace gpus")
    total = len(document["clusters"][0]["objects"])
    failed = "apply Namespace gpus is forbidden; add a rule"
    for one, then in (
        (made, "run the same command again to continue"),
        (planned, "make a new plan: gpustate plan p.yaml --cluster-objects --out FILE"),
    ):
        (done,) = one.apply([NodeResult("gpu1")])
        assert done["failures"] == [failed]
        assert not done["objects"]
        assert done["notes"] == [f"0 of {total} objects were written; {then}"]
    cluster.denied = {"list namespaces"}
    (done,) = made.apply([NodeResult("gpu1")])
    assert done["notes"] == ["nothing is written"]


@pytest.mark.parametrize("refused", [{"status": NodeStatus.REFUSED}, {"would_refuse": True}])
def test_a_plan_shows_no_object_that_refused_nodes_keep_from_changing(
    cluster: Cluster, refused: dict[str, Any]
) -> None:
    nodes = [NodeResult("gpu1", **refused)]
    (row,) = found().plan(nodes)
    assert (row["objects"], row["notes"]) == (
        [],
        ["no object changes: no node of the cluster can be changed"],
    )
    assert actions(found().plan(nodes, drift=True)) == {"create"}, "drift compares all the same"
    assert actions(found().plan([*nodes, NodeResult("gpu1")])) == {"create"}


def test_the_removal_of_the_device_plugin_is_not_without_consequence(cluster: Cluster) -> None:
    found().apply([NodeResult("gpu1")])
    nodes = [NodeResult("gpu1", states=[StateResult("s", Outcome.PENDING, Plan((LABEL,)))])]
    made = documents.plan_document(POLICY, "p.yaml", nodes, run="r", created="", context=CONTEXT)
    without = replace(settings_of(POLICY), device_plugin=Component(enabled=False))
    document = found(POLICY.with_cluster(without)).document(made, nodes)
    words = "no new pod gets a GPU of these Nodes"
    assert any(words in note for note in document["clusters"][0]["notes"])
    assert words in render.nodes_page(document).plain()
    asked = f"Apply to gpu1, without disruption of what runs; {words}?"
    assert render.question(document, "apply", forks=1) == asked
    kept = found().document(made, nodes)
    assert words not in str(kept["clusters"])
    assert render.question(kept, "apply", forks=1) == "Apply to gpu1, without disruption?"


def test_a_removal_that_is_refused_does_not_ask_for_node_feature_discovery(
    cluster: Cluster,
) -> None:
    found().apply([NodeResult("gpu1")])
    nodes = [NodeResult("gpu1")]
    asked = "add --set cluster.install_nfd=true"
    assert asked in str(found().plan(nodes)[0]["notes"])
    cluster.denied.add("delete DaemonSet gpu-feature-discovery")
    (row,) = found(absent=True).plan(nodes)
    assert "refused" in actions([row])
    assert asked not in str(row.get("notes"))


def test_node_feature_discovery_is_not_deleted_without_a_word(cluster: Cluster) -> None:
    settings = settings_of(POLICY)
    installed = replace(settings, node_feature_discovery={})
    found(POLICY.with_cluster(installed)).apply([NodeResult("gpu1")])
    (row,) = found().plan([NodeResult("gpu1")])
    assert (
        "node feature discovery is deleted; to keep it, add --set cluster.install_nfd=true"
        in row["notes"]
    )


def test_a_field_of_an_object_is_shown_as_json() -> None:
    change = {"field": "spec", "before": None, "after": {"a": [True, "x"]}}
    assert plan_objects.change_texts([change]) == ['spec: none -> {"a": [true, "x"]}']


def test_restarted_pods_have_the_new_template_while_nodes_change(cluster: Cluster) -> None:
    found().apply([])
    mixed = POLICY.with_cluster(replace(settings_of(POLICY), mig_strategy="mixed"))
    document = saved(mixed)
    made = clusters(document, policy=mixed)
    made.stage(NodeResult("gpu1"))
    spec = cluster.items[PLUGIN]["spec"]
    assert spec["updateStrategy"]["type"] == "OnDelete"
    assert {"name": "MIG_STRATEGY", "value": "mixed"} in spec["template"]["spec"]["containers"][0][
        "env"
    ]
    (failed,) = made.apply([NodeResult("gpu1", status=NodeStatus.FAILED)])
    assert "only the change of daemonset/" in failed["notes"][0]
    assert "a pod that is created again gets it, also on a Node that is as" in failed["notes"][0]
    assert actions(found(mixed).plan([])) == {"unchanged", "update"}
    (done,) = made.apply([NodeResult("gpu1")])
    assert cluster.items[PLUGIN]["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    changes = {one["object"]: one["changes"] for one in done["objects"] if "changes" in one}
    assert changes == {
        one["object"]: one["changes"]
        for one in document["clusters"][0]["objects"]
        if "changes" in one
    }
    assert actions(found(mixed).plan([])) == {"unchanged"}


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ("mixed", "single", True),
        ("mixed", "none", True),
        ("single", "", True),
        ("single", "mixed", False),
        ("none", "single", False),
    ],
)
def test_no_node_goes_back_to_a_layout_that_the_new_strategy_lacks(
    before: str, after: str, refused: bool, cluster: Cluster
) -> None:
    def policy(strategy: str) -> Policy:
        return POLICY.with_cluster(replace(settings_of(POLICY), mig_strategy=strategy))

    found(policy(before)).apply([])
    made = replace(found(policy(after)), rollback_on_failure=True)
    cluster.requests.clear()
    for step in (lambda: made.plan([]), made.check_rollback):
        if refused:
            words = f"while mig.strategy changes from {before} to {after or 'none'}"
            with pytest.raises(UsageError, match=f"set it to false {words}"):
                step()
            assert not cluster.writes
        else:
            step()


def test_other_fields_with_these_words_are_no_strategy(cluster: Cluster) -> None:
    def policy(value: str) -> Policy:
        return POLICY.with_cluster(
            replace(settings_of(POLICY), device_plugin=Component(env={"MY_WORD": value}))
        )

    found(policy("mixed")).apply([])
    replace(found(policy("single")), rollback_on_failure=True).check_rollback()


def test_drift_names_pods_that_do_not_start(cluster: Cluster) -> None:
    found().apply([])
    cluster.statuses = [{**ROLLED_OUT, "numberAvailable": 0}]
    waiting = {"state": {"waiting": {"reason": "ErrImagePull"}}}
    cluster.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "gpus", "labels": {"app": PLUGIN[1]}},
            "spec": {"nodeName": "gpu1"},
            "status": {"containerStatuses": [{"name": "c", **waiting}]},
        }
    )
    (row,) = found().plan([], drift=True)
    line = f"daemonset/{PLUGIN[1]}: 0 of 1 pods are available; p on gpu1: c: ErrImagePull"
    assert row["unready"] == [line]
    assert objects.has_drifted({"clusters": [row]})
    assert not api_objects.codes({"clusters": [row]}, drift=True)
    assert "unready" not in found().plan([])[0]
    cluster.denied.add("list pods")
    assert "unready" not in found().plan([], drift=True)[0]


def test_no_object_is_created_before_the_nodes_change(cluster: Cluster) -> None:
    found().stage(NodeResult("gpu1"))
    assert not cluster.writes


def test_labels_of_a_held_node_are_written_before_what_it_is_to_offer_is_waited_for(
    cluster: Cluster,
) -> None:
    gpu = {"address": "0000:1b:00.0", "device_id": "2330", "class_id": "030200", "driver": "nvidia"}
    node = NodeResult("gpu1", facts={**SAME, "pci": [gpu]})
    cluster.add(NODE)
    found().apply([node])
    labels = dict(cluster.items["Node", "n1"]["metadata"]["labels"])
    lost = {key: value for key, value in labels.items() if "device-plugin" not in key}
    cluster.edit(("Node", "n1"), ("metadata", "labels"), lost, manager="kubectl-label")
    made = found()
    cluster.requests.clear()
    made.label(NodeResult("of-no-cluster"))
    found(absent=True).label(node)
    assert not cluster.requests
    made.label(node)
    assert cluster.items["Node", "n1"]["metadata"]["labels"] == labels
    assert len(cluster.writes) == 1
    (failed,) = made.apply([replace(node, status=NodeStatus.FAILED)])
    words = "only the change of labels of node/n1 is written: no node of the cluster succeeded"
    assert failed["notes"] == [words]
    (done,) = made.apply([node])
    updated = [one["object"] for one in done["objects"] if one["action"] == "update"]
    assert updated == ["node/n1"]
    cluster.denied.add("list nodes")
    made.label(node)  # named by the apply that follows


def test_templates_are_written_once_for_the_first_node_of_a_cluster(cluster: Cluster) -> None:
    found().apply([])
    made = found(POLICY.with_cluster(replace(settings_of(POLICY), mig_strategy="mixed")))
    cluster.requests.clear()
    made.stage(NodeResult("of-no-cluster"))
    assert not cluster.requests
    made.stage(NodeResult("gpu1"))
    writes = cluster.writes
    assert writes
    made.stage(NodeResult("gpu1"))
    assert cluster.writes == writes
