"""Objects of every policy on real API servers: accepted, equal when read again, removed, with the documented rights.

Real: API server and etcd, of three versions, the definitions of prometheus-operator. There are no controllers and no
nodes, so namespaces are not deleted to the end, and no pod is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apiserver
import clusterusers
import pytest
import shares
import yaml
from everyobject import DEFINITIONS, DRA, NFD_VALUES, WHOLE, edit
from labkubernetes import wait_for

from gpustate import policies
from gpustate.cluster.api import connect
from gpustate.cluster.objects import Objects
from gpustate.errors import ClusterError
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings, Component, nfd
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.components import PARTS
from gpustate.manifests.kinds import BY_NAME, KINDS, Kind, title
from gpustate.manifests.ownership import NFD_DEFINITION
from gpustate.plan.objects import lines
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data
from gpustate.reconcile.features import FEATURES
from gpustate.reconcile.planning import Action, Change, Target, plan
from gpustate_lab import programs
from gpustate_lab.spec import KUBERNETES_VERSIONS

pytestmark = [pytest.mark.long, pytest.mark.node]
TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "manifests"
POLICIES = sorted(file.name.partition(".")[0] for file in GOLDEN.glob("*.policy.yaml"))
WITH_DRA = replace(WHOLE, dra_driver=DRA)
Item = dict[str, Any]


NEWEST, *OLDER = KUBERNETES_VERSIONS
DEFINITION_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(
    scope="module", params=[NEWEST, *(pytest.param(one, marks=pytest.mark.proof) for one in OLDER)]
)
def server(
    request: pytest.FixtureRequest, lab_programs: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apiserver.ApiServer]:
    with apiserver.running(request.param, tmp_path_factory.mktemp("api")) as found:
        chart = programs.source("dra-driver", print) / "deployments/helm/dra-driver-nvidia-gpu"
        for file in sorted((chart / "crds").glob("*.yaml")):
            for document in yaml.safe_load_all(file.read_text()):
                found.request("POST", DEFINITION_PATH, document)
        yield found


@pytest.fixture
def objects(server: apiserver.ApiServer) -> Iterator[Objects]:
    yield from connected(server.kubeconfig(apiserver.ADMIN))


def connected(kubeconfig: Path) -> Iterator[Objects]:
    api = connect(str(kubeconfig))
    try:
        yield Objects(api)
    finally:
        api.close()


def golden(name: str) -> ClusterSettings:
    """The settings of a policy that has a golden file."""
    return settings_of(policies.load(str(GOLDEN / f"{name}.policy.yaml")))


def every_component() -> ClusterSettings:
    """Settings with every component, those that replace a state of the nodes among them."""
    containers, machines = golden("containers"), golden("machines")
    return replace(
        WITH_DRA,
        drivers=containers.drivers,
        systems=machines.systems,
        toolkit=containers.toolkit,
        validator=containers.validator,
        mig_manager=containers.mig_manager,
        vgpu_manager=machines.vgpu_manager,
        vgpu_device_manager=machines.vgpu_device_manager,
        vfio_manager=machines.vfio_manager,
    )


def target(settings: ClusterSettings) -> Target:
    return Target(build(settings, images()), settings.namespace)


def absent(settings: ClusterSettings) -> Target:
    return Target((), settings.namespace, absent=True)


def apply(objects: Objects, wanted: Target) -> Applied:
    """Apply; workloads are never rolled out, since nothing runs them."""
    waited = 0.1 if wanted.items else 30.0
    return Applier(objects, wanted, waited).apply(plan(objects, wanted))


def failures(done: Applied) -> list[str]:
    refused = [f"{one.item}: {one.reason}" for one in done.changes if one.action == "refused"]
    return refused + list(done.failures)


def by_action(changes: list[Change]) -> dict[Action, set[str]]:
    found: dict[Action, set[str]] = {}
    for one in changes:
        found.setdefault(one.action, set()).add(one.item["kind"])
    return found


def page(changes: list[Change]) -> list[str]:
    data = cluster_data("s", "n", changes)
    return ["".join(piece for piece, _ in one) for one in lines(data)]


def test_kinds_that_the_cluster_lacks_are_skipped_until_it_has_them(objects: Objects) -> None:
    settings = replace(WHOLE, namespace="lacking", node_feature_discovery=None)
    found = plan(objects, target(settings))
    skipped = by_action(found)[Action.SKIPPED]
    assert skipped == {"ServiceMonitor", "PrometheusRule", "NodeFeatureRule"}
    (line,) = (one for one in page(found) if "servicemonitor/" in one)
    assert "skipped: the cluster has no ServiceMonitor: install prometheus-operator, or" in line
    assert not failures(apply(objects, target(settings)))
    for one in DEFINITIONS:
        objects.apply(one)

    def served() -> bool:
        try:
            return not objects.list(BY_NAME["PodMonitor"], "lacking")
        except ClusterError:
            return False

    wait_for(served, "the definitions are served")
    assert by_action(plan(objects, target(settings)))[Action.CREATE] == {
        *("ServiceMonitor", "PrometheusRule")
    }
    assert not failures(apply(objects, target(settings)))
    assert not failures(apply(objects, absent(settings)))


#: An object of each kind that others have, beside gpustate's own.
THEIRS = "theirs"


def test_every_kind_is_applied_repaired_after_an_edit_and_removed(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    for one in DEFINITIONS:
        objects.apply(one)
    settings = replace(every_component(), namespace="every")
    wanted = target(settings)
    assert {one["kind"] for one in wanted.items} == {kind.name for kind in KINDS}
    assert all(part.settings(settings).enabled for part in PARTS)
    assert not failures(apply(objects, wanted))
    again = plan(objects, wanted)
    assert set(by_action(again)) == {Action.UNCHANGED}, page(again)
    _create_theirs(server, wanted.items)
    before = everything(server)

    for item in wanted.items:
        server.request(
            "PATCH", f"{_path(item)}?fieldManager=kubectl-edit", edit(item), kind="merge-patch+json"
        )
    edited = everything(server)
    drifted = plan(objects, wanted)
    assert set(by_action(drifted)) == {Action.REFUSED}
    for one in drifted:
        expected = {"spec", "data", "rules", "subjects"} & edit(one.item).keys()
        fields = [row.field for row in one.differences]
        assert any(field.startswith("metadata.labels") for field in fields), fields
        assert all(any(f.startswith(name) for f in fields) for name in expected), (one.item, fields)
        assert 'with "kubectl-edit"' in one.reason
    assert apply(objects, wanted).changes
    assert everything(server) == edited, "what is refused is not written"

    assert not failures(apply(objects, replace(wanted, force=True)))
    since = len(writes(server))
    assert set(by_action(apply(objects, wanted).changes)) == {Action.UNCHANGED}
    assert len(writes(server)) == since, "a second apply writes nothing"
    labels = [server.request("GET", _path(one))["metadata"]["labels"] for one in wanted.items]
    assert {one["app.kubernetes.io/managed-by"] for one in labels} == {"gpustate"}

    assert not failures(apply(objects, absent(settings)))
    after, ours = everything(server), {_path(one) for one in wanted.items}
    used = "nodefeaturerules.nfd.k8s-sigs.io"
    assert ours & set(after) == {
        apiserver.path_of(BY_NAME["Namespace"], name="every"),
        apiserver.path_of(BY_NAME["CustomResourceDefinition"], name=used),
    }
    assert {name: after.get(name) for name in set(before) - ours} == {
        name: before[name] for name in set(before) - ours
    }
    server.request("DELETE", apiserver.path_of(BY_NAME["NodeFeatureRule"], name=THEIRS))
    server.request("DELETE", apiserver.path_of(BY_NAME["CustomResourceDefinition"], name=used))


def _create_theirs(server: apiserver.ApiServer, items: Sequence[Item]) -> None:
    """Others have an object of each kind, and one in gpustate's namespace."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {"metadata": {"name": "other", "labels": labels}}
    server.request("POST", apiserver.path_of(BY_NAME["Namespace"]), namespace)
    for name, item in {one["kind"]: one for one in items}.items():
        if name in ("Namespace", "CustomResourceDefinition"):
            continue  # those of the definitions of prometheus-operator
        theirs = {**item, "metadata": {"name": THEIRS}}
        server.request("POST", apiserver.path_of(BY_NAME[name], "other"), theirs)
    server.request(
        "POST",
        apiserver.path_of(BY_NAME["ConfigMap"], "every"),
        {"metadata": {"name": THEIRS}, "data": {"a": "b"}},
    )


def everything(server: apiserver.ApiServer) -> dict[str, str]:
    """Every object of all kinds, with the version of its content."""
    found: dict[str, str] = {}
    for kind in KINDS:
        try:
            items = server.request("GET", apiserver.path_of(kind))["items"]
        except apiserver.Refused:
            continue  # its definition is gone
        for item in items:
            meta = item["metadata"]
            path = apiserver.path_of(kind, meta.get("namespace", ""), meta["name"])
            found[path] = meta["resourceVersion"]
    return found


def writes(server: apiserver.ApiServer) -> list[str]:
    """What gpustate wrote, without dry runs."""
    return [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in server.audit()
        if "gpustate/" in entry.get("userAgent", "")
        and entry["verb"] not in ("get", "list", "watch")
        and "dryRun=All" not in entry["requestURI"]
    ]


def _path(item: Item) -> str:
    meta = item["metadata"]
    return apiserver.path_of(BY_NAME[item["kind"]], meta.get("namespace", ""), meta["name"])


@pytest.mark.parametrize("name", POLICIES)
def test_objects_of_a_policy_are_accepted_and_equal_when_read_again(
    objects: Objects, name: str
) -> None:
    settings = replace(golden(name), namespace=name)
    assert not failures(apply(objects, target(settings)))
    again = plan(objects, target(settings))
    assert not {Action.UPDATE, Action.CREATE, Action.REFUSED} & set(by_action(again)), page(again)
    assert not failures(apply(objects, absent(settings)))


@pytest.mark.parametrize("name", ["", *POLICIES])
def test_another_manager_applies_the_same_objects_without_a_conflict(
    server: apiserver.ApiServer, objects: Objects, name: str
) -> None:
    """As Argo CD and Flux do with what ``gpustate cluster render`` prints."""
    for one in DEFINITIONS:
        objects.apply(one)
    namespace = f"shared-{name or 'every'}"
    settings = replace(golden(name) if name else every_component(), namespace=namespace)
    wanted = target(settings)
    assert not failures(apply(objects, wanted))
    for item in wanted.items:
        path = f"{_path(item)}?fieldManager=argocd-controller"
        server.request("PATCH", path, item, kind="apply-patch+yaml")
    assert set(by_action(apply(objects, wanted).changes)) == {Action.UNCHANGED}
    assert not failures(apply(objects, absent(settings)))


def test_node_feature_discovery_of_others_is_used_and_kept(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    settings = replace(WHOLE, namespace="others")
    theirs = [one for one in nfd.objects({}, "x", rules=False) if "versions" in one.get("spec", {})]
    for one in theirs:
        bare = {**one, "metadata": {"name": one["metadata"]["name"]}}
        server.request("PATCH", f"{_path(one)}?fieldManager=helm", bare, kind="apply-patch+yaml")
    planned = plan(objects, target(settings))
    assert "Deployment" in by_action(planned)[Action.SKIPPED]
    assert not failures(apply(objects, target(settings)))
    assert not failures(apply(objects, absent(settings)))
    for one in theirs:
        assert objects.list(BY_NAME[one["kind"]], "", [one["metadata"]["name"]])
        objects.delete(one)
    names = [one["metadata"]["name"] for one in theirs]
    wait_for(lambda: not any(found(objects, name) for name in names), "they are gone")


def test_a_definition_with_objects_of_others_is_kept_and_taken_back(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    settings = replace(WHOLE, namespace="kept")
    rules = "nodefeaturerules.nfd.k8s-sigs.io"
    wait_for(lambda: not found(objects, rules), "definitions of tests before are gone")
    assert not failures(apply(objects, target(settings)))
    rule = _head(BY_NAME["NodeFeatureRule"])
    theirs: dict[str, Any] = {**rule, "metadata": {"name": "theirs"}, "spec": {"rules": []}}
    objects.apply(theirs)
    feature = apiserver.path_of(FEATURES, "default")
    server.request("POST", feature, {**_head(FEATURES), "metadata": {"name": "n1"}, "spec": {}})
    done = apply(objects, absent(settings))
    assert not failures(done)
    (kept,) = (one for one in done.changes if one.item["metadata"]["name"] == rules)
    assert kept.reason.startswith("kept, because others use it: ")
    (live,) = found(objects, rules)
    assert "gpustate.io/owner" not in live["metadata"].get("labels", {})
    again = by_title(plan(objects, target(settings)))
    for name in (rules, NFD_DEFINITION):
        changed = again[f"customresourcedefinition/{name}"]
        assert changed.action is Action.UPDATE
        assert all(one.field.startswith("metadata.labels") for one in changed.differences)
    assert again["daemonset/full-worker"].action is Action.CREATE
    assert not failures(apply(objects, target(settings)))
    objects.delete(theirs)
    server.request("DELETE", f"{feature}/n1")
    assert not failures(apply(objects, absent(settings)))
    wait_for(lambda: not found(objects, rules), "it is gone")


def _head(kind: Kind) -> dict[str, Any]:
    return {"apiVersion": kind.version, "kind": kind.name}


def by_title(changes: list[Change]) -> dict[str, Change]:
    return {title(one.item): one for one in changes}


def found(objects: Objects, name: str) -> list[dict[str, Any]]:
    return objects.list(BY_NAME["CustomResourceDefinition"], "", [name])


PAGE = Path(__file__).parents[2] / "docs" / "cluster-reference.md"
_ROW = re.compile(r"^\| (?P<pods>`[^|]+) \| (?P<level>\w+) \| (?P<why>.*) \|$", re.MULTILINE)
_CHECK = re.compile(r"(?:^|\), )([^()]+) \(")
_ENFORCE = "pod-security.kubernetes.io/enforce"


def test_pods_need_the_level_of_pod_security_that_the_manual_says(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    """The server's own admission judges the pods of every workload, in a namespace of each level."""
    for one in DEFINITIONS:
        objects.apply(one)
    nfd_values = {"topologyUpdater": {"enable": True}}
    plain = replace(WHOLE, node_status_exporter=Component(), node_feature_discovery=nfd_values)
    needed: dict[str, tuple[str, set[str]]] = {}
    for name, settings in (("pods", plain), ("claims", replace(plain, dra_driver=DRA))):
        settings = replace(settings, namespace=name, privileged_namespace=False)
        assert not failures(apply(objects, target(settings)))
        pods = {
            one["metadata"]["name"]: _pod(one)
            for one in target(settings).items
            if one["kind"] in ("Deployment", "DaemonSet")
        }
        strict, lenient = (_forbidden(server, name, level, pods) for level in _LEVELS)
        for pod in pods:
            level = "privileged" if lenient[pod] else "baseline" if strict[pod] else "restricted"
            needed[pod] = (level, lenient[pod] or strict[pod])
        assert not failures(apply(objects, absent(settings)))
    text = PAGE.read_text("utf-8").partition("## Pod Security\n")[2].partition("\n## ")[0]
    said = {
        pod: (row["level"], set(re.findall(r"\*\*(.+?)\*\*", row["why"])))
        for row in _ROW.finditer(text)
        for pod in re.findall(r"`([^`]+)`", row["pods"])
    }
    assert said == needed


_LEVELS = ("restricted", "baseline")


def _pod(workload: Item) -> Item:
    template = workload["spec"]["template"]
    return {
        "metadata": {"name": "judged", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }


def _forbidden(
    server: apiserver.ApiServer, namespace: str, level: str, pods: Mapping[str, Item]
) -> dict[str, set[str]]:
    """What of each pod a level of Pod Security forbids, by the names of its checks."""
    labels = {"metadata": {"labels": {_ENFORCE: level}}}
    where = apiserver.path_of(BY_NAME["Namespace"], name=namespace)
    server.request("PATCH", where, labels, kind="merge-patch+json")
    container = {"name": "a", "image": "a", "securityContext": {"privileged": True}}
    account = {"serviceAccountName": "nvidia-device-plugin", "containers": [container]}
    canary = {"metadata": {"name": "canary"}, "spec": account}
    wait_for(lambda: _checks(server, namespace, level, canary), f"{level} is enforced", 30)
    return {name: _checks(server, namespace, level, pod) for name, pod in pods.items()}


def _checks(server: apiserver.ApiServer, namespace: str, level: str, pod: Item) -> set[str]:
    try:
        server.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    except apiserver.Refused as error:
        if "violates PodSecurity" not in str(error):
            raise
        checks = str(error).partition(f'PodSecurity "{level}:latest": ')[2]
        return set(_CHECK.findall(checks))  # none while the level before is enforced
    return set()


#: The documented rights do not include those of NFD's topology updater.
PLAIN = {
    **NFD_VALUES,
    "topologyUpdater": {"enable": False},
    "gc": {**NFD_VALUES["gc"], "rbac": {"create": True}},
}


def cases() -> dict[tuple[str, int], ClusterSettings]:
    """Settings that need the rules of a place of the manual, beside those that are always needed."""
    return {
        clusterusers.INSTALLING: replace(WHOLE, node_feature_discovery=PLAIN),
        clusterusers.DRA: replace(
            WITH_DRA, kata_device_plugin=Component(enabled=False), node_feature_discovery=None
        ),
        clusterusers.CONTAINERS: golden("containers"),
    }


#: Those that are not always needed, with where they stand.
RULES = shares.share(
    "rights of components",
    [
        (place, rule)
        for place in (clusterusers.INSTALLING, clusterusers.DRA, clusterusers.CONTAINERS)
        for rule in sorted({*clusterusers.documented(place)} - {*clusterusers.documented()})
    ],
    most=3,
    kind=lambda one: one[0],
)


def test_the_documented_rights_suffice_and_each_is_needed(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    for one in DEFINITIONS:
        objects.apply(one)
    user = server.kubeconfig(apiserver.USER)
    for place, case in cases().items():
        settings = replace(case, namespace="rights")
        rights = {*clusterusers.documented(), *clusterusers.documented(place)}
        grant(objects, rights)
        wait_for(lambda s=settings: cycle(user, s) == [], f"{place}: the rights suffice", 120)
        for rule in (one for where, one in RULES if where == place):
            grant(objects, rights - {rule})
            group, resource, verb = rule
            named = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
            wrong = wait_for(lambda s=settings: cycle(user, s), f"it needs {rule}", 120)
            assert any(named in words or "not currently held" in words for words in wrong), wrong
            assert not failures(apply(objects, absent(settings)))


def cycle(user: Path, settings: ClusterSettings) -> list[str]:
    """Apply and remove as a user; return what went wrong."""
    for objects in connected(user):
        try:
            for wanted in (target(settings), absent(settings)):
                wrong = failures(apply(objects, wanted))
                if wrong:
                    return wrong
        except ClusterError as error:
            return [str(error)]
    return []


ROLE = Kind("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)


def grant(objects: Objects, rights: set[clusterusers.Rule]) -> None:
    """Give the user exactly these rights."""
    version = ROLE.version
    role = {"apiVersion": version, "kind": ROLE.name, "metadata": {"name": apiserver.USER}}
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in sorted(rights)
    ]
    objects.apply({**role, "rules": rules}, force=True)
    reference = {"apiGroup": ROLE.group, "kind": ROLE.name, "name": apiserver.USER}
    subject = {"apiGroup": ROLE.group, "kind": "User", "name": apiserver.USER}
    binding = {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    objects.apply(binding, force=True)
