"""Objects of many ClusterPolicies, as the GPU Operator creates them and as gpustate renders them, field by field.

Real: the Operator's program with its assets, and an API server, which fills in defaults on both sides. There is one Node,
which nothing runs on. What differs on purpose is in ``operatorexceptions``, and in docs/cluster-reference.md with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gpuoperator
import pytest
import yaml
from gpuoperator import NAMESPACE, GpuOperator
from localcluster import NODES, local_cluster
from operatordifferences import Found, compare, reasons_in, unexpected, unused
from operatorexceptions import in_containers, of_drivers, wanted
from operatorpolicies import (
    BESIDE,
    DRIVERS,
    IN_CONTAINERS,
    LATER,
    LATER_IN_CONTAINERS,
    NEVER_READY,
    SECRETS,
    VARIANTS,
    config_map,
    config_maps,
    nvidia_driver,
    policy,
    policy_in_containers,
)

from gpustate import policies
from gpustate.documents import Json
from gpustate.gpu_operator import history
from gpustate.gpu_operator.objects import images
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of

pytestmark = [pytest.mark.proof, pytest.mark.node]

PAGE = Path(__file__).parents[2] / "docs/cluster-reference.md"

_differences: dict[str, list[Found]] = {}
_in_containers: dict[str, list[Found]] = {}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuOperator]:
    release = gpuoperator.release()
    with local_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        found = GpuOperator(cluster, release)
        found.install()
        cluster.client.create(NODES, gpuoperator.gpu_node("gpu1"))
        found.start()
        yield found


def rendered(operator: GpuOperator, document: Json, folder: Path) -> list[Json]:
    """The objects of a policy, with the API server's defaults."""
    file = folder / "policy.yaml"
    config = config_map(document)
    file.write_text(yaml.safe_dump_all([document, *([config] if config else [])]))
    loaded = policies.load(str(file), release=operator.release.name)
    assert loaded.cluster is not None
    made = build(settings_of(loaded), images(operator.release.name))
    return [
        one if one["kind"] == "Namespace" else operator.cluster.dry_run(one, NAMESPACE)
        for one in made
        if not _is_beside(one)
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_objects_are_the_operator_s_but_for_wanted_differences(
    operator: GpuOperator, tmp_path: Path, name: str
) -> None:
    release = operator.release.name
    if name in LATER and history.before(release, LATER[name]):
        pytest.skip(f"{release} lacks the field")
    document = policy(operator.release.sample(), name)
    ours = rendered(operator, document, tmp_path)
    config = config_map(document)
    if config is not None:
        operator.cluster.client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", config)
    uid = operator.create(document)
    try:
        theirs = [*operator.settled(uid), *_shared(operator, document)]
    finally:
        operator.remove(document, uid)
        if config is not None:
            operator.cluster.delete(config, NAMESPACE)
    found = compare(theirs, ours)
    _differences[name] = found
    assert [str(one) for one in unexpected(found, wanted(release))] == []


#: The system of the only Node.
_CHOICE = "containers: all\nsystems: [ubuntu22.04/5.15.0-100-generic]\n"


@pytest.fixture(scope="module")
def beside(operator: GpuOperator) -> None:
    """ConfigMaps and Secrets that policies name: the Operator reads them."""
    for one in config_maps():
        operator.cluster.client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", one)
    for name in SECRETS:
        item = {"metadata": {"name": name}, "stringData": {"A": "b"}}
        operator.cluster.client.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", item)


@pytest.mark.parametrize("name", IN_CONTAINERS)
def test_containers_are_the_operator_s_but_for_wanted_differences(
    operator: GpuOperator, beside: None, tmp_path: Path, name: str
) -> None:
    release = operator.release.name
    if name in LATER_IN_CONTAINERS and history.before(release, LATER_IN_CONTAINERS[name]):
        pytest.skip(f"{release} lacks the field")
    document = policy_in_containers(operator.release.sample(), name)
    folder = tmp_path / "policy.d"
    folder.mkdir()
    (folder / "gpustate.yaml").write_text(_CHOICE)
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(config_maps()))
    ours = rendered(operator, document, tmp_path)
    uid = operator.create(document)
    try:
        theirs = [
            *operator.settled(uid, ready=name not in NEVER_READY),
            *_shared(operator, document),
        ]
    finally:
        operator.remove(document, uid)
    found = compare(theirs, ours)
    _in_containers[name] = found
    assert [str(one) for one in unexpected(found, wanted(release, containers=True))] == []


@pytest.mark.parametrize("name", DRIVERS)
def test_drivers_of_nvidiadrivers_are_the_operator_s_but_for_wanted_differences(
    operator: GpuOperator, beside: None, tmp_path: Path, name: str
) -> None:
    release = operator.release.name
    if history.before(release, "v26.3.0"):
        pytest.skip(f"{release} renders them in another form")
    document = policy_in_containers(operator.release.sample(), "sample")
    document["spec"]["driver"] = {"useNvidiaDriverCRD": True}
    driver = nvidia_driver(name)
    folder = tmp_path / "policy.d"
    folder.mkdir()
    (folder / "gpustate.yaml").write_text(_CHOICE)
    (folder / "objects.yaml").write_text(yaml.safe_dump_all([*config_maps(), driver]))
    ours = rendered(operator, document, tmp_path)
    uid = operator.create(document)
    try:
        theirs = operator.of_driver(driver)
    finally:
        operator.remove(document, uid)
    kinds = ("DaemonSet", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    mine = [one for one in ours if one["metadata"]["name"].startswith("nvidia-gpu-driver-")]
    found = compare(_of_one_driver(theirs, kinds), _of_one_driver(mine, kinds))
    table = [*wanted(release, containers=True), *of_drivers()]
    assert [str(one) for one in unexpected(found, table)] == []
    assert any(one["kind"] == "DaemonSet" for one in theirs)


def _of_one_driver(items: list[Json], kinds: tuple[str, ...]) -> list[Json]:
    """Its objects, with one name for its DaemonSet: the names end in different hashes."""
    (name,) = (one["metadata"]["name"] for one in items if one["kind"] == "DaemonSet")
    text = json.dumps([one for one in items if one["kind"] in kinds])
    found: list[Json] = json.loads(text.replace(name, "nvidia-driver-daemonset-of-one"))
    return found


def _is_beside(one: Json) -> bool:
    return one["kind"] == "ConfigMap" and one["metadata"]["name"] in BESIDE


def _shared(operator: GpuOperator, document: Json) -> list[Json]:
    """The namespace, and the ConfigMap of the policy: they belong to nobody."""
    (namespace,) = (
        one
        for one in operator.cluster.list("Namespace", "")
        if one["metadata"]["name"] == NAMESPACE
    )
    config = config_map(document)
    del namespace["spec"], namespace["metadata"]["labels"]["kubernetes.io/metadata.name"]
    return [namespace, *([config] if config else [])]


def test_every_exception_occurs(operator: GpuOperator) -> None:
    if len(_differences) < len(VARIANTS) - len(LATER):
        pytest.skip("only some policies were compared")
    found = [one for some in _differences.values() for one in some]
    assert unused(found, wanted(operator.release.name)) == []


def test_every_exception_of_containers_occurs(operator: GpuOperator) -> None:
    if len(_in_containers) < len(IN_CONTAINERS):
        pytest.skip("only some policies were compared")
    found = [one for some in _in_containers.values() for one in some]
    assert [entry.field for entry in unused(found, in_containers())] == []


def test_every_reason_is_documented() -> None:
    documented = reasons_in(PAGE.read_text())
    used = {
        entry.reason
        for name in history.releases()
        for containers in (False, True)
        for entry in wanted(name, containers=containers)
    }
    assert used <= documented
