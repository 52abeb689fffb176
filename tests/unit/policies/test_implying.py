"""States that come with those of a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpustate import Policy, policies, registry
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import parameters, resolve
from gpustate.policies import converting, document


@pytest.fixture(autouse=True)
def _in_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.chdir(tmp_path)


def load(text: str, name: str = "p.yaml", **options: Any) -> Policy:
    Path(name).write_text(text, encoding="utf-8")
    return policies.load(name, changes=policies.Changes(**options) if options else None)


def states(policy: Policy) -> dict[str, dict[str, Any]]:
    return {state.name: parameters(state) for state in policy.states}


def test_a_driver_and_a_toolkit_bring_what_they_need_with_the_reason() -> None:
    policy = load("states: {driver: {branch: 580}, container-toolkit: , containerd: }\n")
    found = states(policy)
    assert set(found) - {"driver", "container-toolkit", "containerd"} == {
        *("nouveau", "driver-repository", "fabric-manager", "nvlsm"),
        *("toolkit-repository", "cdi", "dev-char"),
    }
    assert found["driver-repository"] == {"unless_offered": True}
    assert policy.places["states", "nouveau"].startswith("comes with driver: the kernel's own")
    assert policy.places["states", "nvlsm"].startswith("comes with fabric-manager: ")


def test_a_listed_state_is_as_it_is_listed_and_a_false_one_does_not_come() -> None:
    text = "states: {driver: , driver-repository: {origin: distribution}, nouveau: false}\n"
    found = states(load(text))
    assert found["driver-repository"] == {"origin": "distribution"}
    assert "nouveau" not in found
    assert "nouveau" not in states(load("states: {driver: }\n", set_typed=("nouveau=false",)))


def test_a_removed_state_and_a_single_one_bring_nothing() -> None:
    assert states(load("states: {driver: {ensure: absent}}\n")).keys() == {"driver"}
    assert states(policies.load("driver")).keys() == {"driver"}
    changes = policies.Changes(set_typed=("driver.branch=580",))
    assert states(policies.load("driver", changes=changes)) == {"driver": {"branch": 580}}


def test_it_comes_to_the_nodes_of_the_states_that_need_it() -> None:
    text = "states: {driver: , containerd: {only: group('a')}, crio: {only: node('b*')}}\n"
    assert states(load(text))["dev-char"] == {"only": "(group('a') | node('b*'))"}
    text = "states: {driver: , containerd: {only: group('a')}, crio: }\n"
    assert states(load(text))["dev-char"] == {}


def test_none_comes_that_needs_what_the_policy_leaves_to_others() -> None:
    found = states(load("states: {container-toolkit: , containerd: }\n"))
    assert found.keys() == {"container-toolkit", "containerd", "toolkit-repository"}
    found = states(load("states: {container-toolkit: , driver: {ensure: absent}}\n"))
    assert "cdi" not in found


def test_it_is_overridden_for_groups_and_removed_with_the_policy() -> None:
    text = "states: {driver: }\ngroups: {a: {nouveau: {reboot_timeout_s: 60}}}\n"
    policy = load(text)
    node = InventoryNode("n", groups=("a",))
    nouveau = next(s for s in resolve(policy, node).states if s.name == "nouveau")
    assert parameters(nouveau) == {"reboot_timeout_s": 60}
    removed = policy.with_ensure("absent")
    assert all(state.absent for state in removed.states)
    assert "nouveau" in states(removed)


def test_a_policy_in_python_has_them_too_and_leaves_them_out_by_without() -> None:
    text = (
        "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\n"
        "policy = Policy(DriverInstalled(branch=580){})\n"
    )
    assert "nouveau" in states(load(text.format(""), "p.py"))
    changed = load(text.format(""), "p.py", set_typed=("driver.branch=570",))
    assert changed.places["states", "nouveau"].startswith("comes with driver: ")
    assert "nouveau" not in states(load(text.format(", without=['nouveau']"), "p.py"))


@pytest.mark.parametrize("to", ["yaml", "python"])
def test_a_conversion_neither_adds_nor_loses_them(to: str) -> None:
    policy = load("states: {driver: , nouveau: false}\n")
    done = converting.convert(policy, to)
    assert done.lost == ()
    again = load(done.text, "again.yaml" if to == "yaml" else "again.py")
    assert document.as_data(again) == document.as_data(policy)


def test_a_parameter_of_a_removed_state_is_a_note() -> None:
    text = (
        "states:\n  mig: {ensure: absent, config: all-1g.20gb}\ngroups:\n"
        "  a: {mig: {config: all-1g.10gb}}\n  b: {mig: {ensure: present}}\n"
    )
    policy = load(text)
    expected = "p.yaml:4: mig.config has no effect, ensure is absent (p.yaml:2)"
    assert resolve(policy, InventoryNode("n", groups=("a",))).notes == (expected,)
    assert resolve(policy, InventoryNode("n", groups=("a", "b"))).notes == ()
    assert resolve(policy, InventoryNode("n")).notes == ()
    changed = load(text, set_typed=("mig.config=all-1g.18gb",))
    place = "--set mig.config=all-1g.18gb: mig.config has no effect, ensure is absent (p.yaml:2)"
    assert place in resolve(changed, InventoryNode("n")).notes
