"""2,000 Nodes and 10,000 pods: a plan of objects and of a rollout costs seconds of CPU, and lists every kind once.

Real: API server and etcd, whose audit log counts the requests. Nodes and pods are objects: nothing runs them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import largecluster
import pytest
from localcluster import LocalCluster, local_cluster

from gpustate import Policy
from gpustate.api.clusters import Clusters
from gpustate.cli.objects import clusters
from gpustate.cluster.objects import opened
from gpustate.core.change import Disruption
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult
from gpustate.engine.maintenance import Preview, Subject
from gpustate.manifests import ClusterSettings, Component, Exporter
from gpustate.plan.document import plan_document
from gpustate.reconcile.applying import Applier
from gpustate.reconcile.planning import plan
from gpustate.rollout.options import SCHEDULERS
from gpustate.states.preflight import PreflightPassed

pytestmark = [pytest.mark.proof, pytest.mark.node]
NODES, PODS = 2000, 10_000
#: Of gpustate, for the plan of objects and that of a rollout together.
CPU_S = 10.0
POLICY = Policy(
    PreflightPassed(), cluster=ClusterSettings(dcgm=Component(), dcgm_exporter=Exporter())
)
CONTEXT = {"inventory": "i", "person": "me", "retry": []}


@pytest.fixture(scope="module")
def cluster(lab_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("large")) as found:
        largecluster.fill(found, NODES, PODS)
        yield found


@pytest.fixture(scope="module")
def results() -> list[NodeResult]:
    return [largecluster.result(number) for number in range(1, NODES + 1)]


@pytest.fixture(scope="module")
def inventory(cluster: LocalCluster, results: list[NodeResult]) -> Inventory:
    variables = {"gpustate_kubeconfig": str(cluster.kubeconfig)}
    nodes = tuple(InventoryNode(one.name, vars=variables) for one in results)
    return Inventory("i", nodes)


def measured(
    cluster: LocalCluster, work: Callable[[], Any]
) -> tuple[Any, float, Counter[tuple[str, str]]]:
    """The result, seconds of CPU, and requests by verb and resource."""
    before, began = len(cluster.audit()), time.process_time()
    result = work()
    cpu_s = time.process_time() - began
    requests = Counter(
        (entry["verb"], entry.get("objectRef", {"resource": entry["requestURI"]})["resource"])
        for entry in cluster.audit(before)
        if "gpustate/" in entry.get("userAgent", "")
    )
    lists = {resource: count for (verb, resource), count in requests.items() if verb == "list"}
    assert set(lists.values()) == {1}, lists
    return result, cpu_s, requests


def objects_of(inventory: Inventory) -> Clusters:
    found = clusters(POLICY, "p", inventory, {"cluster_objects": True}, absent=False)
    assert found is not None
    return found


def test_plans_cost_seconds_and_list_every_kind_once(
    cluster: LocalCluster, inventory: Inventory, results: list[NodeResult]
) -> None:
    def planned() -> Any:
        made = plan_document(
            POLICY, "p", results, run="r", created="2026-11-25T00:00:00Z", context=CONTEXT
        )
        return objects_of(inventory).document(made, results)

    def rollout() -> list[Preview]:
        with SCHEDULERS.access(inventory) as access:
            assert access is not None
            assert len(access.nodes()) >= NODES
            with SCHEDULERS.maintenance(inventory, access=access) as maintenance:
                return [maintenance.preview(subject(one)) for one in results]

    document, first_s, requests = measured(cluster, planned)
    (data,) = document["clusters"]
    actions = Counter((one["object"].startswith("node/"), one["action"]) for one in data["objects"])
    assert actions[True, "update"] == NODES
    assert requests["patch", "nodes"] == 1, "one dry run says whether Nodes may be labelled"

    previews, second_s, requests = measured(cluster, rollout)
    assert sum(requests.values()) < 20
    assert len(previews) == NODES
    assert all("pod" in " ".join(one.notes) for one in previews)
    print(f"cpu: objects {first_s:.1f} s, rollout {second_s:.1f} s")
    assert first_s + second_s <= CPU_S

    (kubeconfig,) = set(objects_of(inventory).kubeconfigs.values())
    with opened(kubeconfig) as api:
        target, listed = objects_of(inventory)._target(api, kubeconfig, results)
        # Nothing runs the DaemonSets.
        assert not Applier(api, target, 0.1).apply(plan(api, target, listed)).failures
    _, again_s, requests = measured(cluster, planned)
    assert requests["patch", "nodes"] == 0, "a labelled Node costs no request"
    assert again_s <= CPU_S


def subject(result: NodeResult) -> Subject:
    facts: dict[str, Any] = {key: value for key, value in result.facts.items() if key != "pci"}
    node = NodeFacts(**facts, agents=("kubelet",))
    return Subject(
        InventoryNode(result.name, vars={}), node, Disruption.REBOOT, lambda: ("driver",)
    )
