"""Condition, start-up taint and pods in the verbs: what is refused before a node or cluster is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import Cli

from gpustate import policies
from gpustate.api.clusters import Clusters
from gpustate.cli.health import _faults
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.outcome import NodeResult, Outcome, StateResult
from gpustate.core.policy import Policy
from gpustate.errors import ClusterError, PolicyError
from gpustate.manifests import ClusterSettings, Component, DraDriver
from gpustate.manifests.cluster_part import settings_of
from gpustate.policies import Changes
from gpustate.reconcile import node_reports
from gpustate.reconcile.admission import Admitted, Line
from gpustate.reconcile.applying import Applied
from gpustate.reconcile.planning import Action, Change
from gpustate.reconcile.verdicts import Verdict, not_offered

ON = ("-i", "n1,n2")


@pytest.fixture(autouse=True)
def files(project: Path) -> None:
    (project / "cp.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {}\n"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("explain", *ON), "nothing to explain; name a NODE, or a pod"),
        (("explain", "n1", "--kubeconfig", "k", *ON), "--kubeconfig is only for --pod"),
        (("explain", "--pod", "a/b/c", *ON), "'a/b/c' is no pod; write NAMESPACE/NAME"),
        (("explain", "--pod", "a/", *ON), "'a/' is no pod"),
        (("explain", "--pod", "b"), "no cluster is named; pass --kubeconfig FILE"),
        (("explain", "--pod", "b", *ON), "no node has a kubeconfig; pass --kubeconfig FILE"),
        (("explain", "--pod", "b", "--kubeconfig", "missing"), "cannot read the kubeconfig"),
        (("health", "--node-condition", *ON), "no node has a kubeconfig; pass --kubeconfig FILE"),
        (("validate", "cp.yaml", "--set", "cluster.startup_taint=a b", *ON), "startup_taint: 'a b' is not the key"),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(gpustate: Cli, words: tuple[str, ...], error: str) -> None:
    done = gpustate(*words)
    assert done.status == 1
    assert error in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("wrong", ["a/b/c", "key=value", "key:NoSchedule", "-x", "UPPER.example/x"])
def test_a_key_that_no_taint_has_is_refused(wrong: str) -> None:
    with pytest.raises(PolicyError, match="is not the key of a taint"):
        ClusterSettings(startup_taint=wrong)


def test_the_taint_of_an_operator_file_is_set_beside_its_own_keys(tmp_path: Path) -> None:
    file = tmp_path / "cp.yaml"
    file.write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: c}\nspec: {}\n"
    )
    changes = Changes(set_typed=("cluster.startup_taint=example.com/own,cluster.namespace=gpus",))
    settings = settings_of(policies.load(str(file), changes=changes))
    assert (settings.startup_taint, settings.namespace) == ("example.com/own", "gpus")
    with pytest.raises(PolicyError, match=r"^--set cluster\.nmspace=x: cluster\.nmspace: "):
        policies.load(str(file), changes=Changes(set_typed=("cluster.nmspace=x",)))


def test_only_failed_findings_outside_of_quarantine_are_faults() -> None:
    def gpu(index: int, state: str, *levels: str) -> dict[str, object]:
        findings = [{"level": one, "evidence": f"{one} {index}"} for one in levels]
        return {"index": index, "pci": "p", "state": state, "findings": findings}

    gpus = [gpu(0, "well"), gpu(1, "failed", "failed", "warning"), gpu(2, "quarantine", "failed")]
    others = [{"pci": "q", "evidence": "Xid 79"}]
    assert _faults({"gpus": gpus, "others": others}) == ["GPU 1 (p): failed 1", "q: Xid 79"]
    assert _faults({"error": "NVML: lost"}) == ["NVML: lost"]


HERE, THERE = Kubeconfig("here"), Kubeconfig("there")
NODES = (
    NodeResult("a", states=[StateResult("quarantine", Outcome.CHANGED)]),
    NodeResult("b", states=[StateResult("quarantine", Outcome.UNCHANGED)]),
    NodeResult("c", states=[StateResult("quarantine", Outcome.CHANGED)]),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked of the clusters; nothing of it is done."""
    found: dict[str, Any] = {"restarted": []}

    def admit(cluster: Kubeconfig, nodes: list[NodeResult], **options: Any) -> Admitted:
        found.update(options, nodes=[one.name for one in nodes])
        return Admitted([Line("a", "written")], [Line("b", "forbidden")])

    def restart(
        cluster: Kubeconfig, nodes: list[NodeResult], stop: object
    ) -> list[tuple[str, bool, str]]:
        found["restarted"] += [one.name for one in nodes]
        return [(one.name, True, "restarted") for one in nodes]

    def withdraw(cluster: Kubeconfig, kept: object) -> Admitted:
        raise ClusterError(f"{cluster} is away")

    monkeypatch.setattr(node_reports, "admit", admit)
    monkeypatch.setattr(node_reports, "restart_plugins", restart)
    monkeypatch.setattr(node_reports, "withdraw", withdraw)
    return found


def admitted(done: Applied, *, absent: bool = False, **settings: Any) -> Applied:
    policy = Policy(cluster=ClusterSettings(**settings))
    kubeconfigs = {"a": HERE, "b": HERE, "c": THERE}
    clusters = Clusters(policy, kubeconfigs, absent)
    clusters._admit(done, HERE, NODES, lambda: False)
    return done


def test_a_node_without_the_device_plugins_pod_is_not_healthy() -> None:
    passed = Verdict("True", "Validated", "driver: 580.65.06 loaded")
    said = not_offered(passed, "taint gpu=true:NoSchedule is not tolerated")
    assert (said.status, said.reason) == ("Unknown", "DevicePluginMissing")
    assert said.message == "no pod of the device plugin: taint gpu=true:NoSchedule is not tolerated"
    failed = Verdict("False", "XidError", "health: Xid 79")
    assert not_offered(failed, "a taint") == failed
    assert not_offered(passed, "") == passed


def test_nodes_of_a_cluster_are_admitted_when_its_objects_are_as_wanted(
    calls: dict[str, Any],
) -> None:
    done = admitted(Applied(), startup_taint="example.com/own")
    assert calls["nodes"] == ["a", "b"]
    assert (calls["taint"], calls["blocked"]) == ("example.com/own", "")
    assert calls["offers_gpus"]
    assert calls["restarted"] == ["a"], "only where the list of GPUs in quarantine has changed"
    assert done.notes == ["a: restarted", "node/a: written"]
    assert done.failures == ["node/b: forbidden"]
    admitted(Applied(), device_plugin=Component(enabled=False))
    assert not calls["offers_gpus"]


@pytest.mark.parametrize("done", [Applied(failures=["x"]), Applied([Change({}, Action.REFUSED)])])
def test_no_node_is_admitted_beside_unfinished_objects(
    calls: dict[str, Any], done: Applied
) -> None:
    admitted(done)
    assert calls["blocked"] == "objects of the cluster are not as wanted"
    assert not calls["restarted"]


def test_pods_that_do_not_run_keep_a_node_out_only_where_they_offer_its_gpus(
    calls: dict[str, Any],
) -> None:
    collector = "deployment/gpu-operator-node-feature-discovery-gc: 0 of 1 pods are available"
    plugin = "daemonset/nvidia-dra-driver-kubelet-plugin: 0 of 1 pods are available"
    admitted(Applied(unready=[collector]))
    assert not calls["blocked"]
    admitted(Applied(unready=[collector]), dra_driver=DraDriver())
    assert not calls["blocked"]
    admitted(Applied(unready=[plugin]), dra_driver=DraDriver())
    assert calls["blocked"] == "objects of the cluster are not as wanted"


def test_an_error_is_added_to_what_was_done(calls: dict[str, Any]) -> None:
    done = admitted(Applied([Change({}, Action.DELETE)]), absent=True)
    assert done.failures == ["here is away"]
    assert len(done.changes) == 1
