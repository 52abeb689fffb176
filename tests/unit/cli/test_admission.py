"""Condition, start-up taint and pods in the verbs: what is refused before a node or cluster is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli

from gpustate.cli.admission import taint_of
from gpustate.cli.health import _faults
from gpustate.core.policy import Policy
from gpustate.errors import PolicyError
from gpustate.manifests import ClusterObjects
from gpustate.manifests.settings import STARTUP_TAINT

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
        (("explain", "--pod", "b", *ON), "the nodes do not share one kubeconfig (none)"),
        (("explain", "--pod", "b", "--kubeconfig", "missing"), "cannot read the kubeconfig"),
        (("health", "--node-condition", *ON), "no node has a kubeconfig; pass --kubeconfig FILE"),
        (("validate", "cp.yaml", "--startup-taint", "a b", *ON), "startup_taint: 'a b' is not the key"),
        (("apply", "cp.yaml", "--yes", "--startup-taint", "a", *ON), "--startup-taint is only for objects"),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(gpustate: Cli, words: tuple[str, ...], error: str) -> None:
    done = gpustate(*words)
    assert done.status == 1
    assert error in done.err
    assert done.err.count("\n") == 1


def test_the_taint_is_that_of_the_command_line_the_policy_or_the_default() -> None:
    own = Policy(cluster=ClusterObjects(startup_taint="example.com/own"))
    assert taint_of(own, {"startup_taint": "example.com/option"}) == "example.com/option"
    assert taint_of(own, {}) == "example.com/own"
    assert taint_of(Policy(), {}) == STARTUP_TAINT
    for wrong in ("a/b/c", "key=value", "key:NoSchedule", "-x", "UPPER.example/x"):
        with pytest.raises(PolicyError, match="is not the key of a taint"):
            taint_of(Policy(), {"startup_taint": wrong})


def test_only_failed_findings_outside_of_quarantine_are_faults() -> None:
    def gpu(index: int, state: str, *levels: str) -> dict[str, object]:
        findings = [{"level": one, "evidence": f"{one} {index}"} for one in levels]
        return {"index": index, "pci": "p", "state": state, "findings": findings}

    gpus = [gpu(0, "well"), gpu(1, "failed", "failed", "warning"), gpu(2, "quarantine", "failed")]
    others = [{"pci": "q", "evidence": "Xid 79"}]
    assert _faults({"gpus": gpus, "others": others}) == ["GPU 1 (p): failed 1", "q: Xid 79"]
    assert _faults({"error": "NVML: lost"}) == ["NVML: lost"]
