"""Presets and the examples of the manual."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpustate import policies, presets, registry
from gpustate.core.policy import Policy, parameters
from gpustate.errors import PolicyError
from gpustate.testing import FakeNode, check_contract, converge

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.setattr(sys, "path", list(sys.path))


def names(policy: Policy) -> list[str]:
    return [state.name for state in policy.states]


def test_a_kubernetes_node_has_the_stack_a_clusterpolicy_has_and_what_that_has_no_word_for() -> (
    None
):
    stack = names(policies.load(str(EXAMPLES / "clusterpolicy.yaml")))
    assert sorted([*stack, "quarantine"]) == sorted(names(presets.kubernetes_node()))


def test_a_slurm_node_and_an_image_leave_out_what_makes_no_sense_there() -> None:
    assert "containerd" not in names(presets.slurm_node())
    assert "validator" in names(presets.slurm_node())
    whole = names(presets.kubernetes_node())
    assert names(presets.image()) == whole


def test_an_override_gives_parameters_and_none_leaves_a_state_out() -> None:
    policy = presets.kubernetes_node(driver={"branch": 570}, driver_repository=None)
    assert "driver-repository" not in names(policy)
    driver = next(state for state in policy.states if state.name == "driver")
    assert parameters(driver) == {"branch": 570}


def test_a_preset_s_own_parameters_stay_beside_an_override() -> None:
    policy = presets.slurm_node(validator={"timeout_s": 60})
    validator = next(state for state in policy.states if state.name == "validator")
    assert parameters(validator) == {"handler": "", "timeout_s": 60}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"drivr": {}}, "'slurm-node' has no state 'drivr'; did you mean 'driver'"),
        ({"containerd": {}}, "has no state 'containerd'"),
        ({"driver": {"brnch": 570}}, "no parameter 'brnch'; did you mean 'branch'"),
    ],
)
def test_a_wrong_override_is_one_error(overrides: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        presets.slurm_node(**overrides)


@pytest.mark.parametrize("example", ["policy.py", "clusterpolicy.yaml"])
def test_the_examples_are_policies_of_the_whole_stack(example: str) -> None:
    stack = names(policies.load(str(EXAMPLES / example)))
    whole = set(names(presets.kubernetes_node())) - {"quarantine"}
    # The example in Python is for nodes with containerd.
    others = {"k3s", "k0s", "microk8s", "crio", "dev-char", "gpu-labels", "nvlsm"}
    assert set(stack) == (whole - others if example == "policy.py" else whole)


def test_the_example_of_a_state_of_one_s_own_converges_and_keeps_the_contract() -> None:
    policy = policies.load(str(EXAMPLES / "own-states" / "policies" / "cluster.py"))
    state = policy.states[-1]
    assert (policy.name, state.name) == ("cluster", "acme-memlock")
    node = FakeNode("gpu1")
    check_contract(state, node)
    list(converge(state, node))
    text = node.files["/etc/security/limits.d/90-acme-memlock.conf"]
    assert text == "* soft memlock unlimited\n* hard memlock unlimited\n"


def test_an_override_that_is_no_dict_is_refused_by_name() -> None:
    wrong: dict[str, Any] = {"driver": 580}
    with pytest.raises(PolicyError, match="parameters of 'driver' as a dict, not 580"):
        presets.kubernetes_node(**wrong)
