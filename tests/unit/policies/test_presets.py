"""Presets and the examples of the manual."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpustate import policies, presets, registry
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import Policy, parameters, resolve
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


def test_a_plain_node_has_the_runtimes_of_hosts_without_a_scheduler() -> None:
    stack = names(presets.plain_node())
    assert {"containerd", "docker", "podman", "cdi", "validator"} <= set(stack)
    assert not {"gpu-labels", "quarantine", "k3s"} & set(stack)


@pytest.mark.parametrize("example", ["policy.py", "policy.yaml", "clusterpolicy.yaml"])
def test_the_examples_are_policies_of_the_whole_stack(example: str) -> None:
    stack = names(policies.load(str(EXAMPLES / example)))
    whole = set(names(presets.kubernetes_node()))
    whole -= set() if example == "policy.yaml" else {"quarantine"}
    # The example in Python is for nodes with containerd.
    others = {"k3s", "k0s", "microk8s", "crio", "gpu-labels"}
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


# --- presets in YAML


def load(text: str, folder: Path, **options: Any) -> Policy:
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    changes = policies.Changes(**options)
    return policies.load(str(path), changes=changes if options else None)


def states(policy: Policy) -> dict[str, dict[str, Any]]:
    return {state.name: parameters(state) for state in policy.states}


@pytest.mark.parametrize("name", presets.STACKS)
def test_a_preset_in_yaml_is_the_one_in_python(name: str, tmp_path: Path) -> None:
    python = getattr(presets, name.replace("-", "_"))
    text = f"preset: {name}\ndriver: {{branch: 580}}\n"
    wanted = states(python(driver={"branch": 580}))
    if name == "plain-node":
        wanted["dev-char"] = {}  # comes with the runtimes
    assert states(load(text, tmp_path)) == wanted
    listed = f'{{"preset": "{name}", "states": {{"driver": {{"branch": 580}}}}}}'
    assert states(load(listed, tmp_path)) == wanted


def test_states_are_added_to_a_preset_changed_removed_and_left_out(tmp_path: Path) -> None:
    text = (
        "preset: slurm-node\nslurm-gres:\nvalidator: {timeout_s: 60}\n"
        "persistenced: {ensure: absent}\nquarantine: false\n"
    )
    policy = load(text, tmp_path)
    found = states(policy)
    assert found["slurm-gres"] == {}
    assert found["validator"] == {"handler": "", "timeout_s": 60}
    assert found["persistenced"] == {"ensure": "absent"}
    assert "quarantine" not in found
    place = str(tmp_path / "p.yaml")
    assert policy.places["states", "nouveau"] == f"preset slurm-node ({place}:1)"
    assert policy.places["states", "validator", "handler"] == f"preset slurm-node ({place}:1)"
    assert policy.places["states", "validator", "timeout_s"] == f"{place}:3"


@pytest.mark.parametrize(
    ("options", "branch"),
    [
        ({"set_typed": ("driver.branch=570",)}, 570),
        ({"set_typed": ("states.driver.branch=570",)}, 570),
        ({"set_typed": ("preset=image,driver.branch=570",)}, 570),
        ({"patches": ("{driver: {branch: 570}}",)}, 570),
        ({"patches": ("{states: {driver: {branch: 570}}}",)}, 570),
        ({"patches": ("[{op: replace, path: /driver/branch, value: 570}]",)}, 570),
        ({"patches": ("[{op: add, path: /states/driver/branch, value: 570}]",)}, 570),
        ({"patches": ("[{op: remove, path: /driver/branch}]",)}, None),
    ],
)
def test_a_preset_is_overridden_like_every_policy(
    options: dict[str, tuple[str, ...]], branch: int | None, tmp_path: Path
) -> None:
    text = "preset: kubernetes-node\ndriver: {branch: 580}\n"
    policy = load(text, tmp_path, **options)
    assert states(policy)["driver"].get("branch") == branch
    assert len(states(policy)) == len(presets.kubernetes_node().states)


def test_a_state_of_a_preset_is_removed_by_a_patch_and_left_out_by_a_set(tmp_path: Path) -> None:
    patch = "[{op: remove, path: /quarantine}, {op: add, path: /dev-char, value: {ensure: absent}}]"
    policy = load("preset: kubernetes-node\n", tmp_path, patches=(patch,))
    assert "quarantine" not in states(policy)
    assert states(policy)["dev-char"] == {"ensure": "absent"}
    policy = load("preset: kubernetes-node\n", tmp_path, set_typed=("quarantine=false",))
    assert "quarantine" not in states(policy)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("preset: kubernetes-nod\n", {}, "p.yaml:1: there is no preset 'kubernetes-nod'; did you"),
        ("preset: 7\n", {}, "p.yaml:1: there is no preset '7'; presets: kubernetes-node, slurm-"),
        ("prest: kubernetes-node\n", {}, "p.yaml:1: unknown key 'prest'; did you mean 'preset'"),
        ("preset: image\ndrivr: {}\n", {}, "p.yaml:2: states: unknown state 'drivr'; did you mean"),
        ("preset: image\ndrian: {}\n", {}, "p.yaml:2: unknown key 'drian'; did you mean 'drain'"),
        (
            "preset: image\ndriver: {brnch: 5}\n",
            {},
            "p.yaml:2: states.driver: no parameter 'brnch'",
        ),
        ("preset: image\ndriver: 5\n", {}, "p.yaml:2: states.driver is a number, wanted a mapping"),
        ("preset: image\nstates: {driver: }\ndriver: \n", {}, "p.yaml:3: driver is set twice"),
        ("preset: image\nstates: [driver]\n", {}, "p.yaml:2: states is a list, wanted a mapping"),
        ("preset: image\n", {"patches": ("{preset: x}",)}, "--patch: a patch cannot change the"),
        (
            "preset: image\n",
            {"set_typed": ("preset=imag",)},
            "--set preset=imag: there is no preset",
        ),
        (
            "preset: image\n",
            {"set_typed": ("driver.brnch=5",)},
            "--set driver.brnch=5: states.driv",
        ),
        ("driver: {}\nstates: {}\n", {}, "p.yaml:1: unknown key 'driver'; move it below 'states'"),
    ],
)
def test_a_mistake_beside_a_preset_names_its_line(
    text: str, options: dict[str, tuple[str, ...]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        load(text, tmp_path, **options)
    assert message in str(caught.value)


def test_a_state_of_groups_and_nodes_only_applies_there(tmp_path: Path) -> None:
    text = (
        "preset: kubernetes-node\n"
        "groups:\n  inference: {mig: {config: all-1g.10gb}}\n"
        "  label('pool', 'gold'): {mig: {config: all-3g.40gb}}\n"
        "nodes:\n  gpu7: {dcgm: {}}\n"
    )
    policy = load(text, tmp_path)
    assert states(policy)["mig"] == {"only": "(group('inference') | label('pool', 'gold'))"}
    assert states(policy)["dcgm"] == {"only": "node('gpu7')"}
    inside = resolve(policy, InventoryNode("gpu1", groups=("inference",)))
    mig = next(state for state in inside.states if state.name == "mig")
    assert parameters(mig)["config"] == "all-1g.10gb"
