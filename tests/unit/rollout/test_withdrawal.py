"""Nodes that lose what offers their GPUs take no pod meanwhile, and those with claims leave; then they are in service again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate.cluster.api import connect, connected
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.errors import LockHeld
from gpustate.rollout.maintenance import WITHDRAWS
from gpustate.rollout.withdrawal import Withdrawal
from gpustate.schedulers import lease as lease_module
from gpustate.schedulers.base import NotDrainedError, Why
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate.schedulers.kubernetes.members import HOLD


class Bench:
    """Two Nodes, on each a pod with a claim and one without."""

    def __init__(self, folder: Path) -> None:
        self.cluster = StubCluster({name: (name, name, name) for name in ("n1", "n2")})
        self.cluster.objects["poddisruptionbudgets"].clear()
        for name in ("n1", "n2"):
            pod = self.cluster.objects["pods"][f"jobs/train-{name}"]
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
            pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
            device = {"driver": "gpu.nvidia.com", "device": "gpu-0", "pool": name}
            results = [{**device, "request": "gpus"}]
            claim = {
                "spec": {},
                "metadata": {"name": name, "namespace": "jobs"},
                "status": {"allocation": {"devices": {"results": results}}},
            }
            self.cluster.objects["resourceclaims"][f"jobs/{name}"] = claim
        self.gate = Gate(self.cluster.answer)
        self.gate.open()
        self.kubeconfig = Kubeconfig(str(self.gate.kubeconfig(folder, TOKEN)))
        self.api = connect(self.kubeconfig.path)
        self.said: list[str] = []

    def withdrawal(
        self,
        *kept: str,
        force: bool = False,
        plugin: bool = False,
        claims: bool = True,
        absent: bool = False,
    ) -> Withdrawal:
        rules = EvictionRules(force=force)
        cluster = Kubernetes(self.api)
        return Withdrawal(cluster, DrainPolicy(gpu_pods=rules), kept, plugin, claims, absent)

    def held_for(self, withdrawal: Withdrawal, run: str = "20261130-1") -> Any:
        return withdrawal.held(run, self.said.append, lambda: False)

    def cordoned(self) -> list[str]:
        nodes = self.cluster.all("nodes")
        return sorted(one["metadata"]["name"] for one in nodes if one["spec"].get("unschedulable"))

    def held(self) -> list[str]:
        nodes = self.cluster.all("nodes")
        return [n["metadata"]["name"] for n in nodes if HOLD in n["metadata"].get("annotations", {})]  # fmt: skip

    def pods(self) -> set[str]:
        """Those that existed at first."""
        names = (name.partition("/")[2] for name in self.cluster.objects["pods"])
        return {name for name in names if name.endswith(("-n1", "-n2"))}

    def end_plugin(self, node: str) -> None:
        pods = self.cluster.objects["pods"]
        for name in [one for one in pods if one.startswith("nvidia/")]:
            if pods[name]["spec"]["nodeName"] == node:
                del pods[name]

    def orphan(self, name: str) -> None:
        del self.cluster.objects["pods"][f"jobs/{name}"]["metadata"]["ownerReferences"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.api.close()
    found.gate.close()


def test_all_nodes_are_cordoned_before_the_first_pod_leaves(bench: Bench) -> None:
    with bench.held_for(bench.withdrawal()):
        assert bench.cordoned() == ["n1", "n2"]
        assert bench.pods() == {"web-n1", "web-n2"}
    assert bench.said[:2] == [
        "holding n[1-2] until what offers their GPUs is deleted",
        "evicting jobs/train-n1",
    ]
    assert bench.cordoned() == bench.held() == []


def test_a_node_that_keeps_the_driver_keeps_its_pods(bench: Bench) -> None:
    claims = bench.withdrawal("n2")
    note = "n1: before the DRA driver is deleted, jobs/train-n1 is evicted"
    assert list(claims.preview()) == [(note, False)]
    with bench.held_for(claims):
        assert bench.cordoned() == ["n1"]
        assert "train-n2" in bench.pods()


def test_pods_that_cannot_leave_are_named_and_no_node_stays_held(bench: Bench) -> None:
    bench.orphan("train-n2")
    (refusal,) = (words for words, stuck in bench.withdrawal().preview() if stuck)
    assert "jobs/train-n2 cannot leave: no controller" in refusal
    assert "pass --set drain.force=true" in refusal
    with pytest.raises(NotDrainedError, match=r"jobs/train-n2.*pass --set drain.force=true"):
        bench.held_for(bench.withdrawal()).__enter__()
    assert bench.cordoned() == bench.held() == []
    assert "train-n2" in bench.pods()
    assert not any(stuck for _, stuck in bench.withdrawal(force=True).preview())


def test_nothing_is_written_without_such_pods(bench: Bench) -> None:
    with bench.held_for(bench.withdrawal("n1", "n2")):
        assert bench.cordoned() == []
    assert not bench.cluster.all("leases")


def test_nothing_is_written_while_another_run_has_the_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.5)
    monkeypatch.setattr(lease_module, "_POLL_S", 0.1)
    kept = bench.withdrawal("n1", "n2")
    with kept.held("20261130-1", bench.said.append, lambda: False, writes=True):
        with connected(bench.kubeconfig) as api:
            other = Withdrawal(Kubernetes(api), DrainPolicy(), (), plugin=False, claims=False)
            held = other.held("20261130-2", bench.said.append, lambda: False, writes=True)
            with pytest.raises(LockHeld, match="20261130-1 changes"):
                held.__enter__()
        (lease,) = bench.cluster.all("leases")
        assert "20261130-1" in lease["spec"]["holderIdentity"]
        assert bench.cordoned() == []
    (lease,) = bench.cluster.all("leases")
    assert not lease["spec"].get("holderIdentity")


def test_nodes_that_lose_the_device_plugin_take_no_pod_and_keep_theirs(bench: Bench) -> None:
    pods = bench.pods()
    bench.end_plugin("n2")
    with bench.held_for(bench.withdrawal(plugin=True, claims=False)):
        assert bench.cordoned() == bench.held() == ["n1"], "nothing comes to a Node without GPUs"
        assert bench.pods() == pods
    assert bench.cordoned() == bench.held() == []


def test_a_node_that_stays_cordoned_is_named_with_the_command_that_ends_it(bench: Bench) -> None:
    withdrawal = bench.withdrawal(plugin=True, claims=False)
    with bench.held_for(withdrawal):
        entry = {
            "manager": "kubectl-cordon",
            "operation": "Update",
            "time": "2999-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
        }
        bench.cluster.edit_node("n1", {"metadata": {"managedFields": [entry]}})
    assert bench.cordoned() == ["n1"]
    words = "cordoned by kubectl-cordon; once that is over: kubectl uncordon n1"
    assert withdrawal.left == [f"Node n1 stays cordoned: {words}"]
    assert bench.said[-1] == withdrawal.left[0]


def test_a_node_that_somebody_has_cordoned_stays_so_and_does_not_matter(bench: Bench) -> None:
    bench.cluster.edit_node("n1", {"spec": {"unschedulable": True}})
    with bench.held_for(bench.withdrawal(plugin=True, claims=False)):
        assert bench.held() == ["n2"]
    assert bench.cordoned() == ["n1"]


def test_nodes_that_a_killed_run_has_left_held_are_released(bench: Bench) -> None:
    cluster = Kubernetes(bench.api)
    for member in cluster.members():
        cluster.hold(member, Why("20261129-1", "ann@ops1", WITHDRAWS))
        bench.end_plugin(member.name)
    with bench.held_for(bench.withdrawal(claims=False, absent=True)):
        assert bench.held() == ["n1", "n2"]
    assert bench.cordoned() == bench.held() == []


def test_a_node_on_which_a_change_has_failed_stays_held(bench: Bench) -> None:
    cluster = Kubernetes(bench.api)
    (member, _) = cluster.members()
    cluster.hold(member, Why("20261129-1", "ann@ops1", "driver 580"))
    with bench.held_for(bench.withdrawal(plugin=True)):
        assert "train-n1" not in bench.pods()
    assert bench.held() == ["n1"]
