"""What `remove` takes from a cluster that watchers and runs have left there, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate.cluster.api import Api, connect
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.rollout.marks import RECORD, remove_all, remove_records
from gpustate.schedulers.base import Why
from gpustate.schedulers.kubernetes.members import HOLD
from gpustate.schedulers.lease import NAME, WATCH, ClusterLease
from gpustate.schedulers.mig_state import CONFIG, RUN_ANNOTATION, STATE

WHY = Why("20261124-1", "ann@ops1", "driver 580")
MARKS = {RECORD: "{}", RUN_ANNOTATION: "20261124-1", "example.com/theirs": "x"}


def written_by(manager: str) -> list[dict[str, Any]]:
    labels = {"f:labels": {f"f:{STATE}": {}}}
    return [{"manager": manager, "operation": "Update", "fieldsV1": {"f:metadata": labels}}]


@pytest.fixture
def cluster() -> StubCluster:
    """Nodes that were set up, and whose MIG layout was changed by label: by gpustate, and by the MIG manager."""
    found = StubCluster({name: (f"boot-{name}", f"machine-{name}", "") for name in ("n1", "n2")})
    for name, manager in (("n1", "gpustate"), ("n2", "nvidia-mig-manager")):
        labels = {CONFIG: "all-1g", STATE: "success"}
        meta = {"labels": labels, "annotations": MARKS, "managedFields": written_by(manager)}
        found.edit_node(name, {"metadata": meta})
    return found


@pytest.fixture
def api(cluster: StubCluster, tmp_path: Path) -> Iterator[Api]:
    gate = Gate(cluster.answer)
    gate.open()
    found = connect(str(gate.kubeconfig(tmp_path, TOKEN)))
    yield found
    found.close()
    gate.close()


def notes(cluster: StubCluster, name: str) -> set[str]:
    return set(cluster.node(name)["metadata"]["annotations"])


def test_everything_of_gpustate_goes_and_what_others_wrote_stays(
    cluster: StubCluster, api: Api
) -> None:
    for name in (NAME, WATCH):
        lease = ClusterLease(api, name)
        lease.hold(WHY, lambda _: None, lambda: False)
        lease.release()
    assert len(cluster.all("leases")) == 2
    assert list(remove_all(api)) == []
    assert cluster.all("leases") == []
    for name in ("n1", "n2"):
        assert notes(cluster, name) == {"example.com/theirs"}
    assert cluster.node("n1")["metadata"]["labels"] == {CONFIG: "all-1g"}
    assert cluster.node("n2")["metadata"]["labels"] == {CONFIG: "all-1g", STATE: "success"}


def test_what_a_run_still_needs_stays(cluster: StubCluster, api: Api) -> None:
    cluster.edit_node("n1", {"metadata": {"annotations": {HOLD: "{}"}}})
    lease = ClusterLease(api)
    lease.hold(WHY, lambda _: None, lambda: False)
    assert list(remove_all(api)) == ["Lease gpustate stays: ann@ops1 run 20261124-1 holds it"]
    assert len(cluster.all("leases")) == 1
    assert notes(cluster, "n1") == {HOLD, RUN_ANNOTATION, "example.com/theirs"}
    assert STATE in cluster.node("n1")["metadata"]["labels"]
    lease.release()


def test_a_missing_right_is_named_with_its_rule(cluster: StubCluster, api: Api) -> None:
    lease = ClusterLease(api)
    lease.hold(WHY, lambda _: None, lambda: False)
    lease.release()
    cluster.denied = {("delete", "coordination.k8s.io", "leases")}
    (line,) = remove_all(api)
    assert line.startswith("Lease gpustate stays: ")
    assert 'resources: ["leases"], verbs: ["delete"]' in line


def test_records_go_from_nodes_that_a_policy_was_removed_from(
    cluster: StubCluster, api: Api
) -> None:
    def result(name: str, status: NodeStatus) -> NodeResult:
        facts: dict[str, object] = {"boot_id": f"boot-{name}", "machine_id": f"machine-{name}"}
        return NodeResult(name, status, facts=facts)

    results = [result("n1", NodeStatus.OK), result("n2", NodeStatus.LOCKED)]
    assert list(remove_records(api, results)) == []
    assert notes(cluster, "n1") == {RUN_ANNOTATION, "example.com/theirs"}
    assert notes(cluster, "n2") == set(MARKS)
