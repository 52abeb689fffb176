"""The objects of clusters through the Python API: planned, applied, and unchanged the second time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from fakeobjects import FakeObjects

from gpustate import Policy, api
from gpustate.api import clusters as api_clusters
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.errors import LockHeld, UsageError
from gpustate.manifests import ClusterSettings, Component
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import Kind
from gpustate.rollout.options import Schedulers
from gpustate.schedulers.base import Why
from gpustate.states.nouveau import NouveauBlacklisted

POLICY = Policy(
    NouveauBlacklisted(), cluster=ClusterSettings(namespace="gpus", dcgm=Component(image="d:v1"))
)
OTHERS = POLICY.with_cluster(replace(settings_of(POLICY), namespace="others"))
NODES = Inventory("hosts", (InventoryNode("gpu1", vars={"gpustate_kubeconfig": "k"}),))


class Scheduler:
    """Its Lease, which another run may have."""

    def __init__(self) -> None:
        self.lease = self
        self.runs: list[str] = []
        self.other = ""

    def hold(self, why: Why, emit: object, stop: object) -> None:
        if self.other:
            raise LockHeld(f"{self.other} changes nodes")
        self.runs.append(why.run)

    def drop_lease(self) -> None:
        self.runs.append("")


class Cluster(FakeObjects):
    """One in which others look for an Operator, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()

    def find(self, kind: Kind, namespace: str, **more: Any) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    fake = Cluster()
    counts = ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")
    fake.statuses = [dict.fromkeys(counts, 1) | {"observedGeneration": 1}]

    @contextmanager
    def opened(kubeconfig: object) -> Iterator[Cluster]:
        yield fake

    monkeypatch.setattr(api_clusters, "opened", opened)
    monkeypatch.setattr(api.Clusters, "_admit", lambda *args, **more: None)
    monkeypatch.setattr(api_clusters, "connected", nullcontext)
    monkeypatch.setattr(api_clusters, "Kubernetes", lambda api, died: fake.scheduler)
    return fake


def actions(rows: list[dict[str, Any]]) -> set[str]:
    return {row["action"] for cluster in rows for row in cluster["objects"]}


def test_objects_are_planned_and_applied_by_a_program(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    clusters = api.cluster_objects(POLICY, NODES, emit=lines.append)
    assert actions(clusters.plan([])) == {"create"}
    assert not cluster.writes
    (applied,) = clusters.apply([])
    assert not applied.get("failures")
    assert actions([applied]) == {"create"}
    assert cluster.writes
    assert any("nvidia-dcgm" in line for line in lines)
    assert actions(api.cluster_objects(POLICY, NODES).plan([])) == {"unchanged"}
    assert capsys.readouterr() == ("", "")


def test_objects_are_written_under_the_lease_of_their_cluster(cluster: Cluster) -> None:
    made = replace(api.cluster_objects(POLICY, NODES), run="r1")
    cluster.scheduler.other = "ann@ops1 run r0"
    (refused,) = made.apply([])
    assert refused["refusals"] == ["ann@ops1 run r0 changes nodes"]
    assert not cluster.writes
    cluster.scheduler.other = ""
    cluster.scheduler.runs.clear()
    made.apply([])
    assert cluster.writes
    assert cluster.scheduler.runs == ["r1", ""]
    made.apply([])
    assert cluster.scheduler.runs == ["r1", ""], "nothing is written"
    ignored = Schedulers(ignore=True)
    (done,) = api.cluster_objects(OTHERS, NODES, schedulers=ignored).apply([])
    assert "create" in actions([done])
    assert cluster.scheduler.runs == ["r1", ""]


def test_settings_beside_the_policy_count(cluster: Cluster) -> None:
    clusters = api.cluster_objects(OTHERS, NODES, release="v25.10.0")
    assert clusters.namespace == "others"
    assert "/k8s-device-plugin:" in clusters.settings.device_plugin.image


@pytest.mark.parametrize(
    ("policy", "inventory", "words"),
    [
        (Policy(NouveauBlacklisted()), NODES, "no objects of a cluster"),
        (POLICY, Inventory("hosts", (InventoryNode("gpu1"),)), "no node has a kubeconfig"),
    ],
)
def test_what_has_no_objects_or_no_cluster_is_refused(
    policy: Policy, inventory: Inventory, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        api.cluster_objects(policy, inventory)
