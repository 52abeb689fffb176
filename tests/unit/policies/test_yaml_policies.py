"""Policies in gpustate's own YAML: closed, and every mistake has its file, line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gpustate import policies, registry
from gpustate.core.policy import parameters
from gpustate.errors import PolicyError
from gpustate.policies import Kind, document, schemas

GOOD = """\
format: gpustate.policy/1
name: blue
states:
  preflight: {gpus: 8xH100}
  nouveau:
  driver:
    branch: 580
    parameters:
      NVreg_A: 1
  containerd:
    only: runtime('containerd')
groups:
  inference:
    driver: {branch: 570}
nodes:
  gpu2:
    driver: {hold: false}
    allow: {b: this board is a sample}
allow:
  a: because
"""
TOP = "format: gpustate.policy/1\n"
STATES = TOP + "states:\n"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "p.yaml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_policy_in_yaml_has_states_layers_and_exceptions() -> None:
    policy = policies.load(write(GOOD))
    assert policies.kind("p.yaml") is Kind.YAML
    listed = ("preflight", "nouveau", "driver", "containerd")
    assert {s.name: parameters(s) for s in policy.states if s.name in listed} == {
        "preflight": {"gpus": "8xH100"},
        "nouveau": {},
        "driver": {"branch": 580, "parameters": {"NVreg_A": 1}},
        "containerd": {"only": "runtime('containerd')"},
    }
    assert policy.groups == {"inference": {"driver": {"branch": 570}}}
    assert policy.nodes["gpu2"]["driver"] == {"hold": False}
    assert (policy.name, policy.allow) == ("blue", {"a": "because"})
    assert policy.places["states", "driver", "parameters", "NVreg_A"] == "p.yaml:9"
    assert policy.places["groups", "inference", "driver", "branch"] == "p.yaml:14"


def test_the_same_policy_as_json_is_the_same() -> None:
    one = policies.load(write(GOOD))
    other = policies.load(write(json.dumps(yaml.safe_load(GOOD), indent=2), "p.json"))
    assert policies.kind("p.json") is Kind.YAML
    assert document.as_data(one) == document.as_data(other)


def test_a_long_comment_before_it_does_not_hide_what_it_is() -> None:
    text = "# words\n" * 2000 + GOOD
    assert document.as_data(policies.load(write(text))) == document.as_data(
        policies.load(write(GOOD, "short.yaml"))
    )


def test_a_policy_without_a_name_is_called_after_its_file() -> None:
    assert policies.load(write(STATES + "  nouveau: {}\n", "site.yaml")).name == "site"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("format: gpustate.policy/2\nstates: {}\n", 1, "format is 'gpustate.policy/2', wanted"),
        (
            TOP,
            1,
            "lacks 'preset' and 'states'; write: preset: kubernetes-node, or list states under",
        ),
        (TOP + "states: []\n", 2, "states is a list, wanted a mapping"),
        (TOP + "states: driver\n", 2, "states is a string, wanted a mapping"),
        (TOP + "state:\n  driver: {}\n", 2, "unknown key 'state'; did you mean 'states'"),
        (TOP + "driver:\n  branch: 1\n", 2, "unknown key 'driver'; move it below 'states'"),
        (TOP + "drivr:\n", 2, "unknown key 'drivr'; did you mean 'driver', below 'states'"),
        (TOP + "drian: {}\n", 2, "unknown key 'drian'; did you mean 'drain'"),
        (
            "fromat: gpustate.policy/1\nstates: {}\n",
            1,
            "unknown key 'fromat'; did you mean 'format'",
        ),
        (
            TOP + "zzz: 1\nstates: {}\n",
            2,
            "unknown key 'zzz'; supported keys: format, name, preset, states",
        ),
        (TOP + "name: 5\nstates: {}\n", 2, "name is a number, wanted a string; put it in quotes"),
        (STATES + "  drivr: {}\n", 3, "states: unknown state 'drivr'; did you mean driver"),
        (STATES + "  driver: 580\n", 3, "states.driver is a number, wanted a mapping"),
        (STATES + "  driver:\n    hold: true\n    brnch: 5\n", 5, "no parameter 'brnch'; did you"),
        (STATES + "  driver:\n    branch: 5\n", 4, "states.driver: branch: wanted 400 or more"),
        (
            STATES + "  driver:\n    version: 580.10\n",
            4,
            "version: wanted text (given: 580.10); put it in quotes",
        ),
        (
            STATES + "  driver:\n    hold: 'yes'\n",
            4,
            "hold: wanted true or false (given: 'yes', which is text; quotes make it that)",
        ),
        (STATES + "  driver:\n    parameters:\n      A: 1\n      B: [1]\n", 6, "parameters.B"),
        (STATES + "  driver-repository:\n    components:\n    - main\n    - 5\n", 6, "components"),
        (
            STATES + "  nouveau:\n    only: group(x)\n",
            4,
            "condition 'group(x)': 'x' is not a value",
        ),
        (STATES + "  driver: {}\n  driver: {}\n", 4, "the key 'driver' is a duplicate of line 3"),
        (STATES + "  driver: {branch: .nan}\n", 3, "states.driver.branch is .nan, wanted a number"),
        (STATES + "  driver: !!python/name:os.system {}\n", 3, "tag"),
        (STATES + "  driver: !x 1\n", 3, "the tag '!x' is not supported"),
        (STATES + "\tdriver: {}\n", 3, "a tab used for indentation"),
        (STATES + "  driver: {}\n---\nx: 1\n", 4, "a second document begins, wanted one"),
        (STATES + "  driver: {}\nallow: {a: ''}\n", 4, "allow: a: wants a reason, as text"),
        (STATES + "  driver: {}\nallow: [a]\n", 4, "allow: must map rules to reasons"),
        (STATES + "  driver: {}\ngroups: [a]\n", 4, "groups is a list, wanted a mapping"),
        (STATES + "  driver: {}\ngroups:\n  a: 5\n", 5, "groups.a is a number, wanted"),
        (
            STATES + "  driver: {}\ngroups:\n  a:\n    drivr: {}\n",
            6,
            "groups.a: the policy has no state 'drivr'; did you mean 'driver'",
        ),
        (
            STATES + "  driver: {}\nnodes:\n  a:\n    driver:\n      branch: x\n",
            7,
            "nodes.a: driver: branch: wanted a whole number (given: 'x')",
        ),
        (STATES + "  driver: {}\nnodes:\n  a:\n    driver: 7\n", 6, "nodes.a: driver: must map"),
        (STATES + "  driver: {}\nnodes:\n  a:\n    allow: {r: 1}\n", 6, "allow: r: wants a reason"),
    ],
)
def test_a_mistake_is_one_line_with_file_line_and_key(text: str, line: int, said: str) -> None:
    path = write(text)
    with pytest.raises(PolicyError) as caught:
        policies.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: "), caught.value
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_the_published_schema_is_the_one_the_states_make() -> None:
    text = schemas.FILE.read_text("utf-8")
    assert text == schemas.published(), "write it anew: python -m gpustate.policies.schemas"
    Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (GOOD, True),
        (STATES + "  driver:\n", True),
        (STATES + "  driver: {brnch: 5}\n", False),
        (STATES + "  drivr: {}\n", False),
        (STATES + "  driver: {branch: 5}\n", False),
        (STATES + "  driver: {version: 580.10}\n", False),
        (TOP + "state: {}\n", False),
        ("states: {}\n", True),
        ("preset: kubernetes-node\ndriver: {branch: 580}\nquarantine: false\n", True),
        ("preset: plain-node\nstates: {driver: {branch: 580}, mig: {}}\n", True),
        (
            "preset: image\nname: a\npyinfra-x: {operation: files.directory, arguments: {path: /a}}\n",
            True,
        ),
        (TOP + "driver: {branch: 580}\nstates: {}\n", False),
        ("preset: kubernetes\n", False),
        ("preset: image\ndriver: {brnch: 580}\n", False),
        ("preset: image\ndrivr: {}\n", False),
        ("preset: image\ndriver: true\n", False),
        (STATES + "  driver: {}\nnodes: {a: {driver: {branch: x}}}\n", False),
        (STATES + "  driver: {}\nallow: {a: ''}\n", False),
    ],
)
def test_the_schema_says_of_a_text_what_the_reader_says(text: str, good: bool) -> None:
    validator = Draft202012Validator(json.loads(schemas.FILE.read_text("utf-8")))
    assert validator.is_valid(yaml.safe_load(text)) is good
    try:
        policies.load(write(text))
        read = True
    except PolicyError:
        read = False
    assert read is good


def test_every_parameter_in_the_schema_is_described_and_every_mapping_closed() -> None:
    made: dict[str, Any] = json.loads(schemas.FILE.read_text("utf-8"))["$defs"]
    for name in made["states"]["properties"]:
        assert made[name]["additionalProperties"] is False
        assert made[name]["description"], name
        assert "description" in made[name]["properties"]["ensure"]
    assert made["driver"]["properties"]["branch"]["description"].startswith("driver branch")
