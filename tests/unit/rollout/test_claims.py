"""Pods that hold claims leave before the DRA driver is deleted, and their Nodes are in service again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate.cluster.api import connect
from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.rollout.claims import Claims
from gpustate.schedulers.base import NotDrainedError
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
        self.api = connect(str(self.gate.kubeconfig(folder, TOKEN)))
        self.said: list[str] = []

    def claims(self, *kept: str, force: bool = False) -> Claims:
        rules = EvictionRules(force=force)
        return Claims(Kubernetes(self.api), DrainPolicy(gpu_pods=rules), kept)

    def drained(self, claims: Claims) -> Any:
        return claims.drained("20261130-1", self.said.append, lambda: False)

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

    def orphan(self, name: str) -> None:
        del self.cluster.objects["pods"][f"jobs/{name}"]["metadata"]["ownerReferences"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.api.close()
    found.gate.close()


def test_all_nodes_are_cordoned_before_the_first_pod_leaves(bench: Bench) -> None:
    with bench.drained(bench.claims()):
        assert bench.cordoned() == ["n1", "n2"]
        assert bench.pods() == {"web-n1", "web-n2"}
    assert bench.said[:3] == [
        "holding n1 until the DRA driver is deleted",
        "holding n2 until the DRA driver is deleted",
        "evicting jobs/train-n1",
    ]
    assert bench.cordoned() == bench.held() == []


def test_a_node_that_keeps_the_driver_keeps_its_pods(bench: Bench) -> None:
    claims = bench.claims("n2")
    note = "n1: before the DRA driver is deleted, jobs/train-n1 is evicted"
    assert list(claims.preview()) == [(note, False)]
    with bench.drained(claims):
        assert bench.cordoned() == ["n1"]
        assert "train-n2" in bench.pods()


def test_pods_that_cannot_leave_are_named_and_no_node_stays_held(bench: Bench) -> None:
    bench.orphan("train-n2")
    (refusal,) = (words for words, stuck in bench.claims().preview() if stuck)
    assert "jobs/train-n2 cannot leave: no controller" in refusal
    assert "pass --drain-force" in refusal
    with pytest.raises(NotDrainedError, match=r"jobs/train-n2.*pass --drain-force"):
        bench.drained(bench.claims()).__enter__()
    assert bench.cordoned() == bench.held() == []
    assert "train-n2" in bench.pods()
    assert not any(stuck for _, stuck in bench.claims(force=True).preview())


def test_nothing_is_written_without_such_pods(bench: Bench) -> None:
    with bench.drained(bench.claims("n1", "n2")):
        assert bench.cordoned() == []
    assert not bench.cluster.all("leases")
