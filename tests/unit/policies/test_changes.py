"""``--set``, ``--values`` and ``--patch``: as Helm and kubectl have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpustate import policies, registry
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import parameters, resolve
from gpustate.errors import PolicyError
from gpustate.policies import Changes, jsonpatch, trees
from gpustate.policies.strvals import assignments

OWN = """\
format: gpustate.policy/1
states:
  driver:
    branch: 580
    parameters: {NVreg_A: 1, NVreg_B: 2}
  containerd: {enable_cdi: null}
"""
OPERATOR = """\
# The site's.
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: blue}
spec:
  driver:
    version: "580"
    kernelModuleConfig: {name: parameters}
  toolkit:
    env:
    - name: CONTAINERD_SET_AS_DEFAULT
      value: "true"
  gfd:
    enabled: true
---
apiVersion: v1
kind: ConfigMap
metadata: {name: parameters}
data:
  nvidia.conf: |
    NVreg_A=1
    NVreg_B=2
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(OWN, encoding="utf-8")
    Path("cp.yaml").write_text(OPERATOR, encoding="utf-8")


def pairs(text: str) -> list[tuple[tuple[str | int, ...], Any]]:
    return [(one.steps, one.value) for one in assignments(text)]


def changed(data: Any, **given: Any) -> Any:
    changes = Changes(**{name: (text,) for name, text in given.items()})
    return trees.plain(changes.on(trees.from_data(data, "x")).tree)


def message(source: str, **given: Any) -> str:
    changes = Changes(**{name: (text,) for name, text in given.items()})
    with pytest.raises(PolicyError) as caught:
        resolve(policies.load(source, changes=changes), InventoryNode("gpu1"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def states(source: str, **given: Any) -> dict[str, dict[str, Any]]:
    changes = Changes(**{name: (text,) for name, text in given.items()})
    return {s.name: parameters(s) for s in policies.load(source, changes=changes).states}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a=1", [(("a",), 1)]),
        ("a.b=x,c=y", [(("a", "b"), "x"), (("c",), "y")]),
        ("a=", [(("a",), "")]),
        ("a=,b=1", [(("a",), ""), (("b",), 1)]),
        ("a=b=c", [(("a",), "b=c")]),
        ("a=1.5", [(("a",), "1.5")]),
        ("a=0,b=007,c=-3,d=+4", [(("a",), 0), (("b",), "007"), (("c",), -3), (("d",), 4)]),
        ("a=9223372036854775808", [(("a",), "9223372036854775808")]),
        ("a=true,b=FALSE,c=Null", [(("a",), True), (("b",), False), (("c",), None)]),
        ("a=tru", [(("a",), "tru")]),
        ("a={x,1,true}", [(("a",), ["x", 1, True])]),
        ("a={},b=1", [(("a",), []), (("b",), 1)]),
        ("a={x},b=1", [(("a",), ["x"]), (("b",), 1)]),
        (r"a=x\,y", [(("a",), "x,y")]),
        (r"a={x\,y,z}", [(("a",), ["x,y", "z"])]),
        (r"a\.b.c=1", [(("a.b", "c"), 1)]),
        (r"a=\{x", [(("a",), "{x")]),
        ("a[0].b=1,a[0].c=2", [(("a", 0, "b"), 1), (("a", 0, "c"), 2)]),
        ("a[0][1]=x", [(("a", 0, 1), "x")]),
        ("a=1,", [(("a",), 1)]),
    ],
)
def test_set_reads_what_helm_reads(text: str, wanted: list[Any]) -> None:
    assert pairs(text) == wanted
    for (_, one), (_, other) in zip(pairs(text), wanted, strict=True):
        assert type(one) is type(other)


def test_double_quotes_make_text_of_everything() -> None:
    assert pairs('a="1",b="true",c={"2",x},d="",e="') == [
        (("a",), "1"),
        (("b",), "true"),
        (("c",), ["2", "x"]),
        (("d",), ""),
        (("e",), '"'),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "assigns nothing"),
        ("a", "the key 'a' has no value; write path=value"),
        ("a,b=1", "the key 'a' has no value"),
        ("=1", "a key has no name"),
        ("a..b=1", "a key has no name"),
        ("a.b", "the key 'b' has no value"),
        ("a[x]=1", "'x' is not an index, wanted 0 to 65536"),
        ("a[-1]=1", "'-1' is not an index"),
        ("a[99999]=1", "'99999' is not an index"),
        ("a[0=1", "is not an index"),
        ("a[0]b=1", "wanted '.', '[' or '=' after an index, not 'b'"),
        ("a[0]", "after an index"),
        ("a={x", "a list has no end; close it with '}'"),
        ("a={x}y", "text after the end of a list"),
        ("a\\", "ends with a backslash"),
        (".".join("a" * 40) + "=1", "more than 30 levels"),
    ],
)
def test_what_set_cannot_mean_is_one_error_that_repeats_it(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        assignments(text)
    assert str(caught.value).startswith("--set")
    assert said in str(caught.value)


def test_a_long_option_is_named_by_its_path_as_its_values_may_be_secrets() -> None:
    value = "SECRETabcdefghijklmnopqrstuv" * 3
    (assignment,) = assignments(f"gfd.env[0].value={value}")
    assert assignment.place == "--set 'gfd.env[0].value=...'"
    with pytest.raises(PolicyError) as caught:
        assignments(f"gfd.env={{{value}")
    assert "SECRET" not in str(caught.value)


def test_set_changes_lists_in_place_and_null_takes_away() -> None:
    data = {"a": [{"x": 1}, {"x": 2}], "b": {"c": 1, "d": 2}}
    assert changed(data, set_typed="a[1].x=5,a[2].y=6")["a"] == [{"x": 1}, {"x": 5}, {"y": 6}]
    assert changed(data, set_typed="b.c=null")["b"] == {"d": 2}
    assert changed(data, set_typed="a={}")["a"] == []
    assert data["a"] == [{"x": 1}, {"x": 2}]


def test_values_are_merged_key_by_key_and_lists_replaced() -> None:
    Path("v.yaml").write_text("b: {c: null, e: 3}\na: [9]\n")
    assert changed({"a": [1, 2], "b": {"c": 1, "d": 2}}, values="v.yaml") == {
        "a": [9],
        "b": {"d": 2, "e": 3},
    }


def test_the_order_is_helm_s_whatever_the_order_on_the_command_line() -> None:
    Path("v.yaml").write_text("a: values\n")
    Path("w.yaml").write_text("a: later values\n")
    given: dict[str, tuple[str, ...]] = {
        "patches": ('{"a": "patch"}',),
        "set_typed": ("a=first", "a=typed"),
        "values": ("v.yaml", "w.yaml"),
    }
    tree = trees.from_data({"a": "file"}, "x")
    seen: list[str] = []
    while given:
        seen.append(trees.plain(Changes(**given).on(tree).tree)["a"])
        given.pop(next(iter(given)))
    assert seen == ["patch", "typed", "later values"]


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_rfc_7386_says(before: Any, patch: Any, after: Any) -> None:
    made = jsonpatch.merge(trees.from_data(before, "x"), trees.from_data(patch, "y"), {})
    assert trees.plain(made) == after


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "q"}], {"baz": "q", "foo": "bar"}),
        (
            {"foo": ["a", "b"]},
            [{"op": "add", "path": "/foo/1", "value": "q"}],
            {"foo": ["a", "q", "b"]},
        ),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": [1, 2, 3]}, [{"op": "remove", "path": "/a/1"}], {"a": [1, 3]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/0", "value": 9}], {"a": [9, 2]}),
        (
            {"foo": {"bar": "baz", "w": "f"}, "q": {"c": "g"}},
            [{"op": "move", "from": "/foo/w", "path": "/q/t"}],
            {"foo": {"bar": "baz"}, "q": {"c": "g", "t": "f"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        (
            {"a": {"b": 1}},
            [{"op": "copy", "from": "/a", "path": "/c"}],
            {"a": {"b": 1}, "c": {"b": 1}},
        ),
        (
            {"a/b": 1, "m~n": 2},
            [{"op": "test", "path": "/a~1b", "value": 1}, {"op": "remove", "path": "/m~0n"}],
            {"a/b": 1},
        ),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"z": 0}}], {"z": 0}),
        ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
        ({"a": 1}, [{"op": "add", "path": "/a", "value": 2, "more": "is ignored"}], {"a": 2}),
    ],
)
def test_a_json_patch_does_what_rfc_6902_says(before: Any, patch: Any, after: Any) -> None:
    made = jsonpatch.apply(trees.from_data(before, "x"), trees.from_data(patch, "y"), {})
    assert trees.plain(made) == after


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (["x"], "operation 1 of the patch: is a string, expected a mapping"),
        ([{}], "does not contain 'op' member"),
        ([{"op": "ad", "path": "/a"}], "Unknown operation 'ad'"),
        ([{"op": "add", "value": 1}], "must have a 'path' member"),
        ([{"op": "add", "path": "/a"}], "does not contain a 'value' member"),
        ([{"op": "move", "path": "/a"}], "does not contain a 'from' member"),
        ([{"op": "add", "path": "a", "value": 1}], "(a): Location must start with /"),
        ([{"op": "add", "path": "/a~2", "value": 1}], "invalid escape ~2"),
        ([{"op": "add", "path": 5, "value": 1}], "'path' is a number, expected a string"),
        ([{"op": "remove", "path": "/nope"}], "(/nope): can't remove a non-existent object"),
        (
            [{"op": "replace", "path": "/d/nope", "value": 1}],
            "(/d/nope): can't replace a non-existent object 'nope'",
        ),
        ([{"op": "add", "path": "/x/y/z", "value": 1}], "(/x/y/z): member 'x' not found"),
        ([{"op": "add", "path": "/l/9", "value": 1}], "(/l/9): can't insert outside of list"),
        ([{"op": "add", "path": "/l/01", "value": 1}], "'01' is not a valid sequence index"),
        ([{"op": "remove", "path": "/l/-"}], "(/l/-): "),
        ([{"op": "test", "path": "/d/a", "value": True}], "the test expects 'True'"),
        (
            [{"op": "move", "from": "/d", "path": "/d/x"}],
            "Cannot move values into their own children",
        ),
        ([{"op": "add", "path": "/d/a/b", "value": 1}], "(/d/a/b): "),
        (
            [{"op": "add", "path": "/d/a", "value": 2}, {"op": "remove", "path": "/q"}],
            "operation 2 of the patch",
        ),
    ],
)
def test_what_a_json_patch_cannot_do_is_one_error(patch: Any, said: str) -> None:
    tree = trees.from_data({"d": {"a": 1}, "l": [1]}, "x")
    with pytest.raises(PolicyError) as caught:
        jsonpatch.apply(tree, trees.from_data(patch, "--patch"), {})
    assert said in str(caught.value)
    assert str(caught.value).startswith("--patch: ")
    assert trees.plain(tree) == {"d": {"a": 1}, "l": [1]}


def test_a_change_of_our_own_yaml_names_states_without_their_section() -> None:
    made = states("own.yaml", set_typed="driver.branch=570,driver.parameters.NVreg_A=null")
    assert made["driver"] == {"branch": 570, "parameters": {"NVreg_B": 2}}
    made = states("own.yaml", set_typed="states.nouveau.reboot_timeout_s=60,name=red")
    assert made["nouveau"] == {"reboot_timeout_s": 60}
    left = states("own.yaml", set_typed="containerd=null")
    assert "driver" in left
    assert "containerd" not in left


def test_null_in_values_means_the_default_and_in_a_json_patch_nothing_at_all() -> None:
    assert states("own.yaml", set_typed="containerd.enable_cdi=null")["containerd"] == {}
    patch = '[{"op": "add", "path": "/states/driver/version", "value": null}]'
    assert states("own.yaml", patches=patch)["driver"]["version"] is None


def test_the_name_of_a_state_can_be_changed_too() -> None:
    assert states("nouveau", set_typed="nouveau.reboot_timeout_s=60") == {
        "nouveau": {"reboot_timeout_s": 60}
    }


def test_a_policy_in_python_is_changed_by_the_names_of_its_states() -> None:
    Path("p.py").write_text(
        "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\n"
        "class Mine(DriverInstalled):\n    name = 'acme-driver'\n"
        "policy = Policy(DriverInstalled(branch=580), Mine(branch=550))\n"
    )
    made = states("p.py", set_typed="driver.branch=570,acme-driver.hold=false")
    assert made["driver"] == {"branch": 570}
    assert made["acme-driver"] == {"branch": 550, "hold": False}
    with pytest.raises(PolicyError, match=r"--set driver\.branch=x: states\.driver: branch: "):
        policies.load("p.py", changes=Changes(set_typed=("driver.branch=x",)))


@pytest.mark.parametrize(
    ("given", "start", "said"),
    [
        ({"set_typed": "driver.brnch=5"}, "--set driver.brnch=5: ", "did you mean 'branch'"),
        ({"set_typed": "drivr.branch=570"}, "--set drivr.branch=570: ", "unknown state 'drivr'"),
        (
            {"set_typed": "driver.branch=x"},
            "--set driver.branch=x: ",
            "wanted a whole number (given: 'x')",
        ),
        (
            {"set_typed": "driver.version=580"},
            "--set driver.version=580: ",
            "quote the value twice",
        ),
        (
            {"set_typed": "driver.branch.x=1"},
            "--set driver.branch.x=1: ",
            "is a number (own.yaml:4)",
        ),
        (
            {"set_typed": "driver[0]=1"},
            "--set driver[0]=1: ",
            "is a mapping (own.yaml:3), wanted a l",
        ),
        ({"set_typed": "format=x"}, "--set format=x: ", "wanted"),
        ({"set_typed": "groups.g.drivr.x=1"}, "--set groups.g.drivr.x=1: ", "has no state 'drivr'"),
        ({"values": "gone.yaml"}, "gone.yaml: ", "no such file"),
        ({"values": "list.yaml"}, "list.yaml:1: ", "is a list, wanted a mapping of values"),
        ({"values": "bad.yaml"}, "bad.yaml:2: ", "no parameter 'brnch'"),
        ({"values": "broken.yaml"}, "broken.yaml:2: ", "is not YAML"),
        ({"values": "twice.yaml"}, "twice.yaml:", "is set twice"),
        ({"patches": ""}, "--patch: ", "is empty, wanted a patch"),
        ({"patches": "5"}, "--patch: ", "is a number, wanted a patch"),
        ({"patches": "{"}, "--patch", "is not YAML"),
        ({"patches": "[]{"}, "--patch", "is not YAML"),
        ({"patches": "@gone.yaml"}, "gone.yaml: ", "no such file"),
        (
            {"patches": "@patch.yaml"},
            "patch.yaml:2: ",
            "(/states/gone): can't remove a non-existent object",
        ),
        ({"patches": '{"states": null}'}, "own.yaml:1: ", "lacks 'preset' and 'states'"),
        (
            {"patches": '[{"op":"replace","path":"","value":7}]'},
            "--patch: ",
            "is a number, wanted a",
        ),
        ({"patches": '{"states":{"driver":{"branch":1}}}'}, "--patch: ", "driver: branch: "),
    ],
)
def test_a_mistake_in_a_change_names_the_change(
    given: dict[str, str], start: str, said: str
) -> None:
    for name, text in {
        "list.yaml": "- 1\n",
        "bad.yaml": "driver:\n  brnch: 5\n",
        "broken.yaml": "driver: [\n",
        "twice.yaml": "driver: {}\nstates: {driver: {}}\n",
        "patch.yaml": "- {op: test, path: /states/driver/branch, value: 580}\n"
        "- {op: remove, path: /states/gone}\n",
    }.items():
        Path(name).write_text(text)
    said_now = message("own.yaml", **given)
    assert said_now.startswith(start), said_now
    assert said in said_now


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("device-plugin-config.config.version=v2", "v2"),
        ("dcgm-exporter.listen=:99999", "99999"),
        ("driver.version=570.1.1", "570"),
    ],
)
def test_a_change_is_to_blame_for_what_only_it_makes_wrong(change: str, said: str) -> None:
    Path("whole.yml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver: {branch: 580}\n  dcgm:\n  dcgm-exporter:\n"
        "  device-plugin-config:\n    config:\n      version: v1\n",
        encoding="utf-8",
    )
    told = message("whole.yml", set_typed=change)
    assert told.startswith(f"--set {change}: "), told
    assert said in told.removeprefix(f"--set {change}: ")


def test_a_mistake_that_was_there_before_a_change_keeps_its_line() -> None:
    Path("whole.yml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver:\n    branch: 580\n    version: 570.1.1\n",
        encoding="utf-8",
    )
    assert message("whole.yml", set_typed="driver.hold=false").startswith("whole.yml:")


def test_an_operator_file_is_changed_by_its_own_names() -> None:
    made = states("cp.yaml", set_typed='driver.version="570.10",toolkit.env[0].value="false"')
    assert made["driver"]["version"] == "570.10"
    assert made["containerd"]["default"] is False
    merge = json.dumps({"spec": {"driver": {"version": "570"}}})
    assert states("cp.yaml", patches=merge)["driver"]["branch"] == 570
    patch = json.dumps([{"op": "remove", "path": "/spec/driver/kernelModuleConfig"}])
    assert "parameters" not in states("cp.yaml", patches=patch)["driver"]
    assert "driver" not in states("cp.yaml", set_typed="spec.driver.enabled=false")


def test_a_change_of_an_operator_file_leaves_the_lines_of_the_rest_alone() -> None:
    changes = Changes(set_typed=('driver.version="570"', "toolkit.version=1.17.8"))
    before = policies.load("cp.yaml")
    policy = policies.load("cp.yaml", changes=changes)
    assert policy.places["states", "driver", "branch"] == '--set driver.version="570"'
    assert policy.places["states", "driver", "parameters"] == "cp.yaml:8"
    assert (
        policy.places["states", "containerd", "default"]
        == before.places["states", "containerd", "default"]
    )
    notes = [note for note in before.notes if "MIG layouts" in note]
    assert notes
    assert [note for note in policy.notes if "MIG layouts" in note] == notes
    assert ("states", "driver", "branch") in policy.last
    assert policy.replaced["states", "driver", "branch"] == (580, "cp.yaml:7")


@pytest.mark.parametrize(
    ("given", "start", "said"),
    [
        ({"set_typed": "driver.versoin=x"}, "--set driver.versoin=x: ", "driver.version"),
        (
            {"set_typed": "driver.version=570"},
            "--set driver.version=570: ",
            "quote the value twice",
        ),
        ({"set_typed": "spec.driver=7"}, "--set spec.driver=7: ", "wanted a mapping"),
        ({"patches": '{"spec": {"driver": {"enabled": "perhaps"}}}'}, "--patch: ", "a boolean"),
        ({"set_typed": "driver.kernelModuleConfig.name=gone"}, "--set driver.kernelM", "'gone'"),
    ],
)
def test_a_mistake_in_a_change_of_an_operator_file_names_it(
    given: dict[str, str], start: str, said: str
) -> None:
    text = message("cp.yaml", **given)
    assert text.startswith(start), text
    assert said in text


def test_a_mistake_of_the_file_itself_keeps_its_line_under_changes() -> None:
    Path("bad.yaml").write_text(OPERATOR.replace("NVreg_B=2", "NVreg_B"))
    text = message("bad.yaml", set_typed="cdi.enabled=true")
    assert text.startswith("bad.yaml:22: "), text
    Path("bad.yaml").write_text(OPERATOR.replace("gfd:", "gdf: {}\n  gfd: 7\n  x:"))
    assert message("bad.yaml", set_typed="cdi.enabled=true").startswith("bad.yaml:14: ")
