"""Which pods use a GPU, and whose budget can never be met; what leaves is compared with kubectl on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.documents import Json
from gpustate.schedulers import eviction
from gpustate.schedulers.base import Scope
from gpustate.schedulers.eviction import Cluster


def pod(**spec: Any) -> Json:
    status = spec.pop("status", {"phase": "Running"})
    return {
        "metadata": {"namespace": "a", "name": "p", "labels": {"app": "train"}},
        "spec": spec,
        "status": status,
    }


def container(**resources: Any) -> Json:
    return {"resources": resources}


def claim(driver: str, **more: Any) -> Json:
    results = [{"driver": driver, "device": "gpu-0", **more}]
    return {
        "metadata": {"namespace": "a", "name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


GPU = {"nvidia.com/gpu": "1"}
BY_CLAIM = [{"name": "gpu", "resourceClaimName": "c"}]
BY_TEMPLATE = {
    "phase": "Running",
    "resourceClaimStatuses": [{"name": "g", "resourceClaimName": "c"}],
}
EXTENDED = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "c"}}


@pytest.mark.parametrize(
    ("one", "found", "uses"),
    [
        (pod(containers=[container(limits=GPU)]), None, True),
        (pod(containers=[container(requests=GPU)]), None, True),
        (pod(containers=[container(limits={"nvidia.com/gpu": "0"})]), None, True),
        (pod(containers=[container(limits={"cpu": "1"})]), None, False),
        (pod(containers=[container(limits={"nvidia.com/mig-1g.10gb": "1"})]), None, True),
        (pod(containers=[container(limits={"nvidia.com/gpu.shared": "1"})]), None, True),
        (pod(containers=[container(limits={"nvidia.com/gpu-fast": "1"})]), None, True),
        (pod(containers=[container(limits={"nvidia.com/hostdev": "1"})]), None, False),
        (pod(containers=[{}], initContainers=[container(limits=GPU)]), None, True),
        (pod(containers=[container(limits=GPU)], status={"phase": "Succeeded"}), None, False),
        (pod(containers=[{}], resourceClaims=BY_CLAIM), claim("gpu.nvidia.com"), True),
        (pod(containers=[{}], resourceClaims=BY_CLAIM), claim("net.example.net"), False),
        (pod(containers=[{}], resourceClaims=BY_CLAIM), claim("gpu.nvidia.com", adminAccess=True), False),
        (pod(containers=[{}], resourceClaims=BY_CLAIM), None, True),
        (pod(containers=[{}], status=BY_TEMPLATE), claim("gpu.nvidia.com"), True),
        (pod(containers=[{}], status=EXTENDED), claim("gpu.nvidia.com"), True),
    ],
)  # fmt: skip
def test_what_holds_a_gpu(one: Json, found: Json | None, uses: bool) -> None:
    claims = {} if found is None else {"a/c": found}
    assert eviction.uses_gpu(one, claims) is uses


def test_pods_whose_gpus_do_not_change_stay_unless_all_have_to_leave() -> None:
    by_plugin = pod(containers=[container(limits=GPU)])
    by_claim_too = {**by_plugin, "spec": {**by_plugin["spec"], "resourceClaims": BY_CLAIM}}
    cluster = Cluster(claims={"a/c": claim("gpu.nvidia.com")})
    policy = DrainPolicy(gpu_pods=EvictionRules(force=True), node=EvictionRules(force=True))
    for one, spared, leaves in (
        (by_plugin, {"u"}, False),
        (by_plugin, {"other"}, True),
        (by_claim_too, {"u"}, True),
    ):
        one["metadata"]["uid"] = "u"
        found = eviction.select([one], Scope.GPU, policy, cluster, spared=spared)
        assert bool(found.leave) is leaves
        assert eviction.select([one], Scope.ALL, policy, cluster, spared=spared).leave


def budget(
    name: str = "b",
    *,
    allowed: int = 0,
    desired: int = 1,
    expected: int = 1,
    healthy: int = 0,
    **spec: Any,
) -> Json:
    return {
        "metadata": {"namespace": "a", "name": name, "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "train"}}, **spec},
        "status": {
            "observedGeneration": 1,
            "disruptionsAllowed": allowed,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "currentHealthy": healthy,
        },
    }


@pytest.mark.parametrize(
    ("budgets", "words"),
    [
        ([], ""),
        ([budget(allowed=1)], ""),
        ([budget(desired=2, expected=3)], ""),
        ([budget(desired=3, expected=3)], "never allows a disruption: it requires 3 of 3 pods"),
        ([budget("one"), budget("two")], "PodDisruptionBudgets a/one and a/two both select it"),
        ([budget(unhealthyPodEvictionPolicy="AlwaysAllow")], ""),
        ([{**budget(), "metadata": {"namespace": "a", "name": "b", "generation": 2}}], "no current status"),
        ([budget(selector={"matchLabels": {"app": "web"}})], ""),
        ([budget(desired=2, expected=2, healthy=2)], ""),  # the pod itself is not ready
        ([budget(desired=2, expected=2, healthy=1)], "never allows a disruption"),
        ([budget(desired=0, expected=0)], ""),
        ([budget(selector={})], "never allows a disruption"),
    ],
)  # fmt: skip
def test_a_budget_that_can_never_be_met_is_found(budgets: list[Json], words: str) -> None:
    found = eviction.dead_end(pod(containers=[{}]), Cluster.of((), (), budgets))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Pending"])
def test_what_is_deleted_without_a_budget_has_no_dead_end(phase: str) -> None:
    one = pod(containers=[{}], status={"phase": phase})
    assert eviction.dead_end(one, Cluster.of((), (), [budget()])) == ""


@pytest.mark.parametrize(
    ("image", "is_operand"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", True),
        ("nvcr.io/nvidia/k8s/dcgm-exporter@sha256:aa", True),
        ("registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0", True),
        ("example.net/my-dcgm-exporter-thing:1", False),
        ("busybox", False),
    ],
)
def test_operands_are_known_by_their_image(image: str, is_operand: bool) -> None:
    one = pod(containers=[{"image": image}])
    assert not eviction.is_operand(one), "no DaemonSet would create it again"
    one["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    assert eviction.is_operand(one) is is_operand
