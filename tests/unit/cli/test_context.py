"""Plans as people approve them, on the command line: where they come from, removal, retries, drift."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from commandline import Cli
from pages import plan

from gpustate.cli import apply, context

POLICY = """
from filestates import First, Third
from gpustate import Policy

policy = Policy(First(path="{folder}/a"), Third(path="{folder}/c"), notes=("a note on the policy",))
"""
REFUSING = """
from filestates import First, Third
from gpustate import Policy

class Refusing(First):
    def refuse(self, seen):
        return "x.service is masked"

policy = Policy(Refusing(path="{folder}/a"), Third(path="{folder}/c"), notes=("a note on the policy",))
"""

UNREADABLE = """
from filestates import First
from gpustate import Policy
from gpustate.errors import RefusedError

class Unreadable(First):
    def probe(self, node):
        raise RefusedError("line 3 is no TOML")

policy = Policy(Unreadable(path="{folder}/a"))
"""

FORESEEN = """
from filestates import First, Second
from gpustate import Plan, Policy

class Foreseen(Second):
    def forecast(self, node, preview):
        return Plan(refusal="nothing is offered")

policy = Policy(First(path="{folder}/a"), Foreseen())
"""


@pytest.fixture
def site(project: Path, tmp_path: Path) -> Path:
    """A policy, and an inventory of this machine and of one that is not there."""
    (project / "policy.py").write_text(POLICY.format(folder=tmp_path))
    here = f"here ansible_connection=local gpustate_state_folder={tmp_path}/state"
    far = "far[1:2] ansible_host=127.0.0.1 ansible_port=1"
    (project / "hosts").write_text(f"[near]\n{here}\n[gone]\n{far}\n")
    return tmp_path


#: Only root believes SUDO_USER.
PERSON = f"{getpass.getuser() if os.geteuid() else 'ann'}@{socket.gethostname()}"
NOTE = "a note on the policy"
ON = ("-i", "hosts", "-l", "near")


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_an_apply_prints_the_warnings_of_its_policy(
    site: Path, project: Path, gpustate: Cli
) -> None:
    (project / "values.yaml").write_text("driver: {brand: x}\n")
    done = gpustate("apply", "values.yaml", "-i", "hosts", "-l", "far1", "--yes")
    assert "gpustate: values.yaml:1: warning: unknown key 'driver.brand'" in done.err
    assert "defaults of the chart" not in done.err
    removed = gpustate("remove", "values.yaml", "-i", "hosts", "-l", "far1", "--yes")
    assert "warning" not in removed.err


def test_a_plan_names_inventory_limit_commit_and_person(
    gpustate: Cli, site: Path, project: Path
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(project)]
    for words in (["init", "-q"], ["add", "policy.py"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    reports = ("--report", "p.html", "--report", "p.md", "--out", "p.json")
    done = gpustate("plan", "policy.py", *ON, *reports, SUDO_USER="ann")
    assert done.status == 0, done
    assert NOTE in done.out
    commit = head.stdout[:12]
    assert read(project / "p.json")["context"] == {
        "inventory": "hosts",
        "limit": "near",
        "person": PERSON,
        "commit": commit,
        "retry": ["gpustate", "plan", "policy.py", "-i", "hosts"],
    }
    page, text = (project / "p.html").read_text(), (project / "p.md").read_text()
    for name, value in (("Inventory", "hosts"), ("Limit", "near"), ("Commit", commit)):
        assert f"<dt>{name}</dt><dd><code>{value}</code></dd>" in page
        assert f"- {name}: `{value}`\n" in text
    assert PERSON in page
    (project / "policy.py").write_text((project / "policy.py").read_text() + "\n")
    assert context.commit(str(project / "policy.py")) == (f"{commit} (with uncommitted changes)")
    (project / "other.py").write_text("")
    assert context.commit(str(project / "other.py")) == "", "not in the repository"


def test_no_program_of_a_policys_folder_runs(project: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(project)]
    policy = project / "policy.py"
    policy.write_text("policy = 1\n")
    (project / ".gitattributes").write_text("*.py filter=x diff=x\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    ran = project / "ran"
    for key in (
        "core.fsmonitor",
        "filter.x.clean",
        "filter.x.smudge",
        "core.pager",
        "diff.x.textconv",
    ):
        subprocess.run([*git, "config", key, f"sh -c 'echo {key} >>{ran}; cat'"], check=True)
    assert len(context.commit(str(policy))) == 12
    policy.write_text(policy.read_text() + "\n")
    assert context.commit(str(policy)).endswith("(with uncommitted changes)")
    assert not ran.exists()


def test_nodes_that_were_not_reached_stand_last_with_a_command_that_works(
    gpustate: Cli, site: Path
) -> None:
    done = gpustate("plan", "policy.py", "-i", "hosts", "--set", 'first.text="a b"')
    assert done.status == 4
    lines = done.out.splitlines()
    assert lines[0].startswith("here")
    at = lines.index("Not planned: 2 nodes")
    assert lines[at + 1].startswith("far[1-2] (2 nodes)  unreachable")
    retry = "gpustate plan policy.py -i hosts --set 'first.text=\"a b\"' -l 'far[1-2]'"
    assert f"Retry: {retry}" in lines
    assert lines[-2].startswith("Plan: 1 node would change")
    words = ("plan", "policy.py", "-i", "hosts", "--set", 'first.text="a b"', "-l", "far[1-2]")
    again = gpustate(*words)
    assert again.status == 4
    assert " nodes=2 " in f" {again.out.splitlines()[-1]}"


def test_a_removal_is_planned_saved_shown_and_carried_out(
    gpustate: Cli, site: Path, project: Path
) -> None:
    path = site / "plugin.yaml"
    (project / "p.yaml").write_text(
        "format: gpustate.policy/1\nstates:\n  device-plugin-config:\n"
        f"    {{config: {{version: v1}}, path: {path}, unit: ''}}\n"
    )
    assert gpustate("apply", "p.yaml", *ON, "--yes").status == 0
    planned = gpustate("plan", "p.yaml", *ON, "--remove", "--out", "away.json")
    assert planned.status == 0, planned
    assert f"{path}: removed" in planned.out
    assert path.exists()
    assert read(project / "away.json")["context"]["retry"][-1] == "--remove"
    shown = gpustate("plan", "away.json", "-o", "markdown")
    assert f"{path}: removed" in shown.out
    done = gpustate("apply", "away.json", *ON, "--yes")
    assert done.status == 0, done
    assert not path.exists()
    refused = gpustate("plan", "away.json", "--remove")
    assert "--remove is only for new plans" in refused.err


def test_a_refused_node_is_not_one_without_drift(gpustate: Cli, site: Path, project: Path) -> None:
    (project / "policy.py").write_text(UNREADABLE.format(folder=site))
    drifted = gpustate("drift", "policy.py", *ON)
    assert drifted.status == 5, drifted
    assert "Drift: 0 of 0 nodes differ from the policy; not compared: 1 refused." in drifted.out


def test_drift_is_counted_beside_a_refusal_and_the_rest_is_applied(
    gpustate: Cli, site: Path, project: Path
) -> None:
    (project / "policy.py").write_text(REFUSING.format(folder=site))
    drifted = gpustate("drift", "policy.py", *ON)
    assert drifted.status == 2, drifted
    assert "Apply the policy with: gpustate apply policy.py" in drifted.out
    assert NOTE not in drifted.out
    assert "Drift: 1 of 1 nodes differ from the policy." in drifted.out
    assert re.search(r" changed=1 .* refused=1 ", drifted.out)
    held = gpustate("apply", "policy.py", *ON, "--yes", "--all-or-nothing")
    assert (held.status, (site / "c").exists()) == (5, False)
    assert "Retry" not in held.out
    applied = gpustate("apply", "policy.py", *ON, "--yes")
    assert applied.status == 5
    assert NOTE not in applied.out
    assert (site / "c").exists()
    assert not (site / "a").exists()


def test_an_apply_that_would_be_refused_is_not_advised(
    gpustate: Cli, site: Path, project: Path
) -> None:
    policy = REFUSING.format(folder=site).replace(f', Third(path="{site}/c")', "")
    (project / "policy.py").write_text(policy)
    drifted = gpustate("drift", "policy.py", *ON)
    assert drifted.status == 2, drifted
    assert "x.service is masked" in drifted.out
    assert "Apply the policy with" not in drifted.out
    assert "An apply would be refused: each refusal names what to do first." in drifted.out


def test_all_or_nothing_leaves_a_node_alone_whose_refusal_a_plan_foresees(
    gpustate: Cli, site: Path, project: Path
) -> None:
    (project / "policy.py").write_text(FORESEEN.format(folder=site))
    held = gpustate("apply", "policy.py", *ON, "--yes", "--all-or-nothing")
    assert (held.status, (site / "a").exists()) == (5, False), held
    assert "nothing is offered" in held.out


def test_somebody_is_asked_about_what_would_change_and_about_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    apply.confirm("apply", plan("words"), {"forks": 50})
    assert asked == ["Apply to gpu[1-3] (3 nodes), at worst reboot on 3, 3 at a time?"]
    apply.confirm("apply", plan("words", ()), {"forks": 50})
    assert len(asked) == 1


def test_a_rollout_that_stopped_says_how_to_go_on(site: Path, gpustate: Cli) -> None:
    done = gpustate("apply", "policy.py", "-i", "hosts", "-l", "gone", "--serial", "1", "--yes")
    lines = done.out.splitlines()
    assert "Not started: far2" in lines
    (resume,) = [line for line in lines if line.startswith("Continue with ")]
    label, _, command = resume.partition(": gpustate ")
    assert label == "Continue with these and the failed nodes"
    assert gpustate(*command.split(), "--yes").status == 6
