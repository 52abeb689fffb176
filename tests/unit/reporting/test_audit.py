"""The audit log: whole lines from many processes, and what is read back."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import jsonschema
import pytest

import gpustate
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.reporting import audit
from gpustate.reporting.runs import Outcome, Run

SCHEMA = json.loads((Path(gpustate.__file__).parent / "reporting/schema/audit.json").read_text())
RUN = Run("r1", "apply", "policy.yaml", "hosts.yml", person="ann@ops1", reason="CHG-7", nodes=3)


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "gpustate/audit.jsonl"


def many(writer: int) -> None:
    for number in range(50):
        audit.append(audit.started(Run(f"{writer}-{number}", "apply", "x" * 20000), born=""))


def test_entries_match_their_schema_and_are_read_back(log: Path) -> None:
    nodes = [
        NodeResult("gpu1", status=NodeStatus.OK),
        NodeResult("gpu2", status=NodeStatus.OK),
        NodeResult("gpu3", status=NodeStatus.FAILED, reason="broken"),
    ]
    audit.append(audit.started(RUN, born="1@b"))
    (running,) = audit.read().runs
    assert running.end is None
    audit.append(audit.ended(RUN, Outcome(1, "nodes=3", nodes, skipped=["gpu8", "gpu9"])))
    for line in log.read_text().splitlines():
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(line))
    (entry,) = audit.read().runs
    assert entry.start["person"] == "ann@ops1"
    assert entry.end is not None
    assert entry.end["nodes"] == {"failed": ["gpu3"], "ok": ["gpu[1-2]"]}
    assert entry.end["failed"] == [{"node": "gpu3", "status": "failed", "reason": "broken"}]
    assert entry.end["skipped"] == ["gpu[8-9]"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_lines_of_several_processes_never_mix(log: Path) -> None:
    workers = [
        multiprocessing.get_context("fork").Process(target=many, args=(n,)) for n in range(4)
    ]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    found = audit.read()
    assert not found.damaged
    assert {one.start["run"] for one in found.runs} == {
        f"{w}-{n}" for w in range(4) for n in range(50)
    }


def test_a_line_that_was_cut_spoils_no_other(log: Path) -> None:
    audit.append(audit.started(RUN, born=""))
    with log.open("a") as file:
        file.write('{"format": "gpustate.audit/1", "ev')
    audit.append(audit.ended(RUN, Outcome(0)))
    found = audit.read()
    assert found.damaged == (2,)
    assert found.runs[0].end is not None


def test_a_link_in_place_of_the_log_is_not_followed(log: Path, tmp_path: Path) -> None:
    log.parent.mkdir()
    log.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        audit.append(audit.started(RUN, born=""))
    assert not (tmp_path / "other").exists()
