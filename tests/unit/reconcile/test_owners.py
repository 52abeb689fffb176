"""Who else decides about objects: the GPU Operator, Argo CD, Flux, Helm, OLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gpuoperator import deployment

from gpustate.documents import Json
from gpustate.manifests.kinds import Kind
from gpustate.reconcile.owners import Operator, find_operator, gitops, operator_owner


class Cluster:
    """Objects of the Operator's kinds."""

    def __init__(self, **items: list[Json]) -> None:
        self.items = items

    def find(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None
    ) -> list[Json]:
        assert namespace == ("*" if kind.namespaced else "")
        found = [{"kind": kind.name, **one} for one in self.items.get(kind.plural, ())]
        wanted = (labels or {}).items()
        return [one for one in found if wanted <= (one["metadata"].get("labels") or {}).items()]


def policy(name: str, created: str, state: str = "ready") -> Json:
    return {
        "metadata": {"name": name, "creationTimestamp": created},
        "status": {"state": state, "namespace": "gpus"},
    }


def deployed(**changes: Any) -> Json:
    found = deployment("v26.7.0")
    found["metadata"] |= {"namespace": "gpu-operator", **changes}
    return found


def test_there_is_no_operator_in_an_empty_cluster() -> None:
    assert find_operator(Cluster()) is None


def test_an_operator_of_helm_is_described_in_one_line() -> None:
    policies = [policy("later", "2026-01-02T00:00:00Z", "ignored"), policy("first", "2026-01-01")]
    found = find_operator(Cluster(deployments=[deployed()], clusterpolicies=policies))
    assert found is not None
    assert found.policy is not None
    assert found.policy["metadata"]["name"] == "first"
    assert found.describe() == (
        "GPU Operator v26.7.0 (namespace gpu-operator, Helm release gpu-operator/gpu-operator, "
        "ClusterPolicy first: ready, ClusterPolicy later: ignored)"
    )


def test_other_deployments_are_none() -> None:
    other = deployed(labels={"app": "gpu-operator"})
    assert find_operator(Cluster(deployments=[other])) is None


def test_a_clusterpolicy_without_a_deployment_is_an_operator() -> None:
    found = find_operator(Cluster(clusterpolicies=[policy("x", "2026-01-01")]))
    assert found is not None
    assert (
        found.describe() == "GPU Operator (namespace gpus, ClusterPolicy x: ready, no Deployment)"
    )
    assert not found.running


@pytest.mark.parametrize(
    ("labels", "image", "version"),
    [
        ({"app.kubernetes.io/version": "v26.7.0"}, "x:y", "v26.7.0"),
        ({"helm.sh/chart": "gpu-operator-v25.3.4"}, "x:y", "v25.3.4"),
        ({}, "registry.example.com:5000/nvidia/gpu-operator:v24.9.2-ubi9", "v24.9.2-ubi9"),
        ({}, "registry.example.com/gpu-operator:v24.9.2@sha256:00", "v24.9.2"),
        ({}, "registry.example.com/gpu-operator@sha256:00", ""),
        ({}, "registry.example.com:5000/gpu-operator", ""),
        ({"app.kubernetes.io/version": "devel-ubi8"}, "x:devel", ""),
    ],
)
def test_the_version_is_that_of_labels_or_image(labels: Json, image: str, version: str) -> None:
    one = deployed(labels=labels)
    one["spec"]["template"]["spec"]["containers"][0]["image"] = image
    assert Operator((), one).version == version


def test_olm_is_named_before_helm() -> None:
    owner = {"kind": "ClusterServiceVersion", "name": "gpu-operator-certified.v26.7.0"}
    found = Operator((), deployed(ownerReferences=[owner]))
    assert found.source == "OLM's ClusterServiceVersion gpu-operator-certified.v26.7.0"


def test_an_operator_that_is_scaled_to_0_runs_until_its_pods_are_gone() -> None:
    one = deployed()
    one["spec"]["replicas"] = 0
    assert not Operator((), one).running
    assert Operator((), one).describe().endswith("scaled to 0)")
    assert Operator((), {**one, "status": {"replicas": 1}}).running


FLUX = "kustomize.toolkit.fluxcd.io"
#: gpustate applies the label to objects of node feature discovery itself.
NFD_LABELS: Json = {
    "manager": "gpustate",
    "operation": "Apply",
    "fieldsV1": {"f:metadata": {"f:labels": {"f:app.kubernetes.io/instance": {}}}},
}


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({}, ""),
        ({"labels": {"app.kubernetes.io/instance": "gpus"}}, ""),
        (
            {"annotations": {"argocd.argoproj.io/tracking-id": "gpus:apps/DaemonSet:ns/x"}},
            "Argo CD application gpus",
        ),
        ({"labels": {"argocd.argoproj.io/instance": "gpus"}}, "Argo CD application gpus"),
        (
            {
                "labels": {"app.kubernetes.io/instance": "gpus"},
                "managedFields": [{"manager": "argocd-controller"}],
            },
            "Argo CD application gpus",
        ),
        (
            {"managedFields": [{"manager": "argocd-controller"}]},
            "",
        ),  # without a mark it tracks nothing
        (
            {
                "labels": {"app.kubernetes.io/instance": "node-feature-discovery"},
                "managedFields": [{"manager": "argocd-controller"}, NFD_LABELS],
            },
            "",
        ),
        (
            {"labels": {f"{FLUX}/name": "gpus", f"{FLUX}/namespace": "flux-system"}},
            "Flux Kustomization flux-system/gpus",
        ),
        (
            {"labels": {"helm.toolkit.fluxcd.io/name": "gpu-operator"}},
            "Flux HelmRelease default/gpu-operator",
        ),
    ],
)
def test_argo_cd_and_flux_are_named(meta: Json, name: str) -> None:
    assert gitops({"metadata": meta}) == name


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ({"kind": "ClusterPolicy", "name": "x", "controller": True}, "ClusterPolicy x"),
        ({"kind": "NVIDIADriver", "name": "x", "controller": True}, "NVIDIADriver x"),
        ({"kind": "ClusterPolicy", "name": "x"}, ""),
        ({"kind": "ReplicaSet", "name": "x", "controller": True}, ""),
    ],
)
def test_the_operator_s_objects_are_those_it_controls(owner: Json, name: str) -> None:
    assert operator_owner({"metadata": {"ownerReferences": [owner]}}) == name
