"""Layers of a policy: who wins, and where every value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpustate import inventory, policies, registry
from gpustate.api.saved import policy_of
from gpustate.core.inventory import InventoryNode
from gpustate.core.layers import REMOVED
from gpustate.core.policy import Policy, layers_of, parameters, resolve
from gpustate.core.provenance import resolution
from gpustate.errors import PolicyError
from gpustate.plan.document import policy_data
from gpustate.policies import Changes
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted

OWN = """\
format: gpustate.policy/1
states:
  driver:
    branch: 580
    parameters: {NVreg_A: 1}
groups:
  gpu:
    driver: {branch: 575}
  inference:
    driver:
      branch: 570
      parameters: {NVreg_B: 2}
nodes:
  gpu2:
    driver: {hold: false}
    allow: {rule: a sample}
"""
HOSTS = """\
all:
  vars:
    gpustate: {driver: {headers: require}}
  children:
    gpu:
      children:
        inference: {hosts: {gpu1: {}, gpu2: {}}}
        train: {hosts: {gpu3: {}}}
      vars:
        gpustate:
          driver:
            module_type: open
"""


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.chdir(tmp_path)
    for folder in ("group_vars", "host_vars"):
        Path(folder).mkdir()
    Path("p.yaml").write_text(OWN)
    Path("hosts.yml").write_text(HOSTS)
    Path("host_vars/gpu1.yml").write_text(
        'kind: \'{{ "propri" + "etary" }}\'\n'
        "gpustate:\n  driver:\n    module_type: '{{ kind }}'\n    parameters: {NVreg_B: 3}\n"
    )


def node(name: str) -> InventoryNode:
    return inventory.load("hosts.yml", limit=name).nodes[0]


def driver(policy: Policy, name: str) -> dict[str, Any]:
    return parameters(resolve(policy, node(name)).states[0])


def why(policy: Policy, name: str, *path: str) -> list[tuple[str, str, Any]]:
    found = resolution(policy, node(name))
    value = next(value for value in found.values if value.path == ("driver", *path))
    return [(said.layer, said.place, said.value) for said in value.trace]


def test_the_narrower_layer_wins_value_by_value() -> None:
    policy = policies.load("p.yaml")
    common = {"headers": "require", "parameters": {"NVreg_A": 1}}
    assert driver(policy, "gpu3") == {"branch": 575, "module_type": "open", **common}
    assert driver(policy, "gpu2") == {
        "branch": 570,
        "hold": False,
        "module_type": "open",
        "headers": "require",
        "parameters": {"NVreg_A": 1, "NVreg_B": 2},
    }
    assert driver(policy, "gpu1") == {
        "branch": 570,
        "module_type": "proprietary",
        "headers": "require",
        "parameters": {"NVreg_A": 1, "NVreg_B": 3},
    }
    assert resolve(policy, node("gpu2")).allow == {"rule": "a sample"}


def test_every_value_says_who_said_it_and_who_was_overruled() -> None:
    policy = policies.load("p.yaml")
    assert why(policy, "gpu1", "branch") == [
        ("fleet", "p.yaml:4", 580),
        ("group gpu", "p.yaml:8", 575),
        ("group inference", "p.yaml:11", 570),
    ]
    assert why(policy, "gpu1", "module_type") == [
        ("group gpu", "hosts.yml:12", "open"),
        ("node gpu1", "host_vars/gpu1.yml:4", "proprietary"),
    ]
    assert why(policy, "gpu1", "parameters", "NVreg_B") == [
        ("group inference", "p.yaml:12", 2),
        ("node gpu1", "host_vars/gpu1.yml:5", 3),
    ]
    assert why(policy, "gpu1", "headers") == [("fleet", "hosts.yml:3", "require")]
    assert why(policy, "gpu1", "hold") == []


def test_the_command_line_is_the_last_word_and_says_what_stood_there() -> None:
    policy = policies.load("p.yaml", changes=Changes(set_typed=("driver.branch=550",)))
    assert driver(policy, "gpu1")["branch"] == 550
    assert why(policy, "gpu1", "branch") == [
        ("fleet", "p.yaml:4", 580),
        ("group gpu", "p.yaml:8", 575),
        ("group inference", "p.yaml:11", 570),
        ("command line", "--set driver.branch=550", 550),
    ]
    changes = Changes(set_typed=("driver.parameters=null,groups.inference.driver.branch=565",))
    policy = policies.load("p.yaml", changes=changes)
    made = driver(policy, "gpu1")
    assert (made["branch"], made.get("parameters", {})) == (565, {})
    assert driver(policy, "gpu3")["branch"] == 575


def test_nodes_to_which_the_same_is_said_share_their_states() -> None:
    Path("hosts.yml").write_text(HOSTS.replace("gpu2: {}", "gpu2: {}, gpu4: {}, gpu5: {}"))
    policy = policies.load("p.yaml")
    four, five = (resolve(policy, node) for node in inventory.load("hosts.yml", limit="gpu4,gpu5"))
    assert all(one is other for one, other in zip(four.states, five.states, strict=True))


def test_a_wrong_value_of_a_layer_is_one_line_at_its_own_place() -> None:
    Path("host_vars/gpu1.yml").write_text("gpustate:\n  driver:\n    hold: true\n    branch: x\n")
    with pytest.raises(PolicyError) as caught:
        resolve(policies.load("p.yaml"), node("gpu1"))
    said = str(caught.value)
    assert said.startswith("host_vars/gpu1.yml:4: gpu1: gpustate: driver: branch: ")
    Path("host_vars/gpu1.yml").write_text("gpustate:\n  driver: 5\n")
    with pytest.raises(
        PolicyError, match=r"^host_vars/gpu1\.yml:2: gpu1: gpustate: driver: must map"
    ):
        resolve(policies.load("p.yaml"), node("gpu1"))
    Path("host_vars/gpu1.yml").write_text("gpustate:\n  drivr: {}\n")
    with pytest.raises(PolicyError, match=r"^host_vars/gpu1\.yml:2: .* there is no state 'drivr'"):
        resolve(policies.load("p.yaml"), node("gpu1"), registered=("driver",))


def test_what_is_said_for_a_state_that_the_policy_lacks_is_listed() -> None:
    Path("host_vars/gpu1.yml").write_text("gpustate:\n  mig: {}\n")
    found = resolution(policies.load("p.yaml"), node("gpu1"), registered=("driver", "mig"))
    assert found.unused == (
        "host_vars/gpu1.yml:2: node gpu1: mig is not in the policy, and not used",
    )


def test_layers_in_python_are_those_in_yaml() -> None:
    policy = Policy(
        DriverInstalled(branch=580, parameters={"NVreg_A": 1}),
        groups={
            "gpu": {"driver": {"branch": 575}},
            "inference": {"driver": {"branch": 570, "parameters": {"NVreg_B": 2}}},
        },
        nodes={"gpu2": {"driver": {"hold": False}, "allow": {"rule": "a sample"}}},
    )
    for name in ("gpu1", "gpu2", "gpu3"):
        assert driver(policy, name) == driver(policies.load("p.yaml"), name)


def test_removal_is_the_last_word_too() -> None:
    policy = Policy(DriverInstalled(), groups={"gpu": {"driver": {"ensure": "present"}}})
    assert driver(policy.with_ensure("absent"), "gpu3")["ensure"] == "absent"


def test_a_part_of_a_policy_keeps_what_is_said_about_it() -> None:
    whole = Policy(
        DriverInstalled(),
        NouveauBlacklisted(),
        groups={"gpu": {"driver": {"branch": 575}, "nouveau": {"reboot_timeout_s": 60}}},
    )
    part = whole.with_states(whole.states[1])
    assert part.groups == {"gpu": {"nouveau": {"reboot_timeout_s": 60}}}
    assert [layer.title for layer in layers_of(part, node("gpu3"))][:2] == ["fleet", "fleet"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "from gpustate import Policy\n"
            "from gpustate.states.driver import DriverInstalled as Driver, DriverInstalled\n"
            "policy = Policy(\n    DriverInstalled(\n        branch=580,\n"
            "        parameters={\n            'NVreg_A': 1,\n        },\n    ),\n"
            "    groups={\n        'gpu': {'driver': {\n            'hold': False}}},\n)\n",
            {"branch": 5, "parameters.NVreg_A": 7, "hold": 12},
        ),
        (
            "from gpustate import Policy\nfrom gpustate.states import driver as d\n"
            "mine = d.DriverInstalled(\n    branch=580,\n)\npolicy = Policy(mine)\n",
            {"branch": 4},
        ),
        (
            "from gpustate import presets\npolicy = presets.slurm_node(\n"
            "    driver={\n        'branch': 580,\n    },\n)\n",
            {"branch": 4},
        ),
        (
            "from gpustate import Policy, presets\n"
            "policy = Policy(\n    *presets.slurm_node(driver={\n        'branch': 580}).states,\n)\n",
            {"branch": 4},
        ),
        (
            "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\n"
            "def made():\n    return DriverInstalled(branch=580)\npolicy = Policy(made())\n",
            {"branch": 5},
        ),
    ],
)
def test_values_of_a_python_policy_have_their_lines(text: str, lines: dict[str, int]) -> None:
    Path("p.py").write_text(text)
    policy = policies.load("p.py", origins=True)
    for path, line in lines.items():
        said = why(policy, "gpu3", *path.split("."))
        assert f"p.py:{line}" in [place for _, place, _ in said], (path, said)


def test_a_value_that_was_taken_away_says_so() -> None:
    policy = policies.load("p.yaml", changes=Changes(set_typed=("driver.branch=null",)))
    assert why(policy, "gpu1", "branch")[-1] == (
        "command line",
        "--set driver.branch=null",
        REMOVED,
    )
    assert "branch" not in driver(policy, "gpu1")


MIRROR = """\
all:
  children:
    gpu:
      hosts: {gpu1: {}, gpu2: {}}
      vars:
        gpustate: {driver-repository: {origin: mirror, signed: nothing, url: "http://mirror/old"}}
    other: {hosts: {gpu3: {}}}
"""


def test_parameters_of_a_weaker_layer_that_do_not_fit_are_named_with_options_that_help() -> None:
    Path("hosts.yml").write_text(MIRROR)
    Path("p.yaml").write_text("states: {driver-repository: {}}\n")
    change = "driver-repository.origin=distribution"
    with pytest.raises(PolicyError) as caught:
        resolve(policies.load("p.yaml", changes=Changes(set_typed=(change,))), node("gpu1"))
    options = "--set driver-repository.signed=null --set driver-repository.url=null"
    places = "signed (hosts.yml:6: gpu1: gpustate) and url (hosts.yml:6: gpu1: gpustate)"
    assert caught.value.fix == f"remove {places}, or add {options}"
    changes = (change, *options.replace("--set ", "").split())
    policy = policies.load("p.yaml", changes=Changes(set_typed=changes))
    assert parameters(resolve(policy, node("gpu1")).states[0])["origin"] == "distribution"


@pytest.mark.parametrize("where", ["file", "--set", "group"])
def test_parameters_of_several_layers_have_to_fit_together_on_a_node_only(where: str) -> None:
    Path("hosts.yml").write_text(MIRROR)
    given = "{driver-repository: {url: 'http://mirror/new'}}"
    texts = {
        "file": f"states: {given}\n",
        "--set": "states: {driver-repository: {}}\n",
        "group": f"states: {{driver-repository: {{}}}}\ngroups: {{gpu: {given}, other: {given}}}\n",
    }
    Path("p.yaml").write_text(texts[where])
    change = ("driver-repository.url=http://mirror/new",) if where == "--set" else ()
    policy = policies.load("p.yaml", changes=Changes(set_typed=change))
    for saved in (
        policy,
        policy_of({"policy": policy_data(policy, "p.yaml")}, policies.load, "plan.json"),
    ):
        repository = parameters(resolve(saved, node("gpu1")).states[0])
        # The inventory is the stronger one, apart from the command line.
        assert repository["url"] == f"http://mirror/{'new' if where == '--set' else 'old'}"
        with pytest.raises(PolicyError, match="url belongs to origin 'mirror'") as caught:
            resolve(saved, node("gpu3"))
    with pytest.raises(PolicyError) as caught:
        resolve(policy, node("gpu3"))
    place = {
        "file": "p.yaml:1",
        "--set": "--set driver-repository.url=http://mirror/new",
        "group": "p.yaml:2",
    }
    assert str(caught.value).startswith(f"{place[where]}: ")
