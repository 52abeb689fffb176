"""``gpustate status`` shows who is out of service, and why, from the schedulers alone."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from click.testing import CliRunner, Result

from gpustate.cli import apply
from gpustate.cli.main import cli
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult
from gpustate.engine import fleet, records
from gpustate.manifests.ownership import OWNER
from gpustate.rollout import access, running, waves
from gpustate.rollout.board import RecordBoard, read_control
from gpustate.rollout.strategy import Strategy
from gpustate.rollout.waves import Waves
from gpustate.schedulers.base import Hold, Member
from gpustate.schedulers.lease import Standing

SCHEMA = Path(__file__).parents[3] / "gpustate/cli/schema/status.json"
HELD = Hold("r1", "ann@ops1", "CHG-7", "changing", "2026-11-24T10:00:00Z")
MEMBERS = (
    Member("a", True, True),
    Member("b", True, False, hold=HELD),
    Member(
        "c", True, False, foreign=("cordoned by bob",), foreign_since="09:00", undo="uncordon c"
    ),
    Member("d", False, True, why="down*: slurmd has not registered since"),
    Member("e", False, True, counts=False),
    Member("f", False, True, not_ready_since="08:00"),
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
    out_word = "cordoned"

    def __init__(self, progress: Any = PROGRESS, control: str = "") -> None:
        self.lease = Standing("ann@ops1 run r1", json.dumps(progress), control)
        self.daemon_sets: list[dict[str, Any]] = []
        self.nodes = SimpleNamespace(daemon_sets=lambda: self.daemon_sets)

    def standing(self) -> Standing:
        return self.lease

    def submit(self, run: str, control: str) -> None:
        self.lease = replace(self.lease, control=control)

    def publish(self, progress: str) -> None:
        self.lease = replace(self.lease, progress=progress)

    def control(self) -> str:
        return self.lease.control

    def set_control(self, control: str) -> bool:
        self.lease = replace(self.lease, control=control)
        return True

    def drop_lease(self) -> None:
        pass


CLUSTERS: list[FakeCluster] = []


class FakeScheduler:
    title = "Kubernetes at test"
    out_word = "cordoned"

    def restarted(self, member: Member) -> list[str]:
        return []

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        return MEMBERS

    def drop_lease(self) -> None:
        pass


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def call(self: access.Accesses, node: InventoryNode, kind: str) -> Any:
        return FakeScheduler() if kind == "Kubernetes" and self.named else None

    monkeypatch.setattr(access.Accesses, "__call__", call)
    monkeypatch.setattr(access.Accesses, "_kubernetes", lambda self, path: None)
    monkeypatch.setattr(access.Accesses, "clusters", lambda self: CLUSTERS)
    monkeypatch.setattr(
        access.Accesses, "nodes", lambda self: {str(id(one)): (one, {}) for one in CLUSTERS}
    )
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


def test_a_hold_without_person_and_reason_has_neither(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Member("b", True, False, hold=replace(HELD, person="", text=""))
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: (bare,))
    assert "    since 2026-11-24T10:00:00Z, run r1\n" in run("-i", inventory)


def test_only_those_out_of_service_are_listed_with_the_next_step(inventory: Path) -> None:
    text = run("-i", inventory)
    assert "b  changing  Kubernetes at test" in text
    assert "since 2026-11-24T10:00:00Z by ann@ops1, run r1: CHG-7" in text
    assert "next: if run r1 is dead: gpustate rollout resume r1" in text
    assert "    cordoned by bob since 09:00\n    next: gpustate leaves it alone" in text
    assert "until it is returned to service: uncordon c\n" in text
    assert "not ready\n    down*: slurmd has not registered since" in text
    assert "    not ready since 08:00\n    next: find out why: kubectl describe node f\n" in text
    assert "\na  " not in f"\n{text}"
    assert text.endswith("nodes=5 in_service=1 out_of_service=4\n")


def test_a_cluster_alone_shows_its_nodes_and_its_run(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUSTATE_INVENTORY", raising=False)
    CLUSTERS.append(FakeCluster())
    text = run("--kubeconfig", "k")
    assert "run r1  running" in text
    assert "b  changing  Kubernetes at test" in text
    for words, message in (
        ((), "neither an inventory nor a cluster is named; give an inventory with -i"),
        (("--kubeconfig", "k", "-l", "gpu1"), "no inventory"),
    ):
        done = CliRunner().invoke(cli, ["status", *words])
        assert (done.exit_code, message in str(done.exception)) == (1, True)


def test_a_cluster_without_a_node_of_the_inventory_is_named(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLUSTERS.append(FakeCluster())
    note = "gpustate: note: none of the selected nodes is in Kubernetes at test, by name or address; check"
    assert note not in run("-i", inventory)
    monkeypatch.setattr(access.Accesses, "nodes", lambda self: {})
    assert note in run("-i", inventory)
    assert "note" not in run("--kubeconfig", "k")


def test_the_next_step_is_the_command_of_the_run_as_far_as_it_is_known(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Member("b", True, False, hold=replace(HELD, phase="failed"))
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: (failed,))
    CLUSTERS.append(FakeCluster())
    text = run("-i", inventory)
    assert text.count("next: fix the node, then run the command of run r1 again") == 2
    options = {
        "inventory": "hosts.yml",
        "driver": "580",
        "limit": "b,c",
        "serial": "1,2",
        "lock": "none",
    }
    record = records.begin("r1", "upgrade", "p.yaml", options, person="ann", born="", created="")
    text = run("-i", inventory)
    assert text.count("next: fix the node, then run: gpustate rollout resume r1; the node is") == 2
    stopped = "driver: the run was interrupted before its steps were finished"
    interrupted = replace(failed, hold=replace(HELD, phase="failed", text=stopped))
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: (interrupted,))
    text = run("-i", inventory)
    assert "    next: continue run r1: gpustate rollout resume r1\n" in text
    assert text.count("next: fix the node") == 1, "gpu3 of the rollout, which failed"
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: (failed,))
    records.end(record, interrupted=False)
    text = run("-i", inventory)
    command = "gpustate upgrade p.yaml -i hosts.yml --serial 1,2 --driver 580 -l b,c"
    assert text.count(f"next: fix the node, then run: {command}; the node is released when") == 2
    CLUSTERS.clear()
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: MEMBERS)
    assert "if run r1 is dead: gpustate rollout resume r1\n" in run("-i", inventory)


def test_a_node_is_shown_in_the_phase_of_its_hold_where_the_run_has_published_an_older_one(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = tuple(
        Member(name, True, False, hold=replace(HELD, phase=phase))
        for name, phase in (("gpu2", "drained"), ("gpu3", "changing"), ("10.0.0.4", "held"))
    )
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh=False: members)
    inventory.write_text(
        "all: {hosts: {gpu2: {}, gpu4: {ansible_host: 10.0.0.4}}, vars: {gpustate_kubeconfig: k}}\n"
    )
    CLUSTERS.append(FakeCluster())
    text = run("-i", inventory)
    assert "held=1 changing=1 released=1 failed=1\n" in text
    assert "gpu4  held since 2026-11-24T10:00:00Z: CHG-7\n      next: its workloads leave" in text


def test_a_node_has_one_phase(inventory: Path) -> None:
    progress = {**PROGRESS, "nodes": {"b": {**PROGRESS["nodes"]["gpu2"], "phase": "validating"}}}
    CLUSTERS.append(FakeCluster(progress))
    text = run("-i", inventory)
    assert "b  validating since" in text
    assert "b  validating  Kubernetes" in text
    assert "changing" not in text


def test_the_document_fits_its_schema(inventory: Path) -> None:
    document = json.loads(run("-i", inventory, "-o", "json", "--all"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert [row["name"] for row in document["members"]] == ["a", "b", "c", "d", "f"]
    assert document["members"][1]["hold"]["phase"] == "changing"
    assert document["members"][2]["foreign_since"] == "09:00"
    assert [row.get("why", "") for row in document["members"]] == ["", "", "", MEMBERS[3].why, ""]
    assert document["members"][4]["not_ready_since"] == "08:00"


def test_an_inventory_without_a_scheduler_shows_the_locks_of_its_nodes(tmp_path: Path) -> None:
    hosts = {
        name: {"ansible_connection": "local", "gpustate_state_folder": str(tmp_path / name)}
        for name in ("gpu1", "gpu2")
    }
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "-i", str(path)])

    free = invoke("status")
    assert free.exit_code == 0
    what = "no run of this inventory is in progress on this machine"
    assert free.stdout == f"{what}\nnodes=2 locked=0 unreachable=0\n"
    assert invoke("node", "lock", "-l", "gpu2", "--reason", "CHG-9").exit_code == 0
    locked = invoke("status")
    assert re.search(
        r"^gpu2  held by \S+ \(locked: CHG-9\) since .*\nnodes=2 locked=1 ", locked.stdout, re.M
    )
    assert "\ngpu1  not locked\ngpu2  held by " in invoke("status", "--all").stdout
    document = json.loads(invoke("status", "-o", "json").stdout)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert [sorted(row) for row in document["locks"]] == [["name"], ["lock", "name"]]


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


@pytest.mark.parametrize(
    ("strategy", "updated", "owned", "live"),
    [
        ("OnDelete", 1, True, False),
        ("OnDelete", 3, True, False),
        ("OnDelete", 1, False, False),
        ("RollingUpdate", 1, True, False),
        ("OnDelete", 1, True, True),
    ],
)
def test_templates_that_a_killed_run_has_left_for_new_pods_alone_are_named(
    strategy: str, updated: int, owned: bool, live: bool, inventory: Path
) -> None:
    cluster = FakeCluster()
    cluster.lease = cluster.lease if live else Standing("")
    cluster.daemon_sets = [
        {
            "kind": "DaemonSet",
            "metadata": {"name": "plugin", "labels": OWNER if owned else {}},
            "spec": {"updateStrategy": {"type": strategy}},
            "status": {"updatedNumberScheduled": updated, "desiredNumberScheduled": 3},
        }
    ]
    CLUSTERS.append(cluster)
    text, document = run("-i", inventory), json.loads(run("-i", inventory, "-o", "json"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    named = owned and not live and (strategy, updated) == ("OnDelete", 1)
    assert ("daemonset/plugin  Kubernetes at test" in text) is named
    assert ("1 of 3 pods have its template" in text) is named
    assert ("next: gpustate apply POLICY -i INVENTORY --cluster-objects" in text) is named
    assert [row["name"] for row in document["daemon_sets"]] == ["daemonset/plugin"] * named


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
    assert (words in verb("rollout", "pause", "-i", inventory)) is silent


def test_a_run_is_paused_resumed_and_aborted_from_another_machine(inventory: Path) -> None:
    cluster = FakeCluster()
    CLUSTERS.append(cluster)
    assert "run r1 of ann@ops1: no further node is started" in verb(
        "rollout", "pause", "-i", inventory
    )
    control = read_control(cluster.lease.control, "r1")
    assert control is not None
    assert control.person == fleet.controller().name
    assert f"paused by {control.person} since" in run("-i", inventory)
    earlier = replace(control, person="bob@ops2", since="2026-11-24T09:00:00Z")
    cluster.lease = replace(cluster.lease, control=earlier.text())
    assert "it was paused by bob@ops2 since 2026-11-24T09" in verb(
        "rollout", "pause", "-i", inventory
    )
    assert cluster.lease.control == earlier.text(), "it counts from the first time"
    assert "run r1 of ann@ops1 continues; it was paused by" in verb(
        "rollout", "resume", "r1", "-i", inventory
    )
    assert cluster.lease.control == ""
    assert "it ends after the nodes in progress" in verb("rollout", "abort", "r1", "-i", inventory)
    assert read_control(cluster.lease.control, "r1") is not None


def begin(name: str, pid: int, **options: object) -> None:
    records.begin(
        name, "apply", "p.yaml", options, person="ann", born=fleet.born(pid), created="2026-11-24"
    )
    path = records.path_of(name)
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid}))


class Rollout:
    """A run of this machine that looks for requests all the time, with or without a Lease."""

    def __init__(self, *clusters: FakeCluster, **options: object) -> None:
        begin("r1", os.getppid(), **options)
        inventory = Inventory("test", (InventoryNode("gpu1"), InventoryNode("gpu2")))
        rollout = Strategy(("1",)).rollout(inventory, 1, 0.0)
        self.waves = Waves(rollout, "r1", "ann@ops1", boards=(RecordBoard("r1"),))
        self.waves.signals.entered.extend(cast(Any, clusters))
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self.over.wait(0.01):
            turn = self.waves.next(interrupted=False)
            if turn.over and not self.waves._progress.busy:
                return

    def __enter__(self) -> Rollout:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def paused(self, value: bool) -> None:
        """Wait until it is, or is not."""
        until = time.monotonic() + 60
        while bool(self.waves.signals.paused) is not value:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "_LOOK_S", 0.0)
    monkeypatch.setattr(running, "_POLL_S", 0.01)
    monkeypatch.setattr(running, "ANSWER_S", 60.0)  # of a machine that is busy


def test_a_run_without_a_scheduler_is_found_by_its_record(inventory: Path, quick: None) -> None:
    with Rollout(inventory=str(inventory)) as rollout:
        assert "run r1 of ann: no further node is started\n" in verb("rollout", "pause")
        rollout.paused(True)
        again = verb("rollout", "pause")
        assert "no further node is started; it was paused by" in again
        (row,) = json.loads(run("-i", inventory, "-o", "json"))["rollouts"]
        assert (row["where"], row["state"], row["why"][:9]) == (
            "this machine",
            "paused",
            "paused by",
        )
        assert "continues; it was paused by" in verb("rollout", "resume")
        rollout.paused(False)


def test_runs_of_other_inventories_are_not_shown(inventory: Path, tmp_path: Path) -> None:
    begin("r1", os.getppid(), inventory=str(inventory))
    begin("r2", os.getppid(), inventory=str(tmp_path / "other.yml"))
    (row,) = json.loads(run("-i", inventory, "-o", "json"))["rollouts"]
    assert row["run"] == "r1"


def test_a_pause_is_the_same_on_every_machine(inventory: Path, tmp_path: Path, quick: None) -> None:
    """Paused here and resumed there, and the other way round: the Lease has the request."""
    cluster = FakeCluster()
    CLUSTERS.append(cluster)
    there = {"XDG_STATE_HOME": str(tmp_path / "there")}

    def elsewhere(*words: object) -> Result:
        return CliRunner().invoke(cli, [*map(str, words), "-i", str(inventory)], env=there)

    with Rollout(cluster) as rollout:
        verb("rollout", "pause")
        assert read_control(cluster.lease.control, "r1") is not None
        shown = elsewhere("status").output
        assert "run r1  paused" in shown
        assert "paused by" in shown
        assert "it was paused by" in elsewhere("rollout", "pause").output
        assert "continues; it was paused by" in elsewhere("rollout", "resume").output
        rollout.paused(False)
        assert RecordBoard("r1").control() == ""
        assert "r1 of ann@ops1 is in progress, and not paused" in str(
            elsewhere("rollout", "resume").exception
        )
        assert "no further node is started" in elsewhere("rollout", "pause").output
        rollout.paused(True)
        assert "continues; it was paused by" in verb("rollout", "resume")
        assert cluster.lease.control == ""
        rollout.paused(False)
        for words in (
            ("rollout", "resume"),
            ("rollout", "resume", "r1"),
            ("rollout", "resume", "r1", "-i", str(inventory)),
        ):
            done = CliRunner().invoke(cli, list(words))
            assert done.exit_code == 1
            assert "is in progress, and not paused" in str(done.exception)
        assert "it ends after the nodes in progress" in elsewhere("rollout", "abort").output
        until = time.monotonic() + 5
        while "abort" not in (RecordBoard("r1").control() or ""):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert "was aborted by" in verb("rollout", "pause")
        done = elsewhere("rollout", "resume", "r1")
        assert (done.exit_code, "was aborted by" in str(done.exception)) == (1, True)
        assert rollout.waves.signals.aborted


def test_a_run_that_takes_up_no_request_is_named(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ANSWER_S", 0.0)
    begin("r5", os.getppid())
    assert "run r5 of ann: it has not taken up the request within 0 s" in verb("rollout", "pause")
    assert "was paused by" in verb("rollout", "resume")


def test_a_run_that_an_abort_ends_at_once_is_not_waited_for(inventory: Path, quick: None) -> None:
    with Rollout() as rollout:
        until = time.monotonic() + 5
        while not RecordBoard("r1").progress():
            assert time.monotonic() < until
        rollout.waves.ended(NodeResult("gpu1"))
        assert "it ends after the nodes in progress\n" in verb("rollout", "abort")


def test_a_paused_run_of_a_cluster_comes_before_an_interrupted_one(inventory: Path) -> None:
    begin("r9", 2**22 + 1)
    CLUSTERS.append(FakeCluster())
    verb("rollout", "pause", "-i", inventory)
    assert "run r1 of ann@ops1 continues" in verb("rollout", "resume", "-i", inventory)


def test_a_paused_run_whose_process_on_this_machine_is_dead_is_resumed(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inventory.parent)
    Path("p.yaml").write_text("states: {}\n")
    begin("r1", 2**22 + 1)  # no such process
    cluster = FakeCluster()
    CLUSTERS.append(cluster)
    again: list[str] = []
    monkeypatch.setattr(apply, "apply_policy", lambda source, *_, **__: again.append(source))
    monkeypatch.setattr(fleet, "person", lambda: "ann")
    verb("rollout", "pause", "-i", inventory)
    unasked = CliRunner().invoke(cli, ["rollout", "resume", "-i", str(inventory)])
    assert "stdin is not a terminal; name one: gpustate rollout resume r1" in str(unasked.exception)
    assert (bool(cluster.lease.control), again) == (True, [])
    said = verb("rollout", "resume", "-i", inventory, "--yes")
    assert "was paused by" in said
    assert "its process is dead" in said
    assert "continues" not in said
    assert (cluster.lease.control, again) == ("", [str(inventory.parent / "p.yaml")])


def test_resuming_a_silent_run_of_another_machine_names_the_command(inventory: Path) -> None:
    cluster = FakeCluster()
    cluster.lease = replace(cluster.lease, renewed="2026-01-01T00:00:00.000000Z")
    CLUSTERS.append(cluster)
    verb("rollout", "pause", "-i", inventory)
    said = verb("rollout", "resume", "-i", inventory)
    assert (
        "if it is dead: gpustate rollout resume r1 on its machine, or its command again here"
        in said
    )
    assert "continues" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollout", "pause",), "no run is in progress on this machine; if it runs on another machine, name its cluster: gpustate rollout pause -i INVENTORY"),
        (("rollout", "abort", "r9"), "run r9 is not in progress on this machine; if it runs on another machine"),
        (("rollout", "pause", "-i", "hosts.yml"), "nor does one hold the Lease of Kubernetes at test; until a run has cordoned a node, and without"),
        (("rollout", "abort", "r9", "--kubeconfig", "k"), "nor does it hold the Lease of Kubernetes at test"),
        (("rollout", "resume", "-i", "hosts.yml"), "no run is in progress on this machine, nor does one hold the Lease"),
        (("rollout", "resume", "r8", "-i", "hosts.yml"), "run r8 is not in progress on this machine, nor does it hold the Lease"),
        (("rollout", "pause", "-i", "plain.yml"), "and plain.yml names no scheduler; name its cluster with --kubeconfig FILE"),
        (("rollout", "pause", "-i", "nowhere.yml"), "nowhere.yml"),
    ],
)  # fmt: skip
def test_where_nothing_runs_the_message_says_where_was_looked(
    inventory: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(inventory.parent)
    (inventory.parent / "plain.yml").write_text("all: {hosts: {gpu1: {}}}\n")
    free = FakeCluster()
    free.lease = Standing()
    if {"hosts.yml", "k"} & {*words}:
        CLUSTERS.append(free)
    if "resume" not in words:
        begin("r9", 2**22 + 1)  # no such process
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 1
    assert message in str(done.exception)


def test_another_run_that_holds_the_lease_is_named(inventory: Path) -> None:
    CLUSTERS.append(FakeCluster())
    done = CliRunner().invoke(cli, ["rollout", "pause", "r8", "-i", str(inventory)])
    assert "in progress: r1 of ann@ops1" in str(done.exception)


def test_the_run_is_named_where_several_are_running(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin("r5", os.getppid())
    begin("r6", os.getppid())
    done = CliRunner().invoke(cli, ["rollout", "pause"])
    assert "several runs are running" in str(done.exception)
    monkeypatch.setattr(running, "ANSWER_S", 0.0)
    assert "run r6" in verb("rollout", "pause", "r6")
    assert RecordBoard("r5").control() == ""


def test_nodes_of_the_inventory_count_before_they_have_gpus(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = tuple(Member(name, True, True, counts=False) for name in ("gpu1", "gpu2", "web"))
    monkeypatch.setattr(FakeScheduler, "members", lambda self, *, fresh_=fresh, fresh=False: fresh_)
    assert run("-i", inventory) == (
        "every node is in service; --all names them\nnodes=2 in_service=2 out_of_service=0\n"
    )
