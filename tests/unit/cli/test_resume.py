"""``gpustate rollout resume`` goes on with one's own run, and only after saying which."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpustate.cli import apply, resume
from gpustate.cli.main import cli
from gpustate.core.change import Disruption
from gpustate.engine import fleet, ledger, records
from gpustate.errors import GpustateError
from gpustate.formats import masking
from gpustate.reporting.runs import digest_of

DONE: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of this test alone; what would be applied is noted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GPUSTATE_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fleet, "person", lambda: "alice")
    monkeypatch.setattr(
        apply, "apply_policy", lambda source, options, **_: DONE.append((source, options))
    )
    DONE.clear()
    (tmp_path / "hosts").write_text("gpu1\n")
    (tmp_path / "other").write_text("gpu2\n")


def begun(run: str, person: str = "alice", inventory: str = "hosts", **more: Any) -> Path:
    options = {"inventory": inventory, "max_disruption": Disruption.REBOOT, **more}
    born = str(more.pop("born", ""))
    path = records.begin(
        run, "apply", "nouveau", options, person=person, born=born, created="2026-01-02T03:04:05Z"
    )
    assert path is not None
    return path


def run(*words: str, answer: str | None = None, terminal: bool = False) -> Result:
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume.sys, "stdin", resume.sys.stdin)
        if terminal:
            patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
        return runner.invoke(cli, ["rollout", "resume", *words], input=answer)


def refusal(result: Result) -> str:
    assert isinstance(result.exception, GpustateError), result.output
    assert not DONE
    return str(result.exception)


def test_the_run_of_somebody_else_is_never_taken_by_itself() -> None:
    begun("20260101-000000-aaaaaa", "bob")
    said = refusal(run("--yes"))
    assert said.startswith("there is no run of alice to resume, but 1 of other")
    assert "gpustate rollout resume --list" in said
    listed = run("--list").output
    assert "20260101-000000-aaaaaa  bob  apply nouveau  -i " in listed
    # By its name it is, once somebody has said so.
    said = refusal(run("20260101-000000-aaaaaa"))
    assert "belongs to bob, not to you (alice)" in said
    assert run("20260101-000000-aaaaaa", "--yes").exit_code == 0
    assert [source for source, _ in DONE] == ["nouveau"]


def test_one_s_own_run_is_shown_and_asked_about() -> None:
    begun("20260101-000000-aaaaaa", "bob")
    begun("20260101-000000-bbbbbb", reason="CHG-42")
    assert "stdin is not a terminal; name one" in refusal(run())
    result = run(answer="n\n", terminal=True)
    assert "20260101-000000-bbbbbb  alice  apply nouveau" in result.output
    assert "reason: CHG-42" in result.output
    assert "bob" not in result.output
    assert not DONE
    assert run(answer="y\n", terminal=True).exit_code == 0
    assert len(DONE) == 1


def test_of_several_one_is_picked_and_only_those_of_the_inventory_are_offered(
    tmp_path: Path,
) -> None:
    begun("20260101-000000-aaaaaa")
    begun("20260101-000000-bbbbbb", inventory="other")
    assert "there are several runs to resume; name one" in refusal(run("--yes"))
    result = run(answer="20260101-000000-aaaaaa\n", terminal=True)
    assert result.exit_code == 0, result.output
    assert DONE.pop()[1]["inventory"] == str(tmp_path / "hosts")
    assert run("-i", "other", "--yes").exit_code == 0
    assert DONE.pop()[1]["inventory"] == str(tmp_path / "other")
    begun("20260101-000000-cccccc", inventory="other")
    said = refusal(run("20260101-000000-cccccc", "-i", "hosts"))
    assert "uses the inventory" in said


def test_a_run_that_goes_on_is_not_offered() -> None:
    begun("20260101-000000-aaaaaa", born=fleet.born(os.getppid()))
    path = records.path_of("20260101-000000-aaaaaa")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "pid": os.getppid()}))
    said = refusal(run("--yes"))
    assert said.startswith("run 20260101-000000-aaaaaa of alice is in progress, and not paused")


def test_a_record_is_its_owner_s_alone_and_holds_person_reason_and_outcome_but_no_secret() -> None:
    masking.remember("S3cr3t-on-the-line")
    path = begun(
        "20260101-000000-aaaaaa", reason="CHG-42", set_typed=["a.password=S3cr3t-on-the-line"]
    )
    records.end(path, interrupted=True, outcome={"exit_code": 130, "summary": "nodes=2 ok=1"})
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "S3cr3t" not in text
    data = json.loads(text)
    assert (data["person"], data["reason"], data["ended"]) == ("alice", "CHG-42", False)
    assert data["outcome"] == {"exit_code": 130, "summary": "nodes=2 ok=1"}
    assert "nodes=2 ok=1" in run("--list").output
    assert "was given a secret (--set-typed)" in refusal(run("--yes"))


def test_behind_sudo_the_person_is_whoever_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert fleet.person() == "carol"
    assert fleet.controller().name.startswith("carol@")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert fleet.person() != "carol"


def test_a_lock_says_who_and_why() -> None:
    from gpustate.engine import gate

    taken = gate.taken("r", gate.Controller("alice@ctl", 1, lambda *_: True), "", "CHG-42")
    lock = ledger.read_lock(json.dumps(taken))
    assert lock is not None
    assert lock.describe().startswith("held by alice@ctl (apply: CHG-42) since ")


def test_a_policy_that_changed_since_the_run_is_named(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("states: {nouveau: }\n")
    options = {"inventory": "hosts", "max_disruption": Disruption.REBOOT}
    records.begin(
        "20260101-000000-cccccc",
        "apply",
        "p.yaml",
        options,
        person="alice",
        born="",
        created="2026-01-02T03:04:05Z",
        digest=digest_of("p.yaml"),
    )
    assert "has changed" not in run("20260101-000000-cccccc", "--yes").output
    policy.write_text("states: {persistenced: }\n")
    output = run("20260101-000000-cccccc", "--yes").output
    assert "p.yaml has changed since run 20260101-000000-cccccc began" in output
    assert "it is applied as it is now" in output


def test_a_run_whose_nodes_later_runs_converged_is_not_listed() -> None:
    first = begun("20260101-000000-dddddd")
    records.end(first, interrupted=True, outcome={"nodes": {"gpu1": "failed"}})
    assert "dddddd" in run("--list").output
    other = begun("20260102-000000-eeeeee", inventory="other")
    records.end(other, interrupted=False, outcome={"nodes": {"gpu1": "ok"}})
    assert "dddddd" in run("--list").output
    later = begun("20260103-000000-ffffff")
    records.end(later, interrupted=False, outcome={"nodes": {"gpu1": "ok"}})
    assert run("--list").output == "there is no run to resume\n"


def test_a_run_that_was_killed_with_objects_is_not_over_once_its_nodes_are(tmp_path: Path) -> None:
    begun("r1", cluster_objects=True)
    outcome = records.RunOutcome(nodes={"gpu1": "ok"}, exit_code=0)
    path = records.path_of("r1")
    path.write_text(path.read_text().replace('"nodes": []', '"nodes": ["gpu1"]'))
    records.end(begun("r2"), interrupted=False, outcome=outcome)
    assert "r1" in run("--list").output
    records.end(begun("r3", cluster_objects=True), interrupted=False, outcome=outcome)
    assert "r1" not in run("--list").output


@pytest.mark.parametrize(
    ("later", "listed"),
    [
        ({}, True),
        ({"cluster_objects": True}, False),
        ({"cluster_objects": True, "code": 3}, True),
        ({"cluster_objects": True, "inventory": "other"}, True),
    ],
    ids=["nodes alone", "objects", "objects that failed", "other cluster"],
)
def test_a_run_that_was_interrupted_in_the_cluster_is_over_once_a_later_one_succeeded_there(
    later: dict[str, Any], listed: bool
) -> None:
    nodes = records.RunOutcome(nodes={"gpu1": "ok"})
    records.end(begun("r1", cluster_objects=True), interrupted=True, outcome=nodes)
    code = later.pop("code", 0)
    records.end(begun("r2", **later), interrupted=False, outcome={**nodes, "exit_code": code})
    assert ("r1" in run("--list").output) is listed
