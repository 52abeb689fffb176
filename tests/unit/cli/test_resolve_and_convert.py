"""``resolve``, ``convert`` and the options that change a policy, as commands."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from commandline import Cli
from jsonschema import Draft202012Validator

from gpustate.formats import openpgp

OWN = """\
format: gpustate.policy/1
states:
  nouveau: {reboot_timeout_s: 900}
  persistenced:
groups:
  gpu:
    nouveau: {reboot_timeout_s: 600}
"""
ON = ("-i", "hosts.ini")


@pytest.fixture(autouse=True)
def files(project: Path) -> None:
    (project / "p.yaml").write_text(OWN)
    (project / "hosts.ini").write_text("[gpu]\nn1\nn2\n")
    (project / "group_vars").mkdir()
    (project / "group_vars" / "gpu.yml").write_text(
        "gpustate:\n  persistenced:\n    uvm_persistence: true\n"
    )
    (project / "plan.json").write_text('{"format": "gpustate.plan/1", "nodes": []}')


def test_a_node_s_values_are_shown_with_their_places(gpustate: Cli) -> None:
    done = gpustate("policy", "resolve", "n1", "p.yaml", *ON)
    assert done.status == 0, done
    assert done.out.splitlines() == [
        "n1  groups: gpu",
        "  nouveau.reboot_timeout_s      600   group gpu: p.yaml:7",
        "  persistenced.uvm_persistence  true  group gpu: group_vars/gpu.yml:3",
    ]
    done = gpustate(
        "policy",
        "resolve",
        "n1",
        "p.yaml",
        *ON,
        "--why",
        "nouveau",
        "--set",
        "nouveau.reboot_timeout_s=60",
    )
    assert done.out.splitlines()[:4] == [
        'nouveau.ensure = "present"',
        '  default: "present"',
        "nouveau.only = null",
        "  default: null",
    ]
    assert done.out.splitlines()[4:] == [
        "nouveau.reboot_timeout_s = 60",
        "  command line: 60  --set nouveau.reboot_timeout_s=60",
        "  group gpu: 600  p.yaml:7",
        "  fleet: 900  p.yaml:3",
        "  default: 900",
    ]


def test_a_preset_is_printed_with_the_origin_of_each_state(gpustate: Cli, project: Path) -> None:
    (project / "p.yaml").write_text("preset: slurm-node\ndriver: {branch: 580}\n")
    done = gpustate("policy", "resolve", "p.yaml")
    assert done.status == 0, done
    rows = done.out.splitlines()
    assert rows[0] == "fleet  without groups and nodes"
    assert "  nouveau             defaults  preset slurm-node (p.yaml:1)" in rows
    assert "  driver.branch       580       fleet: p.yaml:2" in rows
    done = gpustate("policy", "resolve", "n1", "p.yaml", *ON, "--why", "validator.handler")
    assert done.out.splitlines()[1] == '  fleet: ""  preset slurm-node (p.yaml:1)'
    document = json.loads(gpustate("policy", "resolve", "p.yaml", "-o", "json").out)
    assert document["origins"]["nouveau"] == "preset slurm-node (p.yaml:1)"
    assert (document["node"], document["groups"]) == ("", [])
    schema = json.loads(
        (resources.files("gpustate.policies") / "schema" / "resolved.json").read_text()
    )
    Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ("{}", "  cluster  defaults  p.yaml:2"),
        ("{dcgm_exporter: {}}", "  cluster.dcgm_exporter  defaults  p.yaml:2"),
    ],
)
def test_the_objects_of_the_cluster_are_printed(
    gpustate: Cli, project: Path, settings: str, row: str
) -> None:
    (project / "p.yaml").write_text(f"states: {{nouveau: {{}}}}\ncluster: {settings}\n")
    assert gpustate("policy", "resolve", "p.yaml").out.splitlines()[-1] == row
    document = json.loads(gpustate("policy", "resolve", "p.yaml", "-o", "json").out)
    assert document["cluster"] == ({} if settings == "{}" else {"dcgm_exporter": {}})


def test_sections_beside_the_states_have_their_places(gpustate: Cli, project: Path) -> None:
    (project / "p.yaml").write_text(
        "states: {nouveau: {}}\nrollout: {max_unavailable: 2}\ndrain: {gpu_pods: {timeout_s: 100}}\n"
    )
    assert gpustate("policy", "resolve", "p.yaml").out.endswith(
        '  rollout.max_unavailable  2  p.yaml:2\n  drain.gpu_pods  {"timeout_s": 100}  p.yaml:3\n'
    )
    for why in ("rollout", "rollout.max_unavailable"):
        done = gpustate("policy", "resolve", "p.yaml", "--why", why)
        assert done.out == "  rollout.max_unavailable  2  p.yaml:2\n"
    assert "no state 'rollot'" in gpustate("policy", "resolve", "p.yaml", "--why", "rollot").err


def test_the_reason_for_which_a_state_comes_along_is_named(gpustate: Cli, project: Path) -> None:
    (project / "p.yaml").write_text("states: {driver: {branch: 580}}\n")
    for verb in ("graph", "resolve"):
        assert (
            "comes with driver: GPUs behind NVSwitches need it"
            in gpustate("policy", verb, "p.yaml").out
        )
    done = gpustate("policy", "resolve", "p.yaml", "--why", "driver-repository.unless_offered")
    assert done.out.splitlines()[1].startswith("  fleet: true  comes with driver: its packages")


def test_a_key_is_shown_by_its_fingerprint(gpustate: Cli, project: Path) -> None:
    key = (Path(__file__).parents[2] / "data/openpgp/one.asc").read_text()
    (project / "p.yaml").write_text(json.dumps({"states": {"driver-repository": {"key": key}}}))
    done = gpustate("policy", "resolve", "p.yaml")
    assert f"PGP key {openpgp.fingerprints(key)[0]}  fleet: p.yaml:1" in done.out
    assert "BEGIN PGP" not in done.out


def test_the_document_of_a_node_keeps_to_its_schema(gpustate: Cli) -> None:
    text = (
        resources.files("gpustate.policies").joinpath("schema", "resolved.json").read_text("utf-8")
    )
    validator = Draft202012Validator(json.loads(text))
    for words in ((), ("--all",), ("--set", "nouveau.reboot_timeout_s=null")):
        done = gpustate("policy", "resolve", "n1", "p.yaml", *ON, "-o", "json", *words)
        assert done.status == 0, done
        validator.validate(json.loads(done.out))


def test_a_policy_is_converted_to_standard_output_or_a_file(gpustate: Cli, project: Path) -> None:
    done = gpustate("policy", "convert", "p.yaml", "--to", "python", "--out", "p.py")
    assert (done.status, done.out, done.err) == (0, "", "")
    one, other = (
        gpustate("policy", "resolve", "n1", name, *ON, "--all", "-o", "json")
        for name in ("p.yaml", "p.py")
    )
    assert [row["value"] for row in json.loads(one.out)["values"]] == [
        row["value"] for row in json.loads(other.out)["values"]
    ]
    done = gpustate("policy", "convert", "p.yaml", "--to", "yaml", "-o", "json")
    assert json.loads(done.out)["lost"] == []


def test_the_schema_of_all_states_is_printed(gpustate: Cli) -> None:
    done = gpustate("policy", "schema")
    Draft202012Validator.check_schema(json.loads(done.out))


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (
            ("policy", "resolve", "n1", "p.yaml", *ON, "--why", "nouveu"),
            "--why: the policy has no state 'nouveu'; did you mean nouveau",
        ),
        (
            ("policy", "resolve", "n1", "p.yaml", *ON, "--why", "nouveau.x"),
            "--why: nouveau has no value 'nouveau.x'; ",
        ),
        (("policy", "resolve", "n1", "p.yaml", *ON, "--why", "\\"), "--why \\: ends with"),
        (("policy", "resolve", "n9", "p.yaml", *ON), "'n9' is neither a node"),
        (("policy", "resolve", "gpu", "p.yaml", *ON), "'gpu' matches 2 nodes; name one node"),
        (("policy", "resolve", "n1", "gone.yaml", *ON), "gone.yaml: no such file"),
        (
            ("policy", "convert", "p.yaml"),
            "no output format; run, for example: gpustate policy convert p.yaml --to yaml",
        ),
        (
            ("policy", "convert", "p.yaml", "--to", "toml"),
            "policy convert: Invalid value for '--to'",
        ),
        (
            ("policy", "convert", "p.yaml", "--to", "yaml", "--out", "no/x"),
            "no/x: no is not a directory",
        ),
        (
            ("policy", "convert", "p.yaml", "--to", "yaml", "--set", "x"),
            "--set x: the key 'x' has no value",
        ),
        (
            ("plan", "p.yaml", *ON, "--set", "nouveau.x=1"),
            "--set nouveau.x=1: states.nouveau: no parameter 'x'",
        ),
        (("plan", "p.yaml", *ON, "--values", "gone"), "gone: no such file"),
        (("drift", "p.yaml", *ON, "-p", "x"), "--patch: is a string, wanted a patch"),
        (("drift", "p.yaml", *ON, "-p", "@gone"), "gone: no such file"),
        (
            ("image", "bake", "p.yaml", "--root", "no", "--set", "nouveau.x=1"),
            "--set nouveau.x=1: ",
        ),
        (
            ("apply", "p.yaml", *ON, "--yes", "--set", 'nouveau.reboot_timeout_s="1"'),
            "--set nouveau.",
        ),
        (
            ("apply", "plan.json", *ON, "--yes", "--set", "a=1"),
            "--set a=1: a saved plan is applied exactly as it was saved",
        ),
    ],
)
def test_a_mistake_costs_one_line_and_writes_nothing(
    words: tuple[str, ...], start: str, gpustate: Cli, project: Path, home: Path
) -> None:
    before = sorted(path.name for path in project.iterdir())
    done = gpustate(*words)
    assert (done.status, done.out) == (1, ""), done
    assert done.err.startswith(f"gpustate: {start}"), done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in project.iterdir()) == before
    assert list(home.iterdir()) == []


STRANGE = """\
format: gpustate.policy/1
states:
  nouveau:
groups:
  gqu:
    nouveau: {reboot_timeout_s: 600}
  all:
    nouveau: {reboot_timeout_s: 600}
nodes:
  n22:
    nouveau: {reboot_timeout_s: 600}
  n2:
    nouveau: {reboot_timeout_s: 600}
"""


@pytest.mark.parametrize(
    "words", [("policy", "resolve", "n1"), ("plan", "-l", "n1"), ("driver", "solve", "-l", "n1")]
)
def test_names_that_the_inventory_does_not_have_are_noted_with_line_and_nearest(
    gpustate: Cli, project: Path, words: tuple[str, ...]
) -> None:
    (project / "hosts.ini").write_text("[gpu]\nn1 ansible_host=127.0.0.1 ansible_port=1\nn2\n")
    (project / "s.yaml").write_text(STRANGE)
    done = gpustate(*words, "s.yaml", *ON)
    notes = [line for line in done.err.splitlines() if ": note: " in line]
    assert notes == [
        "gpustate: note: s.yaml:5: groups: the inventory has no group 'gqu'; did you mean 'gpu'",
        "gpustate: note: s.yaml:7: groups: 'all' has no effect; what is for all nodes stands below"
        " 'states'",
        "gpustate: note: s.yaml:10: nodes: the inventory has no node 'n22'; did you mean 'n2'",
    ], "n2 is in the inventory, although beside the limit"


@pytest.mark.parametrize(
    ("option", "value", "place"),
    [
        (
            "--set",
            "groups.gqu.nouveau.reboot_timeout_s=9",
            "--set groups.gqu.nouveau.reboot_timeout_s=9",
        ),
        ("--values", "v.yaml", "v.yaml:1"),
        ("--patch", '{"groups": {"gqu": {"nouveau": {"reboot_timeout_s": 9}}}}', "--patch"),
        ("--patch", "@v.yaml", "v.yaml:1"),
    ],
)
def test_an_unknown_group_of_the_command_line_is_an_error(
    option: str, value: str, place: str, gpustate: Cli, project: Path
) -> None:
    (project / "hosts.ini").write_text("[gpu]\nn1 ansible_host=127.0.0.1 ansible_port=1\n")
    (project / "s.yaml").write_text("states: {nouveau: }\n")
    (project / "v.yaml").write_text("groups: {gqu: {nouveau: {reboot_timeout_s: 9}}}\n")
    done = gpustate("plan", "s.yaml", *ON, option, value)
    assert done.status == 1
    assert done.err == (
        f"gpustate: {place}: groups: the inventory has no group 'gqu'; did you mean 'gpu'\n"
    )


def test_a_policy_for_a_whole_other_site_is_noted_in_a_few_lines(
    gpustate: Cli, project: Path
) -> None:
    nodes = {f"x{n}": {"nouveau": {}} for n in range(500)}
    text = {"format": "gpustate.policy/1", "states": {"nouveau": {}}, "nodes": nodes}
    (project / "s.yaml").write_text(json.dumps(text))
    done = gpustate("policy", "resolve", "n1", "s.yaml", *ON)
    assert done.status == 0
    assert done.err.count(": note: ") == 11
    assert "nodes: and 490 more that the inventory does not have" in done.err


def test_a_state_that_a_patch_takes_away_blames_the_patch(gpustate: Cli) -> None:
    for change, place in (
        (("-p", '{"states":{"nouveau":null}}'), "--patch"),
        (("--set", "nouveau=null"), "--set nouveau=null"),
    ):
        done = gpustate("policy", "resolve", "n1", "p.yaml", *ON, *change)
        assert done.status == 1
        assert done.err.startswith(
            f"gpustate: {place}: removes the state 'nouveau', which groups.gpu changes (p.yaml:7);"
            " remove that too"
        ), done.err


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ('driver: {hold: "no"}', "hold: wanted true or false (given: 'no', which is text; quotes"),
        ("driver: {hold: 5}", "hold: wanted true or false (given: 5)"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(
    gpustate: Cli, project: Path, state: str, told: str
) -> None:
    (project / "w.yaml").write_text(f"format: gpustate.policy/1\nstates:\n  {state}\n")
    done = gpustate("policy", "convert", "w.yaml", "--to", "python")
    assert done.status == 1
    assert done.err.startswith("gpustate: w.yaml:3: ")
    assert told in done.err


def test_an_operator_file_is_read_for_its_release_and_strictly_when_asked(
    gpustate: Cli, project: Path
) -> None:
    (project / "v.yaml").write_text("driver: {version: 550.90.07, useOpenKernelModules: true}\n")
    done = gpustate("policy", "resolve", "n1", "v.yaml", *ON, "--release", "v24.6.1")
    assert "driver.module_type" in done.out
    assert '"open"' in done.out
    assert "module_type" not in gpustate("policy", "resolve", "n1", "v.yaml", *ON).out
    done = gpustate("policy", "convert", "v.yaml", "--to", "yaml", "--release", "v24.6.1")
    assert "module_type: open" in done.out
    done = gpustate("policy", "resolve", "n1", "v.yaml", *ON, "--release", "v24.6.9")
    assert (done.status, "did you mean v24.6.2" in done.err) == (1, True)
    (project / "v.yaml").write_text("driver: {versoin: x}\n")
    assert gpustate("policy", "resolve", "n1", "v.yaml", *ON).status == 0
    done = gpustate("policy", "convert", "v.yaml", "--to", "yaml", "--strict")
    assert (done.status, "did you mean driver.version" in done.err) == (1, True)
