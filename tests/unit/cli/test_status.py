"""``gpustate status`` shows who is out of service, and why, from the schedulers alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from gpustate.cli.main import cli
from gpustate.core.inventory import InventoryNode
from gpustate.engine import fleet, records
from gpustate.rollout import access
from gpustate.rollout.board import RecordBoard, read_control
from gpustate.schedulers.base import Hold, Member
from gpustate.schedulers.lease import Standing

SCHEMA = Path(__file__).parents[3] / "gpustate/cli/schema/status.json"
HELD = Hold("r1", "ann@ops1", "CHG-7", "changing", "2026-11-24T10:00:00Z")
MEMBERS = (
    Member("a", True, True),
    Member("b", True, False, hold=HELD),
    Member("c", True, False, foreign=("cordoned by bob",)),
    Member("d", False, True, why="down*: slurmd has not registered since"),
    Member("e", False, True, counts=False),
)


PROGRESS = {
    "run": "r1",
    "state": "running",
    "why": "",
    "updated": "2026-11-24T10:00:05Z",
    "wave": 2,
    "waves": 3,
    "nodes": {
        "gpu1": {"phase": "released", "since": "2026-11-24T09:00:00Z", "why": "", "wave": 1},
        "gpu2": {
            "phase": "changing",
            "since": "2026-11-24T10:00:00Z",
            "why": "stage 1: driver",
            "wave": 2,
        },
        "gpu3": {"phase": "failed", "since": "2026-11-24T10:00:00Z", "why": "no", "wave": 2},
        "gpu4": {"phase": "queued", "since": "", "why": "waits for wave 2", "wave": 3},
    },
}


class FakeCluster:
    """A cluster whose Lease a run holds."""

    title = "Kubernetes at test"

    def __init__(self, progress: Any = PROGRESS, control: str = "") -> None:
        self.lease = Standing("ann@ops1 run r1", json.dumps(progress), control)

    def standing(self) -> Standing:
        return self.lease

    def ask(self, run: str, control: str) -> None:
        self.lease = replace(self.lease, control=control)

    def leave(self) -> None:
        pass


CLUSTERS: list[FakeCluster] = []


class FakeScheduler:
    title = "Kubernetes at test"

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        return MEMBERS

    def leave(self) -> None:
        pass


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def call(self: access.Accesses, node: InventoryNode, kind: str) -> Any:
        return FakeScheduler() if kind == "Kubernetes" and self.named else None

    monkeypatch.setattr(access.Accesses, "__call__", call)
    monkeypatch.setattr(access.Accesses, "_kubernetes", lambda self, path: None)
    monkeypatch.setattr(access.Accesses, "clusters", lambda self: CLUSTERS)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "records"))
    CLUSTERS.clear()
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {gpu1: {}, gpu2: {}}, vars: {gpustate_kubeconfig: k}}\n")
    return path


def verb(*words: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def run(*words: object) -> str:
    return verb("status", *words)


def test_nobody_is_asked_to_take_over_from_a_run_that_is_in_progress(inventory: Path) -> None:
    CLUSTERS.append(FakeCluster())
    text = run("-i", inventory)
    assert "next: run r1, which is in progress, returns it to service" in text
    assert "is dead" not in text


def test_a_run_without_progress_says_so(inventory: Path) -> None:
    CLUSTERS.append(FakeCluster(progress={"run": "r0"}))
    assert "of ann@ops1\n    it has not published its progress yet\n" in run("-i", inventory)


def test_a_reservation_without_person_and_reason_has_neither(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Member("b", True, False, hold=replace(HELD, person="", text=""))
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: (bare,))
    assert "    since 2026-11-24T10:00:00Z, run r1\n" in run("-i", inventory)


def test_only_those_out_of_service_are_listed_with_the_next_step(inventory: Path) -> None:
    text = run("-i", inventory)
    assert "b  changing  Kubernetes at test" in text
    assert "since 2026-11-24T10:00:00Z by ann@ops1, run r1: CHG-7" in text
    assert "next: if run r1 is dead: gpustate resume r1" in text
    assert "cordoned by bob" in text
    assert "not ready\n    down*: slurmd has not registered since" in text
    assert "\na  " not in f"\n{text}"
    assert text.endswith("nodes=4 in_service=1 out_of_service=3\n")


def test_the_document_fits_its_schema(inventory: Path) -> None:
    document = json.loads(run("-i", inventory, "-o", "json", "--all"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert [row["name"] for row in document["members"]] == ["a", "b", "c", "d"]
    assert document["members"][1]["hold"]["phase"] == "changing"
    assert [row.get("why", "") for row in document["members"]] == ["", "", "", MEMBERS[3].why]


def test_an_inventory_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {gpu1: {}}}\n")
    done = CliRunner().invoke(cli, ["status", "-i", str(path)])
    assert done.exit_code == 1
    assert "names no scheduler" in done.output + str(done.exception)


# --- rollouts under way ----------------------------------------------------------------


def test_a_rollout_of_another_machine_is_shown_node_by_node(inventory: Path) -> None:
    CLUSTERS.append(FakeCluster())
    text = run("-i", inventory)
    assert "run r1  running  wave 2 of 3  Kubernetes at test" in text
    assert "queued=1 changing=1 released=1 failed=1" in text
    assert "gpu2  changing since 2026-11-24T10:00:00Z: stage 1: driver" in text
    assert "next: is probed again and validated" in text
    assert "gpu4" not in text
    assert "gpu4  queued since ?: waits for wave 2" in run("-i", inventory, "--all")
    document = json.loads(run("-i", inventory, "-o", "json"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    (rollout,) = document["rollouts"]
    assert [node["phase"] for node in rollout["nodes"]] == [
        "released",
        "changing",
        "failed",
        "queued",
    ]


def test_progress_that_a_dead_run_has_left_is_not_shown_for_the_next(inventory: Path) -> None:
    CLUSTERS.append(FakeCluster({**PROGRESS, "run": "r0"}))
    (rollout,) = json.loads(run("-i", inventory, "-o", "json"))["rollouts"]
    assert (rollout["run"], rollout["nodes"]) == ("r1", [])


@pytest.mark.parametrize(("age_s", "silent"), [(30, False), (600, True)])
def test_a_run_whose_controller_is_dead_is_named(
    inventory: Path, age_s: float, silent: bool
) -> None:
    renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    cluster = FakeCluster()
    cluster.lease = replace(cluster.lease, renewed=renewed)
    CLUSTERS.append(cluster)
    document = json.loads(run("-i", inventory, "-o", "json"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    (rollout,) = document["rollouts"]
    assert rollout["state"] == ("silent" if silent else "running")
    words = f"its controller has not renewed the Lease since {renewed}"
    assert (words in str(rollout.get("why"))) is silent
    assert (words in verb("pause", "-i", inventory)) is silent


def test_a_run_is_paused_resumed_and_aborted_from_another_machine(inventory: Path) -> None:
    cluster = FakeCluster()
    CLUSTERS.append(cluster)
    assert "run r1 of ann@ops1: no further node is started" in verb("pause", "-i", inventory)
    control = read_control(cluster.lease.control, "r1")
    assert control is not None
    assert control.person == fleet.controller().name
    assert f"paused by {control.person} since" in run("-i", inventory)
    assert "run r1 of ann@ops1 continues; it was paused by" in verb("resume", "r1", "-i", inventory)
    assert cluster.lease.control == ""
    assert "it ends after the nodes in progress" in verb("abort", "r1", "-i", inventory)
    assert read_control(cluster.lease.control, "r1") is not None


def begin(name: str, pid: int) -> None:
    records.begin(
        name, "apply", "p.yaml", {}, person="ann", born=fleet.born(pid), created="2026-11-24"
    )
    path = records.path_of(name)
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid}))


def test_a_run_of_this_machine_is_found_by_its_record(inventory: Path) -> None:
    begin("r5", os.getppid())
    board = RecordBoard("r5")
    board.publish(json.dumps({**PROGRESS, "run": "r5", "person": "ann@here"}))
    assert "run r5 of ann@here: no further node is started" in verb("pause")
    assert board.control()
    (rollout,) = json.loads(run("-i", inventory, "-o", "json"))["rollouts"]
    assert (rollout["where"], rollout["why"][:9]) == ("this machine", "paused by")
    assert "continues" in verb("resume")
    assert board.control() == ""


@pytest.mark.parametrize("words", [("pause",), ("abort", "r9")])
def test_what_does_not_run_cannot_be_paused(inventory: Path, words: tuple[str, ...]) -> None:
    begin("r9", 2**22 + 1)  # no such process
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 1
    assert "running" in str(done.exception)


def test_the_run_is_named_where_several_are_running(inventory: Path) -> None:
    begin("r5", os.getppid())
    begin("r6", os.getppid())
    done = CliRunner().invoke(cli, ["pause"])
    assert "several runs are running" in str(done.exception)
    assert "run r6" in verb("pause", "r6")
    assert RecordBoard("r5").control() == ""
