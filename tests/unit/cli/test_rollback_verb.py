"""``gpustate rollback`` and ``gpustate upgrade`` as a person runs them; the node is this machine, in a folder of the test."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commandline import Cli, Done

from gpustate.api import rollbacks
from gpustate.cli import rollback
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.engine.before import RunBefore, StateBefore, WayBack
from gpustate.errors import RefusedError
from gpustate.rollout.staying import StayingObjects

SCHEMA = Path(__file__).parents[3] / "gpustate/plan/schema/result.json"


@pytest.fixture
def policy(project: Path, tmp_path: Path) -> Path:
    """A policy of one file, and an inventory of this machine."""
    (project / "gpustate.toml").write_text('states = ["filestates:LightFirst"]\n')
    (project / "hosts").write_text(
        f"here ansible_connection=local gpustate_state_folder={tmp_path / 'state'}\n"
    )
    path = project / "policy.yaml"
    path.write_text(
        f"format: gpustate.policy/1\nstates:\n  light-first: {{path: {tmp_path / 'file'}, text: one}}\n"
    )
    return path


def apply(gpustate: Cli, text: str, *words: str) -> Done:
    return gpustate(
        "apply", "policy.yaml", "-i", "hosts", "--yes", "--set", f"light-first.text={text}", *words
    )


def document(done: Done) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(done.out)
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    return data


def test_a_rollback_and_the_rollback_of_it(policy: Path, tmp_path: Path, gpustate: Cli) -> None:
    assert apply(gpustate, "one").status == 0
    time.sleep(1)  # runs are listed by the second in their names
    run = document(apply(gpustate, "two", "-o", "json", "--reason", "CHG-7"))["run"]
    listed = gpustate("rollback", "-i", "hosts", "--list").out.splitlines()
    assert listed[0].startswith(f"{run}  here  ")
    assert listed[0].endswith("changed light-first  reason: CHG-7")
    unasked = gpustate("rollback", "-i", "hosts")
    assert (unasked.status, "pass --yes" in unasked.err) == (1, True)
    reports = ("--report", "r.md", "--report", "r.html")
    done = document(gpustate("rollback", "-i", "hosts", "--yes", "-o", "json", *reports))
    assert (tmp_path / "file").read_text() == "one"
    assert (policy.parent / "r.md").read_text().startswith("# Result of rollback\n")
    assert "<h1>rollback</h1>" in (policy.parent / "r.html").read_text()
    assert done["verb"] == "rollback"
    assert f"goes back to before run {run}" in done["nodes"][0]["notes"]
    again = document(gpustate("rollback", "-i", "hosts", "--yes", "-o", "json"))
    assert "changed=0" in again["summary"]
    forth = gpustate("rollback", done["run"], "-i", "hosts", "--yes")
    assert (forth.status, (tmp_path / "file").read_text()) == (0, "two")
    assert f"rollback of {run}" in gpustate("rollback", "-i", "hosts", "--list").out


def test_nodes_that_go_back_before_different_runs_are_named_with_them(
    policy: Path, tmp_path: Path, gpustate: Cli
) -> None:
    line = "ansible_connection=local gpustate_state_folder="
    rows = [f"{name} {line}{tmp_path / name}" for name in ("n1", "n2", "n3")]
    (policy.parent / "hosts").write_text("\n".join(rows) + "\n")
    runs = []
    for name, text in (("n3", "zero"), ("n1,n2", "one"), ("n2", "two")):
        runs.append(document(apply(gpustate, text, "-l", name, "-o", "json"))["run"])
    planned = gpustate("rollback", "-i", "hosts", "--dry-run", "-l", "n1,n2")
    words = f"{runs[1]} (n1); {runs[2]} (n2); for one of them only: gpustate rollback RUN"
    assert f"nodes go back before different runs: {words}" in planned.out
    assert "way back  gpustate rollback RUN -i hosts" in planned.out
    assert "different runs" not in gpustate("rollback", "-i", "hosts", "--dry-run", "-l", "n1").out
    one = gpustate("rollback", runs[1], "-i", "hosts", "--dry-run", "-l", "n1,n2").out
    assert "different runs" not in one
    done = gpustate("rollback", "-i", "hosts", "--yes", "-l", "n2")
    assert re.search(r"^Way back: gpustate rollback \d{8}-\d{6}-\w{6} -i hosts$", done.out, re.M)


def test_a_node_without_runs_and_a_run_that_nobody_knows(policy: Path, gpustate: Cli) -> None:
    nothing = gpustate("rollback", "-i", "hosts", "--yes", "-o", "json")
    assert nothing.status == 0
    (node,) = document(nothing)["nodes"]
    assert node["notes"] == ["nothing to roll back: no run of gpustate is recorded here"]
    assert "no run is recorded" in gpustate("rollback", "-i", "hosts", "--list").out
    unknown = gpustate("rollback", "20260101-000000-aaaaaa", "-i", "hosts", "--yes")
    assert unknown.status == 1
    assert "no run '20260101-000000-aaaaaa' has changed these nodes" in unknown.err


def test_a_list_of_runs_says_which_nodes_are_unreachable(policy: Path, gpustate: Cli) -> None:
    far = policy.with_name("far")
    far.write_text("far ansible_host=127.0.0.1 ansible_port=1\n")
    done = gpustate("rollback", "-i", str(far), "--list")
    assert done.status == 4
    assert "gpustate: far: 127.0.0.1:1: Connection refused" in done.err
    assert "no run is recorded" not in done.out
    done = gpustate("rollback", "-i", str(far), "--dry-run")
    assert f"Retry: gpustate rollback -i {far} --dry-run -l far" in done.out


def test_a_file_that_something_else_has_changed_is_refused_by_name(
    policy: Path, tmp_path: Path, gpustate: Cli
) -> None:
    apply(gpustate, "one")
    apply(gpustate, "two")
    (tmp_path / "file").write_text("theirs")
    refused = gpustate("rollback", "-i", "hosts", "--yes")
    assert refused.status == 5
    assert f"changed by something else since the run: {tmp_path / 'file'}" in refused.out
    assert re.search(r"applying its policy; then: gpustate rollback \d{8}-\d{6}-\w{6}", refused.out)
    assert (tmp_path / "file").read_text() == "theirs"


def test_a_failed_change_goes_back_by_itself(policy: Path, tmp_path: Path, gpustate: Cli) -> None:
    apply(gpustate, "one")
    failed = apply(
        gpustate, "two", "--set", "rollout.rollback_on_failure=true", "-o", "json",
        "--set", f"light-first.script=printf broken >{tmp_path / 'file'}",
    )  # fmt: skip
    assert failed.status == 7
    (node,) = document(failed)["nodes"]
    assert node["status"] == "rolled back"
    assert (tmp_path / "file").read_text() == "one"


def test_no_node_goes_back_to_what_its_cluster_cannot_offer(
    policy: Path, tmp_path: Path, gpustate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: StayingObjects, node: InventoryNode, way: WayBack) -> None:
        raise RefusedError(f"no GPU of {node.name} could be used")

    apply(gpustate, "one")
    apply(gpustate, "two")
    monkeypatch.setattr(StayingObjects, "check", refuse)
    for words in (("--dry-run",), ("--yes",)):
        refused = gpustate("rollback", "-i", "hosts", *words)
        assert refused.status == 5
        assert "no GPU of here could be used" in refused.out
    assert (tmp_path / "file").read_text() == "two"
    failed = apply(
        gpustate, "three", "--set", "rollout.rollback_on_failure=true",
        "--set", f"light-first.script=printf broken >{tmp_path / 'file'}",
    )  # fmt: skip
    assert failed.status == 1
    assert "its rollback failed: no GPU of here could be used" in failed.out
    assert (tmp_path / "file").read_text() == "broken"


def test_an_upgrade_wants_a_driver_in_the_policy(policy: Path, gpustate: Cli) -> None:
    refused = gpustate("upgrade", "policy.yaml", "--driver", "580", "-i", "hosts", "--yes")
    assert refused.status == 1
    assert refused.err == (
        "gpustate: policy.yaml: the policy has no driver to upgrade; add the state driver to it\n"
    )
    (policy.parent / "driver.yaml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver: {branch: 570}\n"
    )
    refused = gpustate("upgrade", "driver.yaml", "--driver", "x", "-i", "hosts", "--yes")
    assert refused.status == 1
    assert "--driver: 'x' is neither a driver branch nor a version" in refused.err


def test_an_upgrade_says_when_it_only_plans(policy: Path, gpustate: Cli) -> None:
    (policy.parent / "driver.yaml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver: {branch: 570}\n"
    )
    ended = gpustate("upgrade", "driver.yaml", "--driver", "580", "-i", "127.0.0.1:1,", "--yes")
    lines = [line.partition(" unreachable")[0] for line in ended.err.splitlines()]
    planning = lines.index("gpustate: planning; nothing is changed yet")
    changing = lines.index("gpustate: planned; changing the nodes")
    assert "127.0.0.1 finished" in lines[planning:changing]
    assert "127.0.0.1 finished" in lines[changing:]


def test_a_run_is_listed_with_what_it_changed_on_any_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(state: str) -> RunBefore:
        return RunBefore("r1", person="ann@ops1", states={state: StateBefore({})}, changed=(state,))

    runs = {"gpu1": (changed("slurm-gres"),), "gpu2": (changed("driver"),)}
    monkeypatch.setattr(rollbacks, "runs_of", lambda *_: (runs, {}))
    nodes = tuple(InventoryNode(name) for name in runs)
    rollback._show(Inventory("test", nodes), {"forks": 1})
    assert (
        capsys.readouterr().out == "r1  gpu[1-2] (2 nodes)  ann@ops1  changed slurm-gres, driver\n"
    )


def test_a_run_that_did_not_change_a_node_is_told_from_no_run_at_all(
    policy: Path, tmp_path: Path, gpustate: Cli
) -> None:
    policy.with_name("hosts").write_text(
        "".join(
            f"{name} ansible_connection=local gpustate_state_folder={tmp_path / name}\n"
            for name in ("here", "there", "new")
        )
    )
    apply(gpustate, "one", "-l", "there")
    run = document(apply(gpustate, "two", "-l", "here", "-o", "json"))["run"]
    rows = json.loads(gpustate("rollback", run, "-i", "hosts", "--dry-run", "-o", "json").out)
    notes = {row["name"]: row["notes"] for row in rows["nodes"]}
    assert notes["there"] == [f"nothing to roll back: run {run} did not change this node"]
    assert notes["new"] == ["nothing to roll back: no run of gpustate is recorded here"]
