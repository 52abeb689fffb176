"""Hold, drain and release of a Node against an API that counts what is written to it.

The API here keeps resourceVersions and answers evictions as a budget does; the real one judges the same in
``tests/node/test_cluster_drain.py``.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.core.facts import NodeFacts
from gpustate.documents import Json
from gpustate.errors import ClusterError, RefusedError
from gpustate.formats import masking
from gpustate.schedulers import kubernetes
from gpustate.schedulers.base import (
    HeldElsewhereError,
    Member,
    NotDrainedError,
    NotRefreshedError,
    Scope,
    Why,
)
from gpustate.schedulers.kubernetes.members import HOLD, read_hold

PLAIN = DrainPolicy()
WHY = Why("20261124-1", "ann@ops1", "driver 580")


#: The pod of a device plugin.
PLUGIN: Json = {
    "spec": {
        "containers": [{"image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}],
        "volumes": [{"hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
    }
}


class FakeApi:
    """One cluster in memory. ``refusals``: answers to the next evictions of a pod; ``plugin``: a DaemonSet is its device plugin."""

    server = "https://api.test"
    skew_s = 0.0
    plugin = True

    def __init__(self) -> None:
        self.node_: Json = {
            "metadata": {
                "name": "n1",
                "resourceVersion": "1",
                "annotations": {},
                "managedFields": [],
            },
            "spec": {},
            "status": {
                "nodeInfo": {"bootID": "B", "machineID": "M", "systemUUID": "U"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.pods_: list[Json] = []
        self.refusals: dict[str, list[RefusedRequest]] = {}
        self.conflicts = 0
        self.denied: set[str] = set()
        self.writes: list[str] = []
        self.events: list[Json] = []
        self.event_error: ClusterError | None = None
        self.name = "ann"

    def create_event(self, event: Json) -> None:
        if self.event_error is not None:
            raise self.event_error
        self.events.append(event)

    def nodes(self) -> list[Json]:
        return [copy.deepcopy(self.node_)]

    def node(self, name: str) -> Json:
        return copy.deepcopy(self.node_)

    def may(
        self, verb: str, group: str, resource: str, subresource: str = "", namespace: str = ""
    ) -> bool:
        assert bool(namespace) is (resource == "leases")
        return f"{verb} {resource}" not in self.denied

    def user(self) -> str:
        return self.name

    def maintenances(self) -> list[Json]:
        return []

    def daemon_sets(self) -> list[Json]:
        template = PLUGIN if self.plugin else {}
        return [{"metadata": {"namespace": "a", "name": "agent"}, "spec": {"template": template}}]

    def claims(self) -> list[Json]:
        return []

    def budgets(self) -> list[Json]:
        return []

    def pods(self) -> list[Json]:
        return copy.deepcopy(self.pods_)

    def pods_on(self, node: str) -> list[Json]:
        return copy.deepcopy(self.pods_)

    def patch_node(self, name: str, patch: Json) -> Json:
        if self.conflicts:
            self.conflicts -= 1
            raise RefusedRequest("conflict", 409)
        meta = self.node_["metadata"]
        assert patch["metadata"]["resourceVersion"] == meta["resourceVersion"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        for key, value in patch["metadata"]["annotations"].items():
            if value is None:
                meta["annotations"].pop(key, None)
            else:
                meta["annotations"][key] = value
        if "spec" in patch:
            self.node_["spec"]["unschedulable"] = patch["spec"]["unschedulable"]
            self.cordoned_by("gpustate")
        self.writes.append(json.dumps(patch.get("spec")))
        return copy.deepcopy(self.node_)

    def cordoned_by(self, manager: str) -> None:
        self.node_["metadata"]["managedFields"] = [
            {
                "manager": manager,
                "time": "2026-01-01T00:00:00Z",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            }
        ]

    def evict(self, pod: Json, grace_period_s: int | None = None, *, dry_run: bool = False) -> None:
        name = pod["metadata"]["name"]
        self.writes.append(f"evict {name}")
        if self.refusals.get(name):
            raise self.refusals[name].pop(0)
        self.pods_ = [one for one in self.pods_ if one["metadata"]["name"] != name]

    def delete(self, pod: Json) -> None:
        self.writes.append(f"delete {pod['metadata']['name']}")
        self.pods_ = [
            one for one in self.pods_ if one["metadata"]["name"] != pod["metadata"]["name"]
        ]


class Clock:
    """Time that only passes by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def pod(name: str, *, kind: str = "ReplicaSet", gpus: int = 0, **spec: Any) -> Json:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    owners = (
        [{"kind": kind, "name": "agent" if kind == "DaemonSet" else "r", "controller": True}]
        if kind
        else []
    )
    return {
        "metadata": {
            "namespace": "a",
            "name": name,
            "uid": f"uid-{name}",
            "ownerReferences": owners,
            "labels": {"app": name},
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": limits}}], **spec},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


def scheduler(api: FakeApi, clock: Clock | None = None) -> kubernetes.Kubernetes:
    ticking = clock or Clock()
    return kubernetes.Kubernetes(cast(Api, api), sleep=ticking.sleep, clock=ticking)


def facts(**ids: str) -> NodeFacts:
    return NodeFacts(**{"boot_id": "b", "machine_id": "m", "system_uuid": "u", **ids})  # type: ignore[arg-type]


def drain(
    api: FakeApi, scope: Scope = Scope.ALL, policy: DrainPolicy = PLAIN, clock: Clock | None = None
) -> list[str]:
    told: list[str] = []
    found = scheduler(api, clock)
    found.drain(found.member(facts(), "gpu1"), scope, policy, told.append, lambda: False)
    return told


def test_a_machine_is_matched_by_its_ids_and_not_by_name(api: FakeApi) -> None:
    assert scheduler(api).member(facts(), "whatever").name == "n1"
    assert scheduler(api).member(facts(boot_id="new"), "rebooted").name == "n1"
    with pytest.raises(RefusedError, match=r"n1: .*no Node of the cluster is this machine"):
        scheduler(api).member(facts(boot_id="x", machine_id="y", system_uuid="z"), "n1")


def test_a_server_that_does_not_answer_is_not_waited_for_by_each_node(api: FakeApi) -> None:
    asked: list[int] = []

    def nodes() -> list[Json]:
        asked.append(1)
        raise ClusterError("is unreachable")

    api.nodes = nodes  # type: ignore[method-assign]
    clock = Clock()
    found = scheduler(api, clock)
    for _ in range(3):
        with pytest.raises(ClusterError, match="is unreachable"):
            found.member(facts(), "gpu1")
    assert len(asked) == 1
    clock.now += 60.0
    with pytest.raises(ClusterError):
        found.member(facts(), "gpu1")
    assert len(asked) == 2


def test_a_hold_is_a_cordon_and_its_record_in_one_write(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    assert api.writes == ['{"unschedulable": true}']
    assert not member.schedulable
    assert member.hold is not None
    assert (member.hold.run, member.hold.person, member.hold.phase) == (
        "20261124-1",
        "ann@ops1",
        "held",
    )
    assert found.note(member, "changing").hold.phase == "changing"  # type: ignore[union-attr]
    assert found.release(member) == ""
    assert api.node_["metadata"]["annotations"] == {}
    assert not api.node_["spec"]["unschedulable"]


def test_a_hold_of_the_same_run_is_known_though_the_nodes_were_listed_before(api: FakeApi) -> None:
    """A rollback in the same run has to know that its node failed."""
    found = scheduler(api)
    assert found.nodes.held() == frozenset()
    found.note(found.hold(found.member(facts(), "gpu1"), WHY), "failed", "driver: broken")
    member = found.member(facts(), "gpu1")
    assert (member.schedulable, member.hold and member.hold.phase) == (False, "failed")
    later = scheduler(api)
    assert later.nodes.held() == {"n1"}
    assert later.release(later.member(facts(), "gpu1")) == ""
    assert scheduler(api).nodes.held() == frozenset()


def test_every_missing_right_is_named_before_anything_is_written(api: FakeApi) -> None:
    api.denied = {"patch nodes", "list poddisruptionbudgets"}
    found = scheduler(api)
    with pytest.raises(RefusedError, match="user ann lacks rights") as caught:
        found.take_lease(WHY, print, lambda: False)
    assert caught.value.exit_code == 5
    assert (
        '{apiGroups: [""], resources: ["nodes"], verbs: ["patch"]}; {apiGroups: ["policy"]'
        in str(caught.value)
    )
    assert api.writes == []


def test_missing_verbs_of_a_resource_are_one_rule(api: FakeApi) -> None:
    api.denied = {"list nodes", "patch nodes"}
    with pytest.raises(ClusterError) as caught:
        scheduler(api).take_lease(WHY, print, lambda: False)
    rule = '{apiGroups: [""], resources: ["nodes"], verbs: ["list", "patch"]}'
    assert str(caught.value.fix) == f"add to a ClusterRole of user ann: {rule}"
    api.name = ""  # before Kubernetes 1.28
    with pytest.raises(ClusterError, match="its user lacks rights"):
        scheduler(api).take_lease(WHY, print, lambda: False)


def test_someone_who_only_reads_needs_no_right_to_change_nodes(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden() -> list[Json]:
        raise RefusedRequest("list nodemaintenances: forbidden", 403)

    api.denied = {"patch nodes", "list nodemaintenances", "update leases"}
    monkeypatch.setattr(api, "maintenances", forbidden)
    with pytest.raises(ClusterError, match="rights to list nodes out of service") as caught:
        kubernetes.Kubernetes(cast(Api, api), read_only=True).members()
    assert caught.value.exit_code == 1, "nothing was to be changed"
    assert "nodemaintenances" in str(caught.value)
    assert "patch" not in str(caught.value)
    assert "update" not in str(caught.value)


def test_a_node_that_is_not_ready_says_since_when(api: FakeApi) -> None:
    since = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since}
    api.node_["status"]["conditions"] = [{"type": "DiskPressure", "status": "False"}, condition]
    assert kubernetes.Kubernetes(cast(Api, api)).members()[0].not_ready_since == since
    condition["status"] = "True"
    assert kubernetes.Kubernetes(cast(Api, api)).members()[0].not_ready_since == ""


def test_a_foreign_cordon_has_its_time_and_the_command_that_ends_it(api: FakeApi) -> None:
    api.node_["spec"]["unschedulable"] = True
    api.cordoned_by("kubectl-cordon")
    (member,) = scheduler(api).members()
    assert member.foreign == ("cordoned by kubectl-cordon",), "the same for all nodes of a plan"
    assert member.foreign_since == "2026-01-01T00:00:00Z"
    assert member.undo == "kubectl uncordon n1"
    api.node_["spec"] = {}
    (member,) = kubernetes.Kubernetes(cast(Api, api)).members()
    assert (member.foreign, member.foreign_since, member.undo) == ((), "", "")


@pytest.mark.parametrize("status", [401, 403])
def test_a_change_without_accepted_credentials_is_refused_with_the_next_step(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def denied(*_: object) -> list[Json]:
        raise RefusedRequest("list nodes: denied", status, fix="get a new kubeconfig")

    monkeypatch.setattr(api, "nodes", denied)
    monkeypatch.setattr(api, "may", denied)
    found = kubernetes.Kubernetes(cast(Api, api))
    for work in (found.members, lambda: found.take_lease(WHY, print, lambda: False)):
        with pytest.raises(RefusedError) as caught:
            work()
        assert str(caught.value) == "list nodes: denied; get a new kubeconfig"
    with pytest.raises(ClusterError) as caught:
        kubernetes.Kubernetes(cast(Api, api), read_only=True).members()
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(("skew_s", "words"), [(3600.0, "3600 s ahead of"), (-90.0, "90 s behind")])
def test_a_clock_that_is_off_is_named_before_anything_is_written(
    api: FakeApi, skew_s: float, words: str
) -> None:
    api.skew_s = skew_s
    with pytest.raises(ClusterError, match=f"clock is {words} the API server's"):
        scheduler(api).take_lease(WHY, print, lambda: False)
    assert api.writes == []


def test_a_foreign_cordon_is_neither_taken_nor_lifted(api: FakeApi) -> None:
    api.node_["spec"]["unschedulable"] = True
    api.cordoned_by("kubectl-cordon")
    found = scheduler(api)
    member = found.member(facts(), "gpu1")
    with pytest.raises(HeldElsewhereError, match="cordoned by kubectl-cordon"):
        found.hold(member, WHY)
    assert found.release(member) == ""
    assert api.writes == []


def test_who_cordons_during_the_hold_keeps_the_node_out_of_service(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    api.cordoned_by("kubectl-cordon")
    words = "cordoned by kubectl-cordon; once that is over: kubectl uncordon n1"
    assert found.release(member) == words
    assert api.node_["spec"]["unschedulable"] is True
    left = read_hold(api.node_)
    assert left is not None
    assert (left.phase, left.text) == ("left", "left cordoned: cordoned by kubectl-cordon")


def test_a_hold_of_a_dead_run_is_taken_over_with_how_it_was_before(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.member(facts(), "gpu1")
    found.hold(member, Why("old", "bob@ops2", "x"))
    taken = found.hold(member, WHY).hold
    assert taken is not None
    assert (taken.run, taken.schedulable_before) == ("20261124-1", True)


def test_what_another_run_took_over_is_neither_changed_nor_released(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    found.hold(member, Why("other", "bob@ops2", "x"))
    writes = list(api.writes)
    with pytest.raises(HeldElsewhereError, match="run other of bob@ops2 has taken it over"):
        found.note(member, "changing")
    assert found.release(member) == "run other of bob@ops2 has taken it over"
    assert api.writes == writes


def test_a_foreign_cordon_is_recorded_once(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    api.cordoned_by("kubectl-cordon")
    found.release(member)
    writes = list(api.writes)
    words = "cordoned by kubectl-cordon; once that is over: kubectl uncordon n1"
    assert found.release(member) == words
    assert api.writes == writes


def test_a_pod_that_shows_after_the_others_have_left_is_evicted_too(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1)]
    late = [pod("late", gpus=1)]
    clock = Clock()
    list_pods = api.pods_on

    def pods_on(node: str) -> list[Json]:
        if not api.pods_ and late:
            api.pods_.append(late.pop())
            return []
        return list_pods(node)

    api.pods_on = pods_on  # type: ignore[method-assign]
    drain(api, Scope.GPU, clock=clock)
    assert api.writes == ["evict a", "evict late"]


def test_gpus_that_a_dead_run_saw_are_waited_for(api: FakeApi) -> None:
    api.node_["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    found = scheduler(api)
    found.hold(found.member(facts(), "gpu1"), WHY)
    api.node_["status"]["allocatable"] = {}
    again = scheduler(api)
    member = again.note(again.member(facts(), "gpu1"), "validating")
    assert member.hold is not None
    assert (member.gpus, member.hold.gpus_before) == (0, 8)
    with pytest.raises(NotRefreshedError, match="allocatable has none"):
        again.refresh(member, facts(), print, lambda: False)


def _unoffered(api: FakeApi) -> tuple[kubernetes.Kubernetes, Member]:
    """A Node that is held, and whose GPUs nothing offers since."""
    api.node_["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    cluster = scheduler(api)
    member = cluster.hold(cluster.member(facts(), "gpu1"), WHY)
    api.node_["status"]["allocatable"] = {}
    return cluster, member


NOTE = "nothing offers the GPUs of Node n1: the cluster has no device plugin for it"


def test_gpus_that_nothing_offers_any_more_are_not_waited_for(api: FakeApi) -> None:
    """Neither in the run during which the device plugin goes, nor in a later one."""
    cluster, member = _unoffered(api)
    api.plugin = False
    for current in (cluster, scheduler(api)):
        assert current.refresh(member, facts(), print, lambda: False).endswith(NOTE)
    operand = pod("old", kind="DaemonSet")
    operand["spec"]["containers"] = [{"image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}]
    api.pods_ = [operand]
    assert cluster.refresh(member, facts(), print, lambda: False).endswith(NOTE)
    assert "delete old" in api.writes


def test_gpus_that_may_be_offered_again_are_waited_for(api: FakeApi) -> None:
    cluster, member = _unoffered(api)
    label = "nvidia.com/gpu.deploy.device-plugin"
    template = {"spec": {**PLUGIN["spec"], "nodeSelector": {label: "true"}}}
    plugin = {"metadata": {"name": "p"}, "spec": {"template": template}}
    api.daemon_sets = lambda: [plugin]  # type: ignore[method-assign]
    labels = api.node_["metadata"].setdefault("labels", {})
    assert cluster.refresh(member, facts(), print, lambda: False).endswith(NOTE), "not for it"
    for value, words in (("true", "allocatable has none"), ("paused-x", f"n1 --overwrite {label}")):
        labels[label] = value
        with pytest.raises(NotRefreshedError, match=words):
            cluster.refresh(member, facts(), print, lambda: False)
    labels.clear()
    api.daemon_sets = list  # type: ignore[method-assign]
    with pytest.raises(NotRefreshedError, match="allocatable has none"):
        cluster.refresh(member, replace(facts(), device_plugin=True), print, lambda: False)
    static = {**pod("static", kind="Node"), **PLUGIN}
    api.pods_ = [static]
    with pytest.raises(NotRefreshedError, match="allocatable has none"):
        cluster.refresh(member, facts(), print, lambda: False)
    static["spec"] = {**PLUGIN["spec"], "containers": [{"image": "k8s-rdma-shared-dev-plugin"}]}
    assert cluster.refresh(member, facts(), print, lambda: False).endswith(NOTE)


@pytest.mark.parametrize(("after", "least_s"), [("16", 4), ("8", 15)])
def test_what_a_node_offered_before_its_plugin_restarted_is_no_proof(
    api: FakeApi, after: str, least_s: int
) -> None:
    """A kubelet reports every ten seconds; until then pods would be placed by GPUs of before."""
    api.node_["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    plugins = [pod("old", kind="DaemonSet"), pod("new", kind="DaemonSet")]
    for one in plugins:
        one["spec"]["containers"] = [{"image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}]
        one["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    clock = Clock()

    def pods_on(_: str) -> list[Json]:
        if clock.now >= 4:
            api.node_["status"]["allocatable"] = {"nvidia.com/gpu": after}
        return [plugins["delete old" in api.writes]]

    api.pods_on = pods_on  # type: ignore[method-assign]
    found = scheduler(api, clock)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    began = clock.now
    found.refresh(member, facts(), print, lambda: False)
    assert least_s <= clock.now - began <= least_s + 2


def test_an_exporter_that_cannot_start_keeps_no_node_out_of_service(api: FakeApi) -> None:
    """Its image cannot be pulled, and the policy that switches it off is applied after a node that succeeds."""
    api.node_["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    exporter = pod("exporter", kind="DaemonSet")
    exporter["spec"]["containers"] = [{"image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0"}]
    exporter["status"] = {"phase": "Pending"}
    listed: list[list[Json]] = [[]]
    api.pods_on = lambda node: listed.pop() if listed else [exporter]  # type: ignore[method-assign]
    clock, told = Clock(), list[str]()
    found = scheduler(api, clock)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    found.refresh(member, facts(), told.append, lambda: False)
    assert 60 < clock.now < 70
    first, later, _, end = told
    assert first == "waiting for Node n1 to be ready for GPU pods: not ready: a/exporter"
    words = (
        r"still waiting for Node n1 to be ready for GPU pods since 20\S+Z: not ready: a/exporter"
    )
    assert re.fullmatch(words, later)
    assert end == "a/exporter is not ready after 60 s; the Node offers its GPUs without it"
    listed.append([])
    api.node_["status"]["allocatable"] = {}
    with pytest.raises(NotRefreshedError, match=r"allocatable has none.*; not ready: a/exporter"):
        found.refresh(member, facts(), told.append, lambda: False)


@pytest.mark.parametrize("republished", [True, False])
def test_devices_that_the_dra_driver_published_before_are_published_again(
    api: FakeApi, republished: bool
) -> None:
    container = {"image": "nvcr.io/nvidia/dra-driver-nvidia-gpu:v0.5.0"}
    driver = {
        "metadata": {"name": "dra"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    devices: list[Json] = [{"name": "gpu-0"}]
    polls = iter([False, republished])

    def slices(node: str) -> list[Json]:
        if not devices and next(polls, False):
            devices.append({"name": "gpu-0"})
        return [{"metadata": {"name": "s"}, "spec": {"devices": list(devices)}}]

    api.daemon_sets = lambda: [driver]  # type: ignore[method-assign]
    api.slices = slices  # type: ignore[attr-defined]
    api.empty_slice = lambda name: devices.clear()  # type: ignore[attr-defined]
    found = scheduler(api)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    if republished:
        found.refresh(member, facts(), print, lambda: False)
        assert devices
    else:
        with pytest.raises(NotRefreshedError, match="has not published its GPUs again"):
            found.refresh(member, facts(), print, lambda: False)


def not_ready(api: FakeApi) -> None:
    api.node_["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]


def test_a_node_that_was_ready_has_to_be_so_again_before_it_is_released(api: FakeApi) -> None:
    found = scheduler(api)
    held = found.hold(found.member(facts(), "gpu1"), WHY)
    not_ready(api)
    again = scheduler(api)
    of_a_dead_run = again.note(again.member(facts(), "gpu1"), "validating")
    for one in (held, of_a_dead_run):
        with pytest.raises(NotRefreshedError, match="180 s after the change: the Node is not Rea"):
            again.refresh(one, facts(), print, lambda: False)


def test_a_node_that_booted_is_not_ready_before_its_kubelet_has_reported(api: FakeApi) -> None:
    api.node_["status"]["nodeInfo"]["bootID"] = "one"
    found = scheduler(api)
    held = found.hold(found.member(facts(boot_id="one"), "gpu1"), WHY)
    found.refresh(held, facts(boot_id="one"), print, lambda: False)
    with pytest.raises(NotRefreshedError, match="its kubelet has not reported since the boot"):
        found.refresh(held, facts(boot_id="two"), print, lambda: False)
    api.node_["status"]["nodeInfo"]["bootID"] = "two"
    found.refresh(held, facts(boot_id="two"), print, lambda: False)


def test_a_node_that_was_not_ready_before_is_not_waited_for(api: FakeApi) -> None:
    not_ready(api)
    found = scheduler(api)
    held = found.hold(found.member(facts(), "gpu1"), WHY)
    found.refresh(held, facts(), print, lambda: False)


def test_labels_that_another_tool_left_paused_are_told(api: FakeApi) -> None:
    label = "nvidia.com/gpu.deploy.device-plugin"
    api.node_["metadata"]["labels"] = {label: "paused-for-driver-upgrade", f"{label}-x": "true"}
    plugin = pod("plugin", kind="DaemonSet")
    plugin["spec"]["containers"] = [{"image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}]
    api.pods_ = [plugin]
    found = scheduler(api)
    with pytest.raises(NotRefreshedError, match=rf"kubectl label node n1 --overwrite {label}=true"):
        found.refresh(found.member(facts(), "n"), facts(), lambda _: None, lambda: False)


def test_a_conflicting_write_is_tried_again_and_given_up_after_five(api: FakeApi) -> None:
    found = scheduler(api)
    member = found.member(facts(), "gpu1")
    api.conflicts = 4
    assert found.hold(member, WHY).hold is not None
    api.conflicts = 5
    with pytest.raises(ClusterError, match="changed all the time"):
        found.release(member)


def test_only_gpu_pods_leave_for_a_reset_and_all_for_a_reboot(api: FakeApi) -> None:
    api.pods_ = [pod("train", gpus=2), pod("web"), pod("agent-x", kind="DaemonSet")]
    drain(api, Scope.GPU)
    assert [one["metadata"]["name"] for one in api.pods_] == ["web", "agent-x"]
    drain(api, Scope.ALL)
    assert [one["metadata"]["name"] for one in api.pods_] == ["agent-x"]


def test_a_budget_that_says_no_is_asked_again_after_its_time(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1), pod("b", gpus=1)]
    api.refusals["a"] = [
        RefusedRequest("x", 429, retry_after_s=10.0, words="needs 2 healthy pods"),
        RefusedRequest("x", 429, words="needs 2 healthy pods"),
    ]
    clock = Clock()
    told = drain(api, clock=clock)
    assert api.pods_ == []
    assert api.writes.count("evict a") == 3
    assert 15.0 <= clock.now < 20.0
    assert "a/a: needs 2 healthy pods" in told


def test_a_drain_that_takes_too_long_names_the_pod_and_its_budget(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1)]
    api.refusals["a"] = [
        RefusedRequest("x", 429, words="disruption budget keep needs 1") for _ in range(99)
    ]
    with pytest.raises(
        NotDrainedError, match=r"not drained within 30 s: a/a \(disruption budget keep needs 1\)"
    ):
        drain(api, policy=DrainPolicy(node=EvictionRules(timeout_s=30.0)))


def test_an_error_of_the_server_is_final_for_that_pod_and_the_others_leave(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1), pod("b", gpus=1)]
    api.refusals["a"] = [RefusedRequest("more than one PodDisruptionBudget", 500)]
    with pytest.raises(NotDrainedError, match="a/a: more than one PodDisruptionBudget"):
        drain(api)
    assert [one["metadata"]["name"] for one in api.pods_] == ["a"]


def test_a_missing_right_names_the_rule_to_add(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1)]
    words = 'pods "a" is forbidden: User "u" cannot create resource "pods/eviction" in API group "" in the namespace "a"'
    api.refusals["a"] = [RefusedRequest(words, 403)]
    with pytest.raises(NotDrainedError) as caught:
        drain(api)
    assert '{apiGroups: [""], resources: ["pods/eviction"], verbs: ["create"]}' in str(caught.value)


def test_nothing_is_evicted_where_one_pod_may_not_be(api: FakeApi) -> None:
    api.pods_ = [pod("a"), pod("alone", kind="")]
    with pytest.raises(NotDrainedError, match="a/alone: no controller would create it again"):
        drain(api)
    assert api.writes == []


def test_pods_that_are_to_complete_are_waited_for(api: FakeApi) -> None:
    api.pods_ = [pod("job", gpus=1)]
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 20.0:
            api.pods_ = []

    found = kubernetes.Kubernetes(cast(Api, api), sleep=sleep, clock=clock)
    told: list[str] = []
    policy = DrainPolicy(wait_selector="app=job")
    found.drain(found.member(facts(), "n"), Scope.GPU, policy, told.append, lambda: False)
    assert told == ["waiting for a/job to complete"]
    assert api.writes == []


@pytest.mark.parametrize(
    ("phase", "waits"),
    [("Pending", True), ("Succeeded", False), ("Failed", False), ("Unknown", False)],
)
def test_only_pods_that_run_or_start_are_waited_for(api: FakeApi, phase: str, waits: bool) -> None:
    api.pods_ = [{**pod("job"), "status": {"phase": phase}}]
    clock = Clock()
    told = drain(api, Scope.GPU, DrainPolicy("app=job", wait_timeout_s=60.0), clock)
    assert bool(told) is waits
    assert (clock.now > 60.0) is waits


def test_pods_that_do_not_complete_in_time_are_evicted_like_all_others(api: FakeApi) -> None:
    api.pods_ = [pod("job", gpus=1), pod("web")]
    clock = Clock()
    told = drain(api, Scope.GPU, DrainPolicy("app=job", wait_timeout_s=600.0), clock)
    assert told == [
        "waiting for a/job to complete",
        "a/job did not complete within 600 s",
        "evicting a/job",
    ]
    assert 600.0 < clock.now < 610.0
    assert api.writes == ["evict job"]


def test_without_a_limit_a_pod_is_waited_for_until_it_completes(api: FakeApi) -> None:
    api.pods_ = [pod("job"), pod("train", gpus=1)]
    clock = Clock()
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        if clock.now > 86_400.0:
            api.pods_[0]["status"]["phase"] = "Succeeded"
        return False

    found = scheduler(api, clock)
    policy = DrainPolicy("app=job")
    found.drain(found.member(facts(), "n"), Scope.GPU, policy, lambda _: None, stop)
    assert clock.now > 86_400.0
    assert api.writes == ["evict train"]


def test_the_node_is_drained_where_its_gpu_pods_cannot_leave_by_their_own_rules(
    api: FakeApi,
) -> None:
    api.pods_ = [pod("alone", kind="", gpus=1), pod("web"), pod("keep")]
    node = EvictionRules(force=True, pod_selector="app!=keep")
    listing = scheduler(api)
    member = listing.member(facts(), "gpu1")
    workloads = listing.workloads(member, Scope.ALL, DrainPolicy(node=node))
    assert [one.name for one in workloads if one.lost] == ["a/alone"]
    with pytest.raises(NotDrainedError, match="a/alone: no controller"):
        drain(api, Scope.GPU, DrainPolicy(node=node))
    assert api.writes == []
    told = drain(api, Scope.GPU, DrainPolicy(node=node, node_after_gpu_pods=True))
    assert told[0].endswith("pass --set drain.force=true to delete it; draining the whole node")
    assert told[1:] == [
        "evicting a/web",
        "deleting a/alone for good: no controller creates it again",
    ]
    assert sorted(api.writes) == ["evict alone", "evict web"]


def test_the_rules_of_the_node_alone_count_once_gpu_pods_did_not_leave(api: FakeApi) -> None:
    empty = [{"name": "scratch", "emptyDir": {}}]
    api.pods_ = [pod("train", gpus=1, volumes=empty), pod("alone", kind="", gpus=1)]
    policy = DrainPolicy(
        gpu_pods=EvictionRules(delete_empty_dir=True),
        node=EvictionRules(force=True),
        node_after_gpu_pods=True,
    )
    with pytest.raises(NotDrainedError, match="a/train: its emptyDir volume scratch"):
        drain(api, Scope.GPU, policy)
    drain(api, Scope.ALL, policy)  # for a reboot either rule lets a pod with a GPU leave
    assert sorted(api.writes) == ["evict alone", "evict train"]


def test_gpu_pods_that_are_late_cost_the_node_too_and_an_interruption_does_not(
    api: FakeApi,
) -> None:
    api.pods_ = [pod("a", gpus=1), pod("web")]
    no = RefusedRequest("x", 429, words="needs 1")
    api.refusals["a"] = [no] * 8
    policy = DrainPolicy(gpu_pods=EvictionRules(timeout_s=20.0), node_after_gpu_pods=True)
    told = drain(api, Scope.GPU, policy)
    assert any(one.endswith("draining the whole node") for one in told)
    assert api.pods_ == []
    api.pods_ = [pod("a", gpus=1), pod("web")]
    found = scheduler(api)
    with pytest.raises(NotDrainedError, match="interrupted"):
        found.drain(found.member(facts(), "n"), Scope.GPU, policy, print, lambda: True)
    assert len(api.pods_) == 2


def test_a_gpu_pod_that_comes_back_keeps_the_driver_loaded(api: FakeApi) -> None:
    api.pods_ = [pod("agent-x", kind="DaemonSet", gpus=1)]
    with pytest.raises(NotDrainedError, match="its DaemonSet agent would create it again"):
        drain(api, Scope.GPU)
    drain(api, Scope.ALL)
    assert api.writes == []


def test_a_plan_lists_pods_that_are_waited_for(api: FakeApi) -> None:
    api.pods_ = [pod("job"), pod("train", gpus=1), pod("web")]
    found = scheduler(api)
    listed = found.workloads(found.member(facts(), "n"), Scope.GPU, DrainPolicy("app=job"))
    assert [(one.name, one.waited) for one in listed] == [("a/job", True), ("a/train", False)]


NEVER: Json = {
    "metadata": {"namespace": "a", "name": "keep", "generation": 1},
    "spec": {"selector": {}},
    "status": {"observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1},
}


@pytest.mark.parametrize("timeout_s", [0.0, 300.0])
def test_nothing_is_evicted_where_a_budget_of_one_pod_never_allows_it(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    guard = {**NEVER, "spec": {"selector": {"matchLabels": {"app": "b"}}}}
    monkeypatch.setattr(api, "budgets", lambda: [guard])
    api.pods_ = [pod("a", gpus=1), pod("b", gpus=1)]
    words = "Node n1 cannot be drained: a/b: PodDisruptionBudget a/keep never allows a disruption"
    clock = Clock()
    with pytest.raises(NotDrainedError, match=words):
        drain(api, Scope.GPU, DrainPolicy(gpu_pods=EvictionRules(timeout_s=timeout_s)), clock)
    assert api.writes == []
    assert clock.now < 30.0


def test_a_budget_that_was_just_changed_does_not_keep_its_pods(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [[NEVER], [NEVER], []]
    monkeypatch.setattr(api, "budgets", lambda: answers.pop(0))
    api.pods_ = [pod("a", gpus=1)]
    drain(api, Scope.GPU)
    assert api.writes == ["evict a"]


def test_without_a_limit_a_budget_that_no_longer_allows_it_is_told_and_told_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = {**NEVER, "status": {**NEVER["status"], "expectedPods": 2}}
    monkeypatch.setattr(api, "budgets", lambda: [enough])
    api.pods_ = [pod("a", gpus=1)]
    api.refusals["a"] = [RefusedRequest("x", 429, words="needs 1")] * 200
    told = drain(api, Scope.GPU, DrainPolicy(gpu_pods=EvictionRules(timeout_s=0.0)))
    assert told[1] == "a/a: needs 1"
    assert len([one for one in told if one.startswith("still waiting: a/a (needs 1")]) == 3


@pytest.mark.parametrize(
    ("meta", "spec", "ready", "words"),
    [
        ({"finalizers": ["example.net/keep"]}, {}, True, "nobody removes its finalizer example.net/keep"),
        ({}, {}, False, "its Node is NotReady: no kubelet ends it"),
        ({"deletionGracePeriodSeconds": 3600}, {}, True, "its grace period is 3600 s; pass a longer"),
        ({}, {"resourceClaims": [{"name": "gpu"}]}, True, "the kubelet plugin of its DRA driver"),
        ({}, {}, True, "evicted, and still terminating (grace period 30 s)"),
    ],
)  # fmt: skip
def test_a_pod_that_stays_terminating_is_explained(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, meta: Json, spec: Json, ready: bool, words: str
) -> None:
    api.pods_ = [pod("a", gpus=1, **spec)]
    terminating = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}

    def evict(one: Json, grace_period_s: int | None = None, *, dry_run: bool = False) -> None:
        api.pods_[0]["metadata"].update({**terminating, **meta})
        if not ready:
            api.node_["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]

    monkeypatch.setattr(api, "evict", evict)
    with pytest.raises(NotDrainedError) as caught:
        drain(api, Scope.GPU)
    assert words in str(caught.value)


def test_an_interruption_ends_the_wait(api: FakeApi) -> None:
    api.pods_ = [pod("a", gpus=1)]
    found = scheduler(api)
    with pytest.raises(NotDrainedError, match="interrupted"):
        found.drain(
            found.member(facts(), "n"), Scope.ALL, DrainPolicy(), lambda _: None, lambda: True
        )


def test_a_record_that_cannot_be_read_is_still_a_hold() -> None:
    node = {"metadata": {"annotations": {HOLD: "{"}}}
    found = read_hold(node)
    assert found is not None
    assert found.text == "an unreadable record"


def reasons(api: FakeApi) -> list[str]:
    return [one["reason"] for one in api.events]


def entered(api: FakeApi, told: list[str]) -> kubernetes.Kubernetes:
    """A run that has begun; the Lease is not what these tests are about."""
    found = scheduler(api)
    found.nodes.events.begin(WHY, told.append, "add the rule")
    return found


def test_events_say_what_happens_to_a_node(api: FakeApi) -> None:
    told: list[str] = []
    found = entered(api, told)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    found.drain(member, Scope.GPU, PLAIN, told.append, lambda: False)
    found.refresh(member, facts(), told.append, lambda: False)
    found.release(member)
    assert reasons(api) == [
        "GpustateHold",
        "GpustateDrained",
        "GpustateChanged",
        "GpustateReleased",
    ]
    assert told == []
    event = api.events[0]
    assert event["involvedObject"]["name"] == "n1"
    assert event["message"] == "cordoned (run 20261124-1 of ann@ops1: driver 580)"
    assert (event["type"], event["reportingComponent"]) == ("Normal", "gpustate")
    assert len({one["metadata"]["name"] for one in api.events}) == 4


def test_a_failure_and_a_foreign_cordon_are_events_too(api: FakeApi) -> None:
    found = entered(api, [])
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    found.note(member, "changing")
    found.note(member, "failed")
    api.cordoned_by("kubectl-cordon")
    found.release(member)
    assert reasons(api) == ["GpustateHold", "GpustateFailed", "GpustateReleased"]
    assert [one["type"] for one in api.events] == ["Normal", "Warning", "Normal"]
    assert "left cordoned: cordoned by kubectl-cordon" in api.events[-1]["message"]


def test_without_the_right_to_create_events_there_is_one_note(api: FakeApi) -> None:
    api.denied = {"create events"}
    told: list[str] = []
    found = entered(api, told)
    found.nodes.events.begin(WHY, told.append, "add the rule")
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    assert found.release(member) == ""
    assert told == ["note: no Events are recorded on Nodes: add the rule"]
    assert api.events == []


def test_a_refused_event_is_noted_once_and_fails_nothing(api: FakeApi) -> None:
    api.event_error = RefusedRequest("create event: quota exceeded", 403)
    told: list[str] = []
    found = entered(api, told)
    member = found.hold(found.member(facts(), "gpu1"), WHY)
    assert found.release(member) == ""
    assert told == ["note: no more Events are recorded on Nodes: create event: quota exceeded"]


def test_an_event_has_no_secret_and_is_short_enough(api: FakeApi) -> None:
    masking.remember("S3cr3t-in-the-reason")
    found = scheduler(api)
    why = Why("r", "ann@ops1", "S3cr3t-in-the-reason " + "x" * 2000)
    found.nodes.events.begin(why, lambda _: None, "")
    found.hold(found.member(facts(), "gpu1"), why)
    (event,) = api.events
    assert "(secret)" in event["message"]
    assert len(event["message"]) == 1000
