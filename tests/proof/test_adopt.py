"""A running GPU Operator's cluster is adopted and released, and no pod restarts.

Real: the Operator's program, API server, garbage collector, DaemonSet and Deployment controllers, scheduler. Virtual: the
Nodes, whose pods are reported as running; the Operator's own pod, in whose place its program runs on this machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuoperator
import jsonschema
import pytest
import yaml
from commands import Ran, gpustate
from gpuoperator import NAMESPACE, POLICIES, Deployed, GpuOperator
from localcluster import NODES, PATHS, LocalCluster, local_cluster
from operatorpolicies import policy

import gpustate as package
from gpustate.cluster.api import connect
from gpustate.cluster.objects import Objects
from gpustate.documents import Json
from gpustate.manifests.ownership import FIELD_MANAGER, OWNER
from gpustate.reconcile.adopting import RECORD, Adopter, plan_adoption
from gpustate.reconcile.applying import Applier
from gpustate.reconcile.cluster_notes import operator_notes
from gpustate.reconcile.planning import Action, Target, is_ours, plan
from gpustate.reconcile.releasing import Releaser, plan_release

pytestmark = [pytest.mark.proof, pytest.mark.node]

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENT = f"{PATHS['Deployment'].format(NAMESPACE)}/gpu-operator"
#: Names of the Operator's own field manager, by the name of its program.
MANAGER = "gpu-operator"
#: The garbage collector takes up to this to notice that an owner is gone.
COLLECTED_S = 8.0


@dataclass
class Bed:
    """A cluster with the Operator."""

    cluster: LocalCluster
    operator: GpuOperator
    policy: Json
    file: Path

    def run(self, verb: str, *words: object, code: int | None = 0) -> Ran:
        target = (self.file,) if verb != "release" else ()
        return gpustate(verb, *target, "--kubeconfig", self.cluster.kubeconfig, *words, code=code)

    def pods(self) -> dict[str, str]:
        """Uids of the pods of DaemonSets, with how often their containers were started."""
        return {
            pod["metadata"]["uid"]: pod["metadata"]["name"]
            for pod in self.cluster.client.get(PODS)["items"]
            if any(one["kind"] == "DaemonSet" for one in pod["metadata"].get("ownerReferences", ()))
        }

    def everything(self) -> dict[str, Json]:
        """All objects of the kinds that the Operator creates, without those of the cluster itself."""
        return {
            f"{item['kind'].lower()}/{item['metadata']['name']}": item
            for kind in PATHS
            if kind not in ("Namespace", "Deployment")
            for item in self.cluster.list(kind, NAMESPACE)
            if not item["metadata"]["name"].startswith(("system:", "kube", "cluster-", "default"))
            and item["metadata"]["name"] not in ("admin", "edit", "view")
        }

    def policies(self) -> list[Json]:
        found: list[Json] = self.cluster.client.get(POLICIES)["items"]
        return found

    def wait_ready(self) -> str:
        """Wait until the Operator reports its ClusterPolicy as ready; return its uid."""

        def ready() -> bool:
            states = [(one.get("status") or {}).get("state") for one in self.policies()]
            return states == ["ready"]

        self.cluster.wait("ClusterPolicy to be ready", ready)
        uid = str(self.policies()[0]["metadata"]["uid"])
        self.operator.settled(uid)
        return uid


@pytest.fixture(scope="module")
def release() -> gpuoperator.Release:
    return gpuoperator.release()


@pytest.fixture
def bed(release: gpuoperator.Release, tmp_path: Path) -> Iterator[Bed]:
    """A cluster whose Operator is ready, with the host's driver."""
    with local_cluster(tmp_path / "cluster", controllers=True) as cluster:
        operator = GpuOperator(cluster, release)
        operator.install()
        for name in ("gpu1", "gpu2"):
            cluster.client.create(NODES, gpuoperator.gpu_node(name))
        deployed = Deployed(operator)
        deployed.create()
        document = policy(release.sample(), "host driver")
        file = tmp_path / "clusterpolicy.yaml"
        file.write_text(yaml.safe_dump(document))
        operator.create(document)
        made = Bed(cluster, operator, document, file)
        try:
            made.wait_ready()
            yield made
        finally:
            deployed.close()


@pytest.fixture
def objects(bed: Bed) -> Iterator[Objects]:
    api = connect(str(bed.cluster.kubeconfig))
    yield Objects(api)
    api.close()


def versions(found: dict[str, Json]) -> dict[str, str]:
    return {title: one["metadata"]["resourceVersion"] for title, one in found.items()}


def kept(found: dict[str, Json]) -> dict[str, tuple[str, int]]:
    """What does not change unless an object is created again, or its specification changes."""
    return {
        title: (one["metadata"]["uid"], one["metadata"].get("generation", 0))
        for title, one in found.items()
    }


def of_operator(found: dict[str, Json]) -> list[str]:
    return [title for title, one in found.items() if one["metadata"].get("ownerReferences")]


def touched(found: dict[str, Json]) -> list[str]:
    """Objects with a label or a field manager of gpustate."""
    return [
        title
        for title, one in found.items()
        if OWNER.items() & (one["metadata"].get("labels") or {}).items()
        or any(
            entry.get("manager") == FIELD_MANAGER
            for entry in one["metadata"].get("managedFields", ())
        )
    ]


def assert_adopted(bed: Bed, before: dict[str, Json], pods: dict[str, str]) -> None:
    after = bed.everything()
    record = f"configmap/{RECORD}"
    assert record in after
    del after[record]
    assert kept(after) == kept(before)
    assert of_operator(after) == []
    for title, one in before.items():
        if one["metadata"].get("ownerReferences"):
            assert is_ours(after[title]), title
            managers = {entry["manager"] for entry in after[title]["metadata"]["managedFields"]}
            assert MANAGER not in managers, title
    assert bed.policies() == []
    assert bed.cluster.client.get(DEPLOYMENT)["spec"]["replicas"] == 0
    assert bed.pods() == pods
    time.sleep(COLLECTED_S)
    assert set(bed.everything()) == {*after, record}
    assert bed.pods() == pods


def assert_released(bed: Bed, before: dict[str, Json], pods: dict[str, str]) -> None:
    bed.cluster.wait("the Operator's pod", lambda: bed.operator.running)
    uid = bed.wait_ready()
    after = bed.everything()
    assert kept(after) == kept(before)
    assert of_operator(after) == of_operator(before)
    for title in of_operator(after):
        assert [one["uid"] for one in after[title]["metadata"]["ownerReferences"]] == [uid], title
    assert touched(after) == []
    assert bed.pods() == pods


def test_a_cluster_is_adopted_and_released_and_no_pod_restarts(bed: Bed) -> None:
    before, pods = bed.everything(), bed.pods()
    spec = bed.policies()[0]["spec"]
    assert len(pods) >= 10
    assert len(of_operator(before)) >= 30

    planned = bed.run("cluster", "adopt", "--dry-run")
    assert versions(bed.everything()) == versions(before)
    version = bed.operator.release.name
    assert f"GPU Operator {version} (namespace gpu-operator, Helm release" in planned.out
    assert "~ daemonset/nvidia-device-plugin-daemonset  adopt" in planned.out
    assert "~ daemonset/nvidia-operator-validator  adopt; not in the policy" in planned.out
    assert "- clusterpolicy/gpu-cluster-policy  delete" in planned.out

    done = bed.run("cluster", "adopt", "--yes")
    assert f"objects adopted, {len(pods)} pods run as before" in done.out
    assert_adopted(bed, before, pods)

    again = versions(bed.everything())
    assert "nothing to adopt" in bed.run("cluster", "adopt", "--yes").out
    assert versions(bed.everything()) == again

    back = bed.run("cluster", "release", "--yes", "--start-operator")
    assert "deployment/gpu-operator started" in back.out
    assert_released(bed, before, pods)
    assert bed.policies()[0]["spec"] == spec
    assert "0 objects" not in back.out
    bed.run("cluster", "adopt", "--yes")
    assert_adopted(bed, {k: v for k, v in bed.everything().items() if RECORD not in k}, pods)


class Ended(BaseException):
    """The process is killed."""


class Killed:
    """Requests of a process that is killed after some writes.

    Args:
        objects: of the cluster.
        writes: how many writes it makes.
    """

    def __init__(self, objects: Objects, writes: int) -> None:
        self._objects = objects
        self._left = writes
        self.server = objects.server

    def list(self, *words: Any, **options: Any) -> list[Json]:
        return self._objects.list(*words, **options)

    def find(self, *words: Any, **options: Any) -> list[Json]:
        return self._objects.find(*words, **options)

    def apply(self, item: Json, *, force: bool = False, dry_run: bool = False) -> Json:
        return self._write(self._objects.apply(item, force=force, dry_run=dry_run), dry_run)

    def create(self, item: Json, *, dry_run: bool = False) -> Json:
        return self._write(self._objects.create(item, dry_run=dry_run), dry_run)

    def patch(self, item: Json, operations: Sequence[Json]) -> Json:
        return self._write(self._objects.patch(item, operations), False)

    def delete(self, item: Json, *, orphan: bool = False) -> None:
        self._objects.delete(item, orphan=orphan)
        self._write({}, False)

    def _write(self, result: Json, dry_run: bool) -> Json:
        if not dry_run:
            self._left -= 1
            if self._left == 0:
                raise Ended
        return result


def test_adopt_and_release_continue_when_killed_after_any_write(bed: Bed, objects: Objects) -> None:
    before, pods = bed.everything(), bed.pods()

    def adopt_with(writes: int) -> bool:
        some = Killed(objects, writes)
        adoption = plan_adoption(some, [], NAMESPACE)
        if adoption is None:
            return True
        try:
            done = Adopter(some, 60.0).adopt(adoption)
        except Ended:
            return False
        assert done.failures == []
        return True

    def release_with(writes: int) -> bool:
        some = Killed(objects, writes)
        try:
            done = Releaser(some).release(plan_release(some, NAMESPACE), start=True)
        except Ended:
            return False
        assert done.failures == []
        return True

    killed = sum(1 for _ in iter(lambda: adopt_with(1), True))
    print(f"killed {killed} times while adopting")
    assert killed >= 2 * len(of_operator(before))
    assert_adopted(bed, before, pods)
    killed = sum(1 for _ in iter(lambda: release_with(1), True))
    assert killed >= 2 * len(of_operator(before))
    assert_released(bed, before, pods)


def test_after_adoption_apply_replaces_what_differs_and_deletes_the_rest(
    bed: Bed, objects: Objects
) -> None:
    bed.run("cluster", "adopt", "--yes")
    rendered = json.loads(gpustate("cluster", "render", bed.file, "-o", "json", code=0).out)[
        "items"
    ]
    target = Target(rendered, NAMESPACE)
    changes = plan(objects, target)
    assert [one.reason for one in changes if one.action is Action.REFUSED] == []
    assert "daemonset/nvidia-operator-validator" in {
        f"daemonset/{one.item['metadata']['name']}"
        for one in changes
        if one.action is Action.DELETE
    }
    done = Applier(objects, target, 120.0).apply(changes)
    assert done.failures == []
    assert done.unready == []
    assert {one.action for one in plan(objects, target)} <= {Action.UNCHANGED, Action.FOREIGN}


def check(document: Json) -> Json:
    """The one cluster of a document that matches its published schema."""
    verb = document["format"].removeprefix("gpustate.").partition("/")[0]
    schema = json.loads((Path(package.__file__).parent / f"cli/schema/{verb}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    (found,) = document["clusters"]
    result: Json = found
    return result


def test_restart_applies_the_policy_at_once_and_deletes_nothing(bed: Bed) -> None:
    before, pods = bed.everything(), bed.pods()
    planned = check(bed.run("cluster", "adopt", "--dry-run", "-o", "json").document)
    restarts = {one["object"] for one in planned["objects"] if one.get("restarts_pods")}
    assert "daemonset/nvidia-device-plugin-daemonset" in restarts
    assert versions(bed.everything()) == versions(before)

    done = check(bed.run("cluster", "adopt", "--yes", "--restart", "-o", "json").document)
    assert done["failures"] == []
    assert set(done["adopted"]) == {one["object"] for one in planned["objects"]}
    assert done["pods"] == len(pods)
    assert restarts <= set(done["applied"])
    assert set(before) <= set(bed.everything())
    after = bed.pods()
    for uid, name in pods.items():
        stays = f"daemonset/{name.rpartition('-')[0]}" not in restarts
        assert (uid in after) is stays, name

    released = check(bed.run("cluster", "release", "--yes", "-o", "json").document)
    assert released["started"] is False
    assert set(done["adopted"]) <= set(released["released"])


def test_plan_names_the_operator_and_refuses_its_objects(bed: Bed, objects: Objects) -> None:
    before = versions(bed.everything())
    rendered = json.loads(gpustate("cluster", "render", bed.file, "-o", "json", code=0).out)[
        "items"
    ]
    changes = plan(objects, Target(rendered, NAMESPACE, force=True))
    refused = [one for one in changes if one.action is Action.REFUSED]
    assert {one.reason for one in refused} == {
        "it belongs to the GPU Operator (ClusterPolicy gpu-cluster-policy)"
    }
    (note,) = operator_notes(objects, changes)
    assert bed.operator.release.name in note
    assert "gpustate cluster adopt" in note
    assert versions(bed.everything()) == before


def test_a_driver_in_containers_is_not_adopted(bed: Bed) -> None:
    client = bed.cluster.client
    path = f"{POLICIES}/{bed.policy['metadata']['name']}"
    client.request("PATCH", path, {"spec": {"driver": {"enabled": True}}}, "merge-patch+json")
    driver = PATHS["DaemonSet"].format(NAMESPACE) + "/nvidia-driver-daemonset"
    bed.cluster.wait(
        "driver pods", lambda: client.get(driver)["status"]["desiredNumberScheduled"] == 2
    )
    before = versions(bed.everything())
    done = bed.run("cluster", "adopt", "--yes", code=5)
    assert "runs the driver as a container on 2 nodes" in done.out
    assert "drained" in done.out
    assert versions(bed.everything()) == before


def test_an_operator_that_argo_cd_would_start_again_is_not_adopted(bed: Bed) -> None:
    client = bed.cluster.client
    tracked = {"argocd.argoproj.io/tracking-id": "gpus:apps/Deployment:gpu-operator/gpu-operator"}
    patch = {"metadata": {"annotations": tracked}}
    client.request("PATCH", DEPLOYMENT, patch, "merge-patch+json")
    done = bed.run("cluster", "adopt", "--dry-run", code=5)
    assert "Argo CD application gpus would start it again; suspend that first" in done.out
    bed.run("cluster", "adopt", "--dry-run", "--force-conflicts")
