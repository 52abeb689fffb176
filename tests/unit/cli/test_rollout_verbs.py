"""Every verb that changes nodes has the same waves and saved plans; the nodes are this machine, in folders of the test."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commandline import Cli, Done

from gpustate.cli.apply import show_result

STATES = 'states = ["filestates:LightFirst"]\n'
HOST = "ansible_connection: local, gpustate_state_folder"
NODES = tuple(f"n{number}" for number in range(1, 7))
ON = ("-i", "hosts.yml")
WAVES = "1 (n1), 1 (n2), 3 (n[3-5]), 1 (n6)"
LIMIT = "at most 25% of a cluster out of service at a time: 2 of these 6 nodes, if it has no others"


@pytest.fixture(autouse=True)
def six_nodes(project: Path) -> None:
    """Six nodes with a file each, whose change costs a drain."""
    (project / "gpustate.toml").write_text(STATES)
    nodes = "".join(
        f"    {name}: {{{HOST}: {project}/{name}, gpustate: {{light-first: {{path: {project}/{name}.txt}}}}}}\n"
        for name in NODES
    )
    (project / "hosts.yml").write_text(f"all:\n  hosts:\n{nodes}")
    write(project)


def write(project: Path, rollout: str = "", cost: str = "drain", text: str = "one") -> None:
    states = f"states:\n  light-first: {{path: /proc/nowhere, text: {text}, cost: {cost}}}\n"
    (project / "policy.yaml").write_text(f"format: gpustate.policy/1\n{rollout}{states}")


def apply(gpustate: Cli, *words: str) -> Done:
    return gpustate("apply", "policy.yaml", *ON, "--yes", *words)


def texts(project: Path) -> list[str]:
    return [
        path.read_text() if path.exists() else "" for path in (project / f"{n}.txt" for n in NODES)
    ]


def plan(gpustate: Cli, *words: str) -> dict[str, Any]:
    done = gpustate("plan", "policy.yaml", *ON, "-o", "json", *words)
    assert done.status == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


def test_a_change_that_costs_a_drain_has_waves_and_says_so_first(
    gpustate: Cli, project: Path
) -> None:
    assert plan(gpustate)["rollout"] == {
        "waves": [1, 1, 3, 1],
        "max_unavailable": "25%",
        "text": f"{WAVES}; stops at the first failure; {LIMIT}",
    }
    shown = gpustate("plan", "policy.yaml", *ON).out
    assert f"{WAVES}; stops at the first failure; {LIMIT}" in shown
    done = apply(gpustate)
    assert (done.status, texts(project)) == (0, ["one"] * 6), done
    assert "is in progress" not in done.err, "of a wave, every look"
    said = done.err.index(f"gpustate: waves: {WAVES}; stops at the first failure")
    assert said < done.err.index(" started")
    assert "wave 4 of 4: 1 node" in done.err
    for verb in ("remove", "rollback"):
        source = ("policy.yaml",) if verb == "remove" else ()
        done = gpustate(verb, *source, *ON, "--yes")
        assert (done.status, f"waves: {WAVES};" in done.err) == (0, True), done


def test_a_first_wave_that_fails_is_the_last_one(gpustate: Cli, project: Path) -> None:
    done = apply(gpustate, "--set", "light-first.script=exit 1")
    assert done.status == 1, done
    assert "Not started: n[2-6] (5 nodes)" in done.out
    assert [line[:2] for line in done.err.splitlines() if " started stage" in line] == ["n1"]


def test_a_change_that_costs_less_is_one_wave(gpustate: Cli, project: Path) -> None:
    write(project, cost="restart")
    assert "rollout" not in plan(gpustate)
    done = apply(gpustate)
    assert (done.status, "wave" in done.err) == (0, False), done


def test_nodes_that_change_come_first(gpustate: Cli, project: Path) -> None:
    """A first wave of a node that is right already would prove nothing."""
    assert apply(gpustate, "-l", "n1,n2,n3,n4").status == 0
    assert plan(gpustate)["rollout"]["waves"] == [1, 1]
    done = apply(gpustate)
    assert "waves: 1 (n5), 1 (n6); stops" in done.err
    assert "started: " not in done.err.partition("wave 1 of 2")[0]
    assert "changed=2 unchanged=4" in done.out


@pytest.mark.parametrize(
    ("rollout", "words", "waves"),
    [
        ("rollout: {canary: 1, serial: 50%}\n", (), [1, 3, 2]),
        ("rollout: {serial: [2, 100%], max_failures: 3}\n", (), [2, 4]),
        ("rollout: {serial: 1}\n", ("--set", "rollout.serial=50%"), [3, 3]),
        ("rollout: {serial: 1}\n", ("--serial", "2"), [2, 2, 2]),
        ("rollout: {canary: n5, serial: 100%}\n", (), [1, 5]),
        ("", ("--set", "rollout.canary=2"), [2, 1, 3]),
    ],
)
def test_the_command_line_and_the_policy_replace_the_defaults(
    rollout: str, words: tuple[str, ...], waves: list[int], gpustate: Cli, project: Path
) -> None:
    write(project, rollout)
    assert plan(gpustate, *words)["rollout"]["waves"] == waves
    if "serial: [2" in rollout:
        assert plan(gpustate)["rollout"]["text"].startswith("2 (n[1-2]), 4 (n[3-6]); stops at 3 ")


@pytest.mark.parametrize(
    ("rollout", "error"),
    [
        ("rollout: {serail: 1}\n", "rollout.serail: unknown key; did you mean 'serial'"),
        ("rollout: {serial: 0}\n", "rollout.serial: is '0', wanted numbers or percentages"),
        ("rollout: {max_unavailable: '1,2%'}\n", "rollout.max_unavailable: is '1,2%', wanted"),
        ("rollout: {max_failures: many}\n", "rollout.max_failures: is 'many', wanted a number"),
        ("rollout: 3\n", "rollout: is a number, wanted a mapping"),
    ],
)
def test_a_section_that_is_wrong_is_named_with_its_line(
    rollout: str, error: str, gpustate: Cli, project: Path
) -> None:
    write(project, rollout)
    done = gpustate("plan", "policy.yaml", *ON)
    assert done.status == 1
    assert f"policy.yaml:2: {error}" in done.err


def test_a_rollback_is_saved_shown_and_applied_as_planned(gpustate: Cli, project: Path) -> None:
    apply(gpustate)
    time.sleep(1)  # runs are listed by the second in their names
    apply(gpustate, "--set", "light-first.text=two")
    done = gpustate("rollback", *ON, "--out", "back.json", "--report", "back.html")
    assert (done.status, texts(project)) == (0, ["two"] * 6), done
    assert "apply it with: gpustate apply back.json -i hosts.yml" in done.out
    assert "goes back to before run" in (project / "back.html").read_text()
    assert "goes back to before run" in gpustate("plan", "back.json").out
    back = gpustate("apply", "back.json", *ON, "--yes", "-o", "json")
    result = json.loads(back.out)
    assert (back.status, result["verb"], texts(project)) == (0, "rollback", ["one"] * 6), back


def test_a_saved_rollback_is_stale_once_a_node_has_changed(gpustate: Cli, project: Path) -> None:
    apply(gpustate)
    time.sleep(1)
    apply(gpustate, "--set", "light-first.text=two")
    assert gpustate("rollback", *ON, "--out", "back.json").status == 0
    time.sleep(1)
    apply(gpustate, "--set", "light-first.text=three", "-l", "n1")
    done = gpustate("apply", "back.json", *ON, "--yes", "--serial", "100%")
    assert (done.status, texts(project)) == (5, ["three"] + ["one"] * 5), done
    assert "n1 has changed since" in done.out or "another run has changed n1" in done.out
    data = json.loads((project / "back.json").read_text())
    data["rollback"]["n2"]["run"] = "20260101-000000-aaaaaa"
    (project / "back.json").write_text(json.dumps(data))
    assert "altered" in gpustate("apply", "back.json", *ON, "--yes").err


def test_an_answer_of_no_changes_nothing_and_is_no_interruption(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from gpustate.cli.main import cli

    monkeypatch.chdir(project)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = CliRunner().invoke(cli, ["apply", "policy.yaml", *ON], input="n\n")
    assert str(result.exception) == "nothing was applied"
    assert (
        "Apply to n[1-6] (6 nodes), at worst drain on 6, in waves of 1, 1, 3, 1?" in result.output
    )
    assert texts(project) == [""] * 6


def test_a_dry_run_of_every_verb_changes_nothing(gpustate: Cli, project: Path) -> None:
    for words in (
        ("plan", "policy.yaml"),
        ("plan", "policy.yaml", "--remove"),
        ("rollback", "--dry-run"),
    ):
        done = gpustate(*words, *ON)
        assert (done.status, texts(project)) == (0, [""] * 6), done
        assert "nodes=6" in done.out


def test_help_has_its_options_below_headings(gpustate: Cli) -> None:
    common = {"Options:", "Nodes:"}
    waves = {"Rollout:"}
    for verb, more in (
        *(
            (verb, waves | {"Output:"})
            for verb in ("plan", "apply", "upgrade", "rollback", "remove")
        ),
        ("watch", waves | {"Policy:", "Kubernetes objects:"}),
        ("drift", {"Policy:", "Kubernetes objects:", "Output:"}),
    ):
        shown = gpustate(verb, "--help").out
        headings = [
            line for line in shown.splitlines() if line.endswith(":") and line[:1].isupper()
        ]
        assert common | more <= set(headings)
        options = shown.partition("\nOptions:\n")[2].partition("\n\n")[0]
        assert sum(line.startswith("  -") for line in options.splitlines()) <= 9, options


@pytest.mark.parametrize(("verb", "reminded"), [("upgrade", True), ("apply", False)])
def test_an_upgrade_ends_with_the_version_that_the_policy_still_names(
    verb: str, reminded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpustate", verb, "policy.yaml", "-i", "hosts.yml"]
    document = {"verb": verb, "run": "r", "nodes": [], "context": {"retry": words}}
    changed = SimpleNamespace(changed=True)
    result = SimpleNamespace(document=document, run="r", nodes=[changed], summary="nodes=1")
    for name in ("stopped", "skipped", "interrupted"):
        setattr(result, name, "")
    show_result(cast("Any", result), {"output": "text", "diff": False})
    said = capsys.readouterr().out
    for field, refused in (("spec.env[MIG_STRATEGY].value", True), ("spec.image", False)):
        changes = [{"field": field, "before": "mixed", "after": "none"}]
        row = {"object": "daemonset/plugin", "action": "update", "changes": changes}
        clusters = [{"server": "s", "namespace": "g", "objects": [row]}]
        document["clusters"] = clusters
        show_result(cast("Any", result), {"output": "text", "diff": False})
        with_objects = capsys.readouterr().out
        assert "-i hosts.yml (objects of the cluster are not restored" in with_objects
        assert (
            "it is refused where the MIG layout of before does not fit" in with_objects
        ) is refused
    assert "Way back: gpustate rollback r -i hosts.yml\n" in said
    assert ("Set the version in the policy too" in said) is reminded
