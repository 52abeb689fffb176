"""Objects of every policy on real API servers: accepted, equal when read again, removed, with the documented rights.

Real: API server and etcd, of three versions, the definitions of prometheus-operator. There are no controllers and no
nodes, so namespaces are not deleted to the end, and no pod is created.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apiserver
import clusterusers
import pytest
import shares
import yaml
from labkubernetes import wait_for

from gpustate import policies
from gpustate.cluster.api import connect
from gpustate.cluster.objects import Objects
from gpustate.errors import ClusterError
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterObjects, Component, Exporter, Monitor, nfd
from gpustate.manifests.build import build
from gpustate.manifests.kinds import BY_NAME, Kind
from gpustate.plan.objects import lines
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data
from gpustate.reconcile.planning import Action, Change, Target, plan
from gpustate_lab.spec import KUBERNETES_VERSIONS

pytestmark = pytest.mark.node
TESTS = Path(__file__).parents[1]
POLICIES = sorted((TESTS / "golden" / "manifests").glob("*.policy.yaml"))
DEFINITIONS = [
    yaml.safe_load(file.read_text())
    for file in sorted((TESTS / "data" / "prometheus-operator").glob("*.yaml"))
]
NFD_VALUES = yaml.safe_load((TESTS / "data" / "nfd-chart" / "all.values.yaml").read_text())
MONITORED = Exporter(
    pod_labels=True,
    env={"DCGM_EXPORTER_CONFIGMAP_DATA": "gpus:counters"},
    monitor=Monitor(
        enabled=True,
        interval="15s",
        scrape_timeout="10s",
        honor_labels=True,
        labels={"release": "prom"},
        relabelings=({"sourceLabels": ["a", "b"], "targetLabel": "node", "action": "replace"},),
    ),
)
WHOLE = ClusterObjects(
    namespace="whole",
    privileged_namespace=True,
    dcgm=Component(),
    dcgm_exporter=MONITORED,
    node_status_exporter=Component(host_network=True),
    sandbox_device_plugin=Component(),
    kata_device_plugin=Component(),
    cc_manager=Component(resources={"limits": {"memory": "1Gi"}}),
    cc_mode="on",
    node_feature_discovery=NFD_VALUES,
    module_rules=True,
)
#: Namespaces have no controller here.
KEPT = "Namespace"


@pytest.fixture(scope="module", params=KUBERNETES_VERSIONS)
def server(
    request: pytest.FixtureRequest, lab_programs: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apiserver.ApiServer]:
    with apiserver.running(request.param, tmp_path_factory.mktemp("api")) as found:
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


def target(settings: ClusterObjects) -> Target:
    return Target(build(settings, images()), settings.namespace)


def absent(settings: ClusterObjects) -> Target:
    return Target((), settings.namespace, absent=True)


def apply(objects: Objects, wanted: Target) -> Applied:
    """Apply; workloads are never rolled out, since nothing runs them."""
    waited = 0.1 if wanted.items else 30.0
    return Applier(objects, wanted, waited).apply(plan(objects, wanted))


def failures(done: Applied) -> list[str]:
    refused = [f"{one.item}: {one.reason}" for one in done.changes if one.action == "refused"]
    left = [one for one in done.failures if "namespace/" not in one]
    return refused + left


def by_action(changes: list[Change]) -> dict[Action, set[str]]:
    found: dict[Action, set[str]] = {}
    for one in changes:
        if one.item["kind"] == KEPT and one.action is Action.DELETE:
            continue  # of a test before
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
        *("ServiceMonitor", "PrometheusRule"),
    }
    assert not failures(apply(objects, target(settings)))
    assert not failures(apply(objects, absent(settings)))


def test_every_object_is_accepted_equal_when_read_again_and_removed(objects: Objects) -> None:
    for one in DEFINITIONS:
        objects.apply(one)
    done = apply(objects, target(WHOLE))
    assert not failures(done)
    assert len({one.item["kind"] for one in done.changes}) > 15
    again = plan(objects, target(WHOLE))
    assert set(by_action(again)) == {Action.UNCHANGED}, page(again)
    assert not failures(apply(objects, absent(WHOLE)))
    left = [one for one in plan(objects, absent(WHOLE)) if one.item["kind"] != KEPT]
    assert not left


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.name.partition(".")[0])
def test_objects_of_a_policy_are_accepted_and_equal_when_read_again(
    objects: Objects, file: Path
) -> None:
    settings = policies.load(str(file)).cluster
    assert settings is not None
    settings = replace(settings, namespace=file.name.partition(".")[0])
    assert not failures(apply(objects, target(settings)))
    again = plan(objects, target(settings))
    assert not {Action.UPDATE, Action.CREATE, Action.REFUSED} & set(by_action(again)), page(again)
    assert not failures(apply(objects, absent(settings)))


def test_node_feature_discovery_of_others_is_used_and_kept(objects: Objects) -> None:
    settings = replace(WHOLE, namespace="others")
    theirs = [one for one in nfd.objects({}, "x", rules=False) if "versions" in one.get("spec", {})]
    for one in theirs:
        bare = {**one, "metadata": {"name": one["metadata"]["name"]}}
        objects.apply(bare, force=True)
    found = plan(objects, target(settings))
    assert "Deployment" in by_action(found)[Action.SKIPPED]
    assert not failures(apply(objects, target(settings)))
    assert not failures(apply(objects, absent(settings)))
    for one in theirs:
        assert objects.list(BY_NAME[one["kind"]], "", [one["metadata"]["name"]])
        objects.delete(one)


def test_a_definition_with_objects_of_others_is_kept(objects: Objects) -> None:
    settings = replace(WHOLE, namespace="kept")
    rules = "nodefeaturerules.nfd.k8s-sigs.io"
    wait_for(lambda: not found(objects, rules), "definitions of tests before are gone")
    assert not failures(apply(objects, target(settings)))
    rule = {"kind": "NodeFeatureRule", "apiVersion": BY_NAME["NodeFeatureRule"].version}
    theirs: dict[str, Any] = {**rule, "metadata": {"name": "theirs"}, "spec": {"rules": []}}
    objects.apply(theirs)
    done = apply(objects, absent(settings))
    assert not failures(done)
    assert done.notes[-1].startswith(f"customresourcedefinition/{rules} is kept, because others")
    (live,) = found(objects, rules)
    assert "gpustate.io/owner" not in live["metadata"].get("labels", {})
    objects.delete(live)


def found(objects: Objects, name: str) -> list[dict[str, Any]]:
    return objects.list(BY_NAME["CustomResourceDefinition"], "", [name])


#: Those that only an installation of node feature discovery, or Kata's device plugin, needs.
RULES = shares.share(
    "rights to install",
    sorted({*clusterusers.documented(installing=True)} - {*clusterusers.documented()}),
    most=2,
)
#: The documented rights do not include those of NFD's topology updater.
PLAIN = {**NFD_VALUES, "topologyUpdater": {"enable": False}}
#: Without a controller a namespace cannot be used again.
NAMESPACES = (f"rights-{number}" for number in itertools.count())


def test_the_documented_rights_suffice_and_each_is_needed(
    server: apiserver.ApiServer, objects: Objects
) -> None:
    for one in DEFINITIONS:
        objects.apply(one)
    rights = {*clusterusers.documented(), *clusterusers.documented(installing=True)}
    user = server.kubeconfig(apiserver.USER)
    grant(objects, rights)
    wait_for(lambda: cycle(user) == [], "the rights are known to the server", 120)
    for rule in RULES:
        grant(objects, rights - {rule})
        group, resource, verb = rule
        named = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
        wrong = wait_for(lambda: cycle(user), f"it needs {rule}", 120)
        assert any(named in words or "not currently held" in words for words in wrong), wrong
        assert not failures(apply(objects, absent(WHOLE)))


def cycle(user: Path) -> list[str]:
    """Apply and remove as a user; return what went wrong."""
    settings = replace(WHOLE, namespace=next(NAMESPACES), node_feature_discovery=PLAIN)
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
