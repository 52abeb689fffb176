"""``--cluster-objects``: what is refused before any node or cluster is contacted, and what a plan requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from apigate import Gate
from click.testing import CliRunner, Result
from commandline import Cli
from stubcluster import TOKEN, Answer, Request, StubCluster

from gpustate.api.clusters import Clusters
from gpustate.api.objects import codes, with_objects
from gpustate.api.results import DriftResult
from gpustate.cli import common, objects
from gpustate.cli.main import cli
from gpustate.cluster.api import connected
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.change import Disruption
from gpustate.core.facts import NodeFacts
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.engine import fleet
from gpustate.engine.events import ignore
from gpustate.engine.maintenance import Subject
from gpustate.errors import EXIT_INTERRUPTED, RefusedError
from gpustate.manifests.build import build
from gpustate.manifests.differences import differences
from gpustate.manifests.kinds import KINDS
from gpustate.manifests.settings import ClusterSettings, DraDriver
from gpustate.plan.objects import pending_of
from gpustate.reconcile import cluster_notes
from gpustate.reconcile.planning import Action, Change
from gpustate.schedulers.base import Why
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate.schedulers.kubernetes.members import HOLD
from gpustate.watch.nodes import RECORD

ON = ("-i", "n1,n2")


@pytest.fixture(autouse=True)
def files(project: Path) -> None:
    (project / "cp.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {}\n"
    )
    (project / "own.yaml").write_text("format: gpustate.policy/1\nstates: {nouveau: }\n")
    (project / "plan.json").write_text('{"format": "gpustate.plan/1", "nodes": []}')


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("drift", "cp.yaml", "--force-conflicts"), "--force-conflicts is only for objects; add"),
        (("apply", "cp.yaml", "--yes", "--cluster-objects"), "no node has a kubeconfig; pass"),
        (
            ("plan", "cp.yaml", "--driver", "595", "--cluster-objects"),
            "no node has a kubeconfig; pass",
        ),
        (("plan", "own.yaml", "--cluster-objects"), "the policy has no objects of a cluster"),
        (
            ("apply", "plan.json", "--yes", "--cluster-objects"),
            "plan.json is a saved plan, and --cluster-objects is only for new plans",
        ),
        (("plan", "plan.json", "--cluster-objects"), "--cluster-objects is only for new plans"),
        (
            ("apply", "plan.json", "--yes", "--force-conflicts"),
            "--force-conflicts is only for new plans",
        ),
    ],
)
def test_it_is_refused_in_one_line(gpustate: Cli, words: tuple[str, ...], error: str) -> None:
    done = gpustate(*words, *ON)
    assert done.status == 1
    assert error in done.err
    assert done.err.count("\n") == 1


def test_an_unreadable_kubeconfig_is_named_before_nodes_are_contacted(gpustate: Cli) -> None:
    done = gpustate(
        "apply", "cp.yaml", "--yes", "--cluster-objects", "--kubeconfig", "missing", *ON
    )
    assert done.status == 1
    assert "missing: cannot read the kubeconfig" in done.err
    assert "unreachable" not in done.err


@pytest.mark.parametrize(
    ("verb", "limit"),
    [
        (("remove", "--yes"), ("-l", "n1")),
        (("remove", "--yes"), ("-l", "!n2")),
        (("plan", "--remove"), ("-l", "n1")),
    ],
)
def test_a_removal_from_some_nodes_of_a_cluster_is_refused(
    gpustate: Cli, project: Path, verb: tuple[str, ...], limit: tuple[str, str]
) -> None:
    (project / "hosts.yml").write_text(
        "all: {hosts: {n1: {gpustate_kubeconfig: a}, n2: {gpustate_kubeconfig: a}, n3: {}}}"
    )
    done = gpustate(verb[0], "cp.yaml", *verb[1:], "-i", "hosts.yml", "--cluster-objects", *limit)
    assert done.status == 1
    option = {"-l": "--limit"}.get(limit[0], limit[0])
    assert f"whole cluster, and {option} leaves out nodes of it: n2; omit {option}" in done.err
    assert done.err.count("\n") == 1
    done = gpustate(
        *(verb[0], "cp.yaml", *verb[1:], "-i", "hosts.yml", "--cluster-objects", "-l", "n1,n2")
    )
    assert "a: cannot read the kubeconfig" in done.err


def test_a_removal_takes_the_options_of_the_apply_that_it_undoes(gpustate: Cli) -> None:
    own = (
        "--cluster-objects",
        "--set",
        "cluster.install_nfd=true",
        "--set",
        "cluster.startup_taint=k",
    )
    for verb in (("apply", "cp.yaml"), ("remove", "cp.yaml"), ("plan", "cp.yaml", "--remove")):
        words = (*verb, *own, *(() if "--remove" in verb else ("--yes",)))
        assert "no node has a kubeconfig; pass" in gpustate(*words, *ON).err


def test_the_schema_of_plans_has_every_action() -> None:
    schema = json.loads((Path(__file__).parents[3] / "gpustate/plan/schema/plan.json").read_text())
    actions = schema["$defs"]["cluster"]["properties"]["objects"]["items"]["properties"]["action"]
    assert set(actions["enum"]) == {one.value for one in Action}


CHANGE = {"field": "data.a", "before": "1", "after": "2"}


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    objects_ = [{"object": f"configmap/{number}", **row} for number, row in enumerate(rows)]
    return {"clusters": [{"server": "s", "namespace": "n", "objects": objects_, **more}]}


@pytest.mark.parametrize(
    ("found", "plan", "pending", "drift", "drifted"),
    [
        (document({"action": "unchanged"}), [], False, [], False),
        (document({"action": "update", "changes": [CHANGE]}), [], True, [], True),
        (document({"action": "create"}), [], True, [], True),
        (document({"action": "not managed", "changes": [CHANGE]}), [], False, [], True),
        (document({"action": "refused", "changes": [CHANGE]}), [5], False, [], True),
        (document({"action": "refused", "reason": "forbidden"}), [5], False, [5], False),
        (
            document({"action": "refused", "changes": [CHANGE]}, {"action": "refused"}),
            *([5], False, [5], True),
        ),
        (document(failures=["unreachable"]), [1], False, [1], False),
        (document({"action": "update"}, unready=["daemonset/x"]), [3], True, [], True),
        ({}, [], False, [], False),
    ],
)
def test_exit_codes_are_those_of_the_worst_object(
    found: dict[str, Any], plan: list[int], pending: bool, drift: list[int], drifted: bool
) -> None:
    assert codes(found) == plan
    assert bool(pending_of(found)) == pending
    assert codes(found, drift=True) == drift
    assert objects.has_drifted(found) == drifted


def test_settings_of_objects_are_carried_out_with_the_option(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    text = (
        (project / "cp.yaml")
        .read_text()
        .replace("spec: {}", "spec: {devicePlugin: {enabled: true}}")
    )
    (project / "plugin.yaml").write_text(text)
    words = (
        "carried out only with --cluster-objects: devicePlugin.enabled",
        "set up only with --cluster-objects: dcgm, dcgmExporter",
    )
    plain = common.load_policy("plugin.yaml").notes
    named = [note for note in plain if any(one in note for one in words)]
    assert len(named) == len(words)
    objects = common.load_policy("plugin.yaml", {"cluster_objects": True}).notes
    assert objects == tuple(note for note in plain if note not in named)


def test_objects_of_a_policy_that_are_left_out_are_noted(
    project: Path, monkeypatch: pytest.MonkeyPatch, gpustate: Cli
) -> None:
    monkeypatch.chdir(project)
    (project / "own.yaml").write_text("states: {validator: {}}\ncluster: {device_plugin: {}}\n")
    note = "gpustate: note: objects of the cluster (cluster:) are left out; add --cluster-objects\n"
    for verb in ("plan", "apply", "drift"):
        yes = ("--yes",) if verb == "apply" else ()
        assert note in gpustate(verb, "own.yaml", "-i", "127.0.0.1:9,", *yes).err
    assert note not in gpustate("plan", "cp.yaml", "-i", "127.0.0.1:9,").err


class Objects(StubCluster):
    """One with objects of every kind, of which an apply is only a dry run."""

    def __init__(self) -> None:
        super().__init__({"n1": ("boot-1", "machine-1", "uuid-1")})
        self.objects |= {kind.plural: self.objects.get(kind.plural, {}) for kind in KINDS}

    served = True

    def answer(self, request: Request) -> Answer:
        if request.path == "/apis/nfd.k8s-sigs.io/v1alpha1" and self.served:
            return Answer(200, {"resources": [{"name": "nodefeatures"}]})
        if request.query.get("dryRun"):
            return Answer(200, request.body)
        return super().answer(request)


def probed(request: fleet.Request, *_: object) -> fleet.FleetResult:
    """Nodes that would be drained, without a connection."""
    gpu = {"address": "0000:1b:00.0", "device_id": "2330", "class_id": "030200", "driver": "nvidia"}
    facts = NodeFacts(
        boot_id="boot-1", machine_id="machine-1", system_uuid="uuid-1", agents=("kubelet",)
    )
    (node,) = request.inventory.nodes
    request.maintenance.preview(Subject(node, facts, Disruption.REBOOT, lambda: ("driver",)))
    known = {name: getattr(facts, name) for name in ("boot_id", "machine_id", "system_uuid")}
    return fleet.FleetResult("r", [NodeResult("n1", facts={**known, "pci": [gpu]})])


@pytest.mark.parametrize(
    ("served", "gfd", "options", "noted"),
    [
        (False, "true", [], True),
        (True, "true", [], False),
        (False, "false", [], False),
        (False, "true", ["--set", "cluster.install_nfd=true"], False),
    ],
)
def test_missing_node_feature_discovery_is_noted(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: bool,
    gfd: str,
    options: list[str],
    noted: bool,
) -> None:
    (project / "gfd.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\n"
        f"spec: {{devicePlugin: {{enabled: true}}, gfd: {{enabled: {gfd}}}}}\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    cluster = Objects()
    cluster.served = served
    gate = Gate(cluster.answer)
    gate.open()
    words = ["gfd.yaml", "-i", "n1,", "--cluster-objects", *options]
    words += ["--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    try:
        done = CliRunner().invoke(cli, ["plan", *words, "-o", "json"])
    finally:
        gate.close()
    (found,) = json.loads(done.stdout)["clusters"]
    expected = [
        "daemonset/gpu-feature-discovery cannot run: the cluster has no NodeFeatures; "
        "add --set cluster.install_nfd=true, install node feature discovery, or switch it off (gfd.enabled; in a policy of states cluster.feature_discovery.enabled)"
    ]
    assert [one for one in found.get("notes", []) if "NodeFeatures" in one] == expected * noted


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "example.com/app:1"])
def test_another_device_plugin_of_the_cluster_is_noted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    cluster = Objects()
    meta = {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"}
    pod = {"spec": {"containers": [{"name": "c", "image": image}]}}
    item = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta}
    cluster.objects["daemonsets"]["other"] = {**item, "spec": {"template": pod}}
    gate = Gate(cluster.answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    try:
        done = CliRunner().invoke(cli, ["plan", *words, "--cluster-objects", "-o", "json"])
    finally:
        gate.close()
    notes = [one for one in json.loads(done.stdout)["clusters"][0]["notes"] if "kube-system" in one]
    assert len(notes) == ("device-plugin" in image)
    assert all(
        "registers last: delete it, or switch the policy's off (devicePlugin.enabled;" in n
        for n in notes
    )


def test_the_time_of_the_clusters_counts() -> None:
    result = DriftResult(
        run="r",
        nodes=(),
        exit_code=0,
        summary="nodes=1 reboots=0 duration_s=41.2",
        interrupted=False,
        notes=(),
        document={},
    )
    made = with_objects(result, {"clusters": []}, time.monotonic() - 100)
    assert re.match(r"nodes=1 reboots=0 duration_s=141\.\d objects=0 ", made.summary)


def test_drift_of_objects_alone_is_in_the_last_lines(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "plugin.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\n"
        "spec: {devicePlugin: {enabled: true}, gfd: {enabled: false}}\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    gate = Gate(Objects().answer)
    gate.open()
    words = ["plugin.yaml", "-i", "n1,", "--set", "cluster.install_nfd=true"]
    words += ["--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN)), "--cluster-objects"]
    try:
        done = CliRunner().invoke(cli, ["drift", *words])
        data = json.loads(CliRunner().invoke(cli, ["drift", *words, "-o", "json"]).stdout)
    finally:
        gate.close()
    (found,) = data["clusters"]
    total = len(found["objects"])
    *_, sentence, last = done.stdout.splitlines()
    assert f" nodes and {total} of {total} objects differ from the policy" in sentence
    assert last.endswith(f" objects={total} objects_changed={total} objects_refused=0")
    assert done.exit_code == 2
    command = f"gpustate apply {' '.join(words)}"
    assert f"Apply the policy with: {command}" in done.stdout


def test_a_node_that_gets_no_pod_is_noted_by_plan_and_drift(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    cluster = Objects()
    node = cluster.objects["nodes"]["n1"]
    node["spec"]["taints"] = [{"key": "gpu", "value": "true", "effect": "NoSchedule"}]
    gate = Gate(cluster.answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    words += ["--cluster-objects", "-o", "json"]
    try:
        runs = [CliRunner().invoke(cli, [verb, *words]) for verb in ("plan", "drift")]
        sentence = CliRunner().invoke(cli, ["drift", *words[:-2]]).stdout.splitlines()[-2]
    finally:
        gate.close()
    assert "; pods of components do not run, or Nodes are held out of service" in sentence
    notes, unready = (
        json.loads(run.stdout)["clusters"][0][key]
        for run, key in zip(runs, ("notes", "unready"), strict=True)
    )
    expected = (
        "taint gpu=true:NoSchedule is not tolerated; remove it, or add to daemonsets.tolerations"
    )
    for lines in (notes, unready):
        assert [line for line in lines if "node/n1: no pod of " in line and expected in line]
    assert [run.exit_code for run in runs] == [0, 2]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (document({"action": "unchanged"}, {"action": "skipped"}), "0 of 1 objects"),
        (document({"action": "refused", "changes": [CHANGE]}), "1 of 1 objects"),
        (document({"action": "not managed", "changes": [CHANGE]}), "1 of 1 objects"),
        (document({"action": "refused", "reason": "x"}, {"action": "create"}), "1 of 1 objects"),
        (document(failures=["unreachable"]), ""),
        ({}, ""),
    ],
)
def test_objects_that_could_not_be_compared_do_not_differ(
    found: dict[str, Any], words: str
) -> None:
    assert objects.drifted(found) == words


def test_a_plan_of_objects_and_drains_lists_nodes_once(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "plugin.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {devicePlugin: {enabled: true}}\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    cluster = Objects()
    gate = Gate(cluster.answer)
    gate.open()
    words = ["plugin.yaml", "-i", "n1,", "--cluster-objects"]
    words += ["--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    try:
        for verb in ("plan", "drift"):
            cluster.lists.clear()
            done = CliRunner().invoke(cli, [verb, *words, "-o", "json"])
            (found,) = json.loads(done.stdout)["clusters"]
            assert "failures" not in found
            labelled = [one["object"] for one in found["objects"] if "node/" in one["object"]]
            assert labelled == ["node/n1"]
            assert cluster.lists.count("nodes") == 1, cluster.lists
            assert verb == "drift" or "pods" in cluster.lists
    finally:
        gate.close()


def removal(cluster: StubCluster, tmp_path: Path) -> Result:
    """``remove`` of a policy with its objects in this cluster."""
    gate = Gate(cluster.answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--cluster-objects", "--yes"]
    words += ["--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    try:
        done = CliRunner().invoke(cli, ["remove", *words])
    finally:
        gate.close()
    return done


def test_a_removal_from_the_cluster_of_other_nodes_changes_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, object] = {
        **{"boot_id": "b", "machine_id": "m", "system_uuid": "u"},
        "agents": ["kubelet"],
    }
    monkeypatch.chdir(project)

    def run(request: fleet.Request, *_: object) -> fleet.FleetResult:
        node = NodeResult("n1", facts=facts)
        with pytest.raises(RefusedError, match="no Node of the cluster is n1, where a kubelet"):
            request.before_change(node)
        node.status = NodeStatus.REFUSED
        return fleet.FleetResult("r", [node])

    monkeypatch.setattr(fleet, "run", run)
    methods: list[str] = []

    class Recorded(Objects):
        def answer(self, request: Request) -> Answer:
            methods.append(request.method)
            return super().answer(request)

    done = removal(Recorded(), tmp_path)
    assert done.exit_code == 5
    assert "no Node of the cluster is n1, where a kubelet runs" in done.stdout
    assert set(methods) == {"GET"}


def test_a_removal_that_another_run_locks_out_writes_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    locked = fleet.FleetResult("r", [NodeResult("n1", NodeStatus.LOCKED)])
    monkeypatch.setattr(fleet, "run", lambda *_: locked)
    cluster = Objects()
    cluster.edit_node("n1", {"metadata": {"annotations": {RECORD: "{}"}}})
    writes: list[str] = []

    class Recorded(Objects):
        def answer(self, request: Request) -> Answer:
            writes.extend([request.path] if request.writes else [])
            return cluster.answer(request)

    done = removal(Recorded(), tmp_path)
    assert done.exit_code == 8
    assert "the objects stay: no node of the cluster succeeded" in done.stdout
    assert writes == []


def test_a_removal_that_is_killed_while_objects_go_can_be_resumed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    steps: list[str] = []

    def run(request: fleet.Request, *_: object) -> fleet.FleetResult:
        steps.append("nodes" if request.apply else "plan")
        return fleet.FleetResult("r", [NodeResult("n1")])

    def killed(self: Clusters, nodes: list[NodeResult], *_: object, **more: str) -> None:
        steps.append("objects")
        raise SystemExit(137)

    monkeypatch.setattr(fleet, "run", run)
    monkeypatch.setattr(Clusters, "apply", killed)
    gate = Gate(Objects().answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--cluster-objects", "--yes"]
    try:
        kubeconfig = str(gate.kubeconfig(tmp_path, TOKEN))
        CliRunner().invoke(cli, ["remove", *words, "--kubeconfig", kubeconfig])
        listed = CliRunner().invoke(cli, ["rollout", "resume", "--list"]).stdout
    finally:
        gate.close()
    assert steps == ["nodes", "objects"]
    assert f"remove {project}/cp.yaml" in listed


def test_an_apply_that_is_interrupted_while_objects_are_waited_for_can_be_resumed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pressed: list[bool] = []

    @contextmanager
    def watched(*_: object, **more: object) -> Iterator[tuple[Any, Any]]:
        yield ignore, lambda: bool(pressed)

    def interrupted(self: Clusters, *_: object, **more: str) -> list[dict[str, Any]]:
        pressed.append(True)
        return [{"server": "s", "namespace": "g", "objects": [], "failures": ["interrupted"]}]

    monkeypatch.setattr(common, "watched", watched)
    left = NodeResult("n1", notes=["Kubernetes at s: n1 stays out of service: interrupted"])
    monkeypatch.setattr(fleet, "run", lambda *_: fleet.FleetResult("r", [left]))
    monkeypatch.setattr(Clusters, "apply", interrupted)
    gate = Gate(Objects().answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--cluster-objects", "--yes"]
    try:
        words += ["--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
        done = CliRunner().invoke(cli, ["apply", *words])
        listed = CliRunner().invoke(cli, ["rollout", "resume", "--list"]).stdout
    finally:
        gate.close()
    assert done.exit_code == EXIT_INTERRUPTED
    assert (
        "Interrupted; out of service: n1. Resume it with: gpustate rollout resume r" in done.stdout
    )
    assert f"apply {project}/cp.yaml" in listed


@pytest.mark.parametrize("live", [False, True])
def test_drift_names_nodes_that_a_run_holds_and_counts_those_of_dead_runs(
    live: bool, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(fleet, "run", probed)
    hold = {"run": "r9", "person": "p", "text": "t", "phase": "held", "since": "10:00"}
    cluster = Objects()
    cluster.edit_node("n1", {"metadata": {"annotations": {HOLD: json.dumps(hold)}}})
    gate = Gate(cluster.answer)
    gate.open()
    kubeconfig = Kubeconfig(str(gate.kubeconfig(tmp_path, TOKEN)))
    words = ["drift", "cp.yaml", "-i", "n1,", "--cluster-objects", "--kubeconfig", kubeconfig.path]
    try:
        with connected(kubeconfig) as api:
            scheduler = Kubernetes(api)
            if live:
                scheduler.take_lease(Why("r9", "p", "t"), print, lambda: False)
            done = CliRunner().invoke(cli, [*words, "-o", "json"])
            text = CliRunner().invoke(cli, words).stdout
            scheduler.drop_lease()
    finally:
        gate.close()
    (row,) = json.loads(done.stdout)["clusters"]
    held = "node/n1: run r9 holds it out of service since 10:00 (held); "
    if live:
        assert f"{held}run r9, which is in progress, returns it to service" in row["notes"]
        assert "unready" not in row
    else:
        dead = "if run r9 is dead: gpustate rollout resume r9 on its machine, or its command again here"
        assert row["unready"] == [f"{held}{dead}"]
    assert ("Nodes are held out of service, as listed above" in text) is not live


@pytest.mark.parametrize("ignored", [False, True])
def test_pods_with_claims_are_named_before_the_dra_driver_is_removed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    monkeypatch.chdir(project)
    cluster = Objects()
    (driver,) = (
        one
        for one in build(
            ClusterSettings(dra_driver=DraDriver(image="a/b:c")),
            dict.fromkeys(("devicePlugin", "gfd"), "a/b:c"),
        )
        if one["kind"] == "DaemonSet" and one["metadata"]["name"].startswith("nvidia-dra")
    )
    labels = {f"f:{name}": {} for name in driver["metadata"]["labels"]}
    fields = {"f:metadata": {"f:labels": labels}}
    entry = {"manager": "gpustate", "operation": "Apply", "fieldsType": "FieldsV1"}
    driver["metadata"]["managedFields"] = [{**entry, "fieldsV1": fields}]
    cluster.objects["daemonsets"]["ours"] = driver
    device = {"driver": "gpu.nvidia.com", "device": "gpu-0", "pool": "n1", "request": "gpus"}
    status = {"allocation": {"devices": {"results": [device]}}}
    meta = {"name": "two", "namespace": "jobs"}
    user = {"name": "train-n1", "resource": "pods", "uid": "u"}
    cluster.objects["resourceclaims"]["jobs/two"] = {
        **{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta},
        **{"spec": {}, "status": {**status, "reservedFor": [user]}},
    }
    gate = Gate(cluster.answer)
    gate.open()
    words = ["cp.yaml", "-i", "n1,", "--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN))]
    words += ["--ignore-scheduler"] if ignored else []
    monkeypatch.setattr(fleet, "run", lambda request, *_: fleet.FleetResult("r", [NodeResult("n1")]))  # fmt: skip
    try:
        done = CliRunner().invoke(
            cli, ["plan", *words, "--remove", "--cluster-objects", "-o", "json"]
        )
    finally:
        gate.close()
    (found,) = json.loads(done.stdout)["clusters"]
    (row,) = (one for one in found["objects"] if one["object"].startswith("daemonset/nvidia-dra"))
    note = "n1: before the DRA driver is deleted, jobs/train-n1 is evicted"
    assert (row["action"], note in found.get("notes", ())) == (("refused", False) if ignored else ("delete", True))  # fmt: skip
    assert ("release resourceclaim jobs/two of pod train-n1" in row.get("reason", "")) is ignored


@pytest.mark.parametrize(
    ("before", "after", "node", "noted"),
    [
        ("mixed", "", {"nvidia.com/mig-3g.40gb": "2"}, True),
        ("mixed", "none", {"nvidia.com/mig-3g.40gb": "2"}, True),
        ("mixed", "single", {"nvidia.com/mig-3g.40gb": "2"}, False),
        ("mixed", "", {"nvidia.com/gpu": "8"}, False),
        ("", "none", {"nvidia.com/mig-3g.40gb": "2"}, False),
    ],
)
def test_mig_devices_that_are_no_longer_offered_are_noted(
    before: str, after: str, node: dict[str, str], noted: bool
) -> None:
    then, now = (
        next(
            item
            for item in build(
                ClusterSettings(mig_strategy=strategy),
                dict.fromkeys(("devicePlugin", "gfd"), "a/b:c"),
            )
            if item["metadata"]["name"] == "nvidia-device-plugin-daemonset"
        )
        for strategy in (before, after)
    )
    change = Change(now, Action.UPDATE, tuple(differences(then, now)))

    class Nodes:
        def list(self, kind: object, namespace: str) -> list[dict[str, Any]]:
            return [{"metadata": {"name": "gpu1"}, "status": {"allocatable": node}}]

    notes = cluster_notes.mig_notes(cast(Any, Nodes()), [change] if change.differences else [])
    assert [note.partition(":")[0] for note in notes] == ["gpu1"] * noted
