"""A saved plan with objects on a real API server: applied as it is, refused after an edit, without secrets.

The node is this machine, of which the policy wants nothing, so nothing is written on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Ran, gpustate
from localcluster import LocalCluster, local_cluster

pytestmark = [pytest.mark.long, pytest.mark.node]
POLICY = """\
format: gpustate.policy/1
states:
cluster:
  namespace: gpus
  device_plugin: {env: {MY_TOKEN: hunter2hunter2}}
"""
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
ON = ("-i", "localhost,")


@pytest.fixture(scope="module")
def cluster(lab_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), controllers=True) as found:
        yield found


def writes(cluster: LocalCluster) -> int:
    """How often gpustate wrote, dry runs aside."""
    return sum(
        entry["verb"] not in ("get", "list", "watch")
        and "gpustate/" in entry.get("userAgent", "")
        and "dryRun=All" not in entry["requestURI"]
        for entry in cluster.audit()
    )


def test_a_saved_plan_is_applied_as_it_is_and_refused_after_an_edit(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    policy, saved = tmp_path / "policy.yaml", tmp_path / "plan.json"
    pages = [tmp_path / "plan.html", tmp_path / "plan.md"]
    policy.write_text(POLICY)
    login = ("--kubeconfig", cluster.kubeconfig)

    def plan(*words: object, code: int = 0) -> Ran:
        return gpustate(
            "plan", policy, *ON, "--cluster-objects", *login, "--out", saved, *words, code=code
        )

    def apply(code: int) -> Ran:
        return gpustate("apply", saved, *ON, *login, "--yes", code=code)

    made = plan(*(word for page in pages for word in ("--report", page)))
    assert f"gpustate apply {saved} -i localhost, --kubeconfig {cluster.kubeconfig}" in made.out
    assert writes(cluster) == 0
    for file in (saved, *pages):
        assert "runtimeclass/nvidia" in file.read_text()
        assert "hunter2" not in file.read_text()
    assert "+ runtimeclass/nvidia  create" in gpustate("plan", saved, code=0).out

    apply(0)
    path = "/apis/apps/v1/namespaces/gpus/daemonsets/nvidia-device-plugin-daemonset"
    (container, *_) = cluster.client.get(path)["spec"]["template"]["spec"]["containers"]
    assert {"name": "MY_TOKEN", "value": "hunter2hunter2"} in container["env"]
    gpustate("drift", policy, *ON, "--cluster-objects", *login, code=0)
    assert "in the plan, unchanged now" in apply(5).err

    plan("--detailed-exitcode")
    edit = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}
    cluster.client.request("PATCH", RUNTIME_CLASS, edit, "merge-patch+json")
    before = writes(cluster)
    refused = apply(5).err
    assert "has changed since the plan was made: runtimeclass/nvidia (unchanged in the" in refused
    assert refused.count("\n") == 1
    assert writes(cluster) == before

    plan("--remove")
    assert writes(cluster) == before
    apply(0)
    names = [one["metadata"]["name"] for one in cluster.client.get("/api/v1/namespaces")["items"]]
    assert "gpus" not in names
    assert RUNTIME_CLASS.rpartition("/")[2] not in str(
        cluster.client.get(RUNTIME_CLASS.rpartition("/")[0])["items"]
    )
