"""A watcher against a cluster in memory: what it applies, what it writes, and how the next one goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate.api.results import ApplyResult
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.errors import ClusterError, GpustateError, LockHeld
from gpustate.schedulers import lease
from gpustate.watch import watcher, work_queue
from gpustate.watch.nodes import RECORD
from gpustate.watch.watcher import Round, Signals, Watcher

MIG = "nvidia.com/mig.config"
GPUS = {"nvidia.com/gpu.present": "true"}


def ids(name: str) -> tuple[str, str, str]:
    return (f"boot-{name}", f"machine-{name}", f"uuid-{name}")


@dataclass
class Bench:
    """A cluster, watchers of it, and what they applied."""

    folder: Path
    cluster: StubCluster
    gate: Gate
    kubeconfig: str
    lines: list[str] = field(default_factory=list[str])
    rounds: list[Round] = field(default_factory=list[Round])
    fails: dict[str, str] = field(default_factory=dict[str, str])
    errors: list[GpustateError] = field(default_factory=list[GpustateError])
    during: Callable[[Round], None] = lambda _: None
    window: str = ""
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    signals: list[Signals] = field(default_factory=list[Signals])

    def inventory(self) -> Inventory:
        known = [one for one in sorted(self.cluster.objects["nodes"]) if one.startswith("n")]
        nodes = (
            InventoryNode(
                one, vars={"gpustate_kubeconfig": self.kubeconfig}, connection=Connection(host=one)
            )
            for one in known
        )
        return Inventory("i", tuple(nodes))

    def apply(self, this: Round) -> ApplyResult:
        self.rounds.append(this)
        self.during(this)
        rows: list[NodeResult] = []
        for node in this.inventory.nodes:
            why = self.fails.get(node.name, "")
            facts: dict[str, Any] = {"boot_id": self._boot(node.name)}
            states = [StateResult("driver", Outcome.FAILED if why else Outcome.CHANGED)]
            status = NodeStatus.FAILED if why else NodeStatus.OK
            notes = ["MIG layout x: a warning"]
            rows.append(NodeResult(node.name, status, why, states=states, facts=facts, notes=notes))
        return ApplyResult(
            run=this.run,
            nodes=tuple(rows),
            exit_code=0,
            summary="",
            interrupted=False,
            notes=(),
            document={},
            skipped=(),
            stopped="",
        )

    def _boot(self, name: str) -> str:
        return str(self.cluster.node(name)["status"]["nodeInfo"]["bootID"])

    def start(self) -> Signals:
        signals = Signals()
        one = Watcher(
            Kubeconfig(self.kubeconfig),
            self.inventory,
            self.apply,
            self.window,
            self.lines.append,
            signals,
            "watch p",
        )

        def run() -> None:
            try:
                one.run()
            except GpustateError as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        self.signals.append(signals)
        return signals

    def until(self, what: Callable[[], object], wanted: str, timeout_s: float = 15) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, (wanted, self.lines, self.errors)
            time.sleep(0.02)

    def stop(self) -> None:
        for one in self.signals:
            one.ending = True
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()

    def record(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.node(name)["metadata"]["annotations"][RECORD])  # fmt: skip
        return found

    def applied(self) -> list[list[str]]:
        return [[node.name for node in one.inventory.nodes] for one in self.rounds]

    def events(self, reason: str) -> int:
        return [one["reason"] for one in self.cluster.all("events")].count(reason)

    def recorded(self, name: str, phase: str) -> bool:
        notes = self.cluster.node(name)["metadata"]["annotations"]
        return RECORD in notes and json.loads(notes[RECORD])["phase"] == phase


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for module, name, value in (
        (work_queue, "SETTLE_S", 0.1),
        (work_queue, "_FIRST_S", 1.0),
        (watcher, "_LOOK_S", 0.05),
        (watcher, "_LEASE_S", 0.1),
        (lease, "VALID_S", 3.0),
        (lease, "RENEW_S", 0.5),
        (lease, "_POLL_S", 0.1),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster = StubCluster({name: ids(name) for name in ("n1", "n2")})
    for name in ("n1", "n2"):
        cluster.edit_node(name, {"metadata": {"labels": GPUS}})
    gate = Gate(lambda request: cluster.answer(request))
    gate.open()
    found = Bench(tmp_path, cluster, gate, str(gate.kubeconfig(tmp_path, TOKEN)))
    try:
        yield found
    finally:
        found.stop()
        gate.close()


def test_nodes_are_set_up_once_and_idle_nothing_but_the_lease_is_written(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    assert bench.applied() == [["n1", "n2"]]
    assert bench.record("n1")["reason"] == {"boot": "boot-n1", "mig": "", "plugin": ""}
    bench.until(lambda: bench.events("GpustateApplied") == 2, "both Events")
    bench.gate.begin()
    lists = bench.cluster.lists.count("nodes")
    time.sleep(1.5)
    assert {name.rpartition(" ")[0] for name in bench.gate.writes} == {"lease renew"}
    assert bench.cluster.lists.count("nodes") == lists == 1
    assert len(bench.rounds) == 1


def test_a_node_that_joins_is_applied_to_alone(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    bench.cluster.add_node("n3", ids("n3"), GPUS)
    bench.until(lambda: bench.recorded("n3", "done"), "the third node")
    assert bench.applied()[1:] == [["n3"]]
    assert any("n3: new; applying, run" in line for line in bench.lines)
    assert "n3: note: MIG layout x: a warning" in bench.lines
    bench.until(lambda: bench.events("GpustateApplied") == 3, "an Event for each node")
    assert bench.events("GpustateApplying") == 3


def test_a_reboot_and_a_label_are_applied_to_their_node(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    bench.cluster.edit_node("n1", ready)
    bench.cluster.edit_node("n1", {"status": {"nodeInfo": {"bootID": "second"}}})
    time.sleep(0.5)
    assert len(bench.rounds) == 1
    ready["status"]["conditions"][0]["status"] = "True"
    bench.cluster.edit_node("n1", ready)
    bench.until(lambda: len(bench.rounds) == 2, "a round for the reboot")
    bench.until(lambda: bench.record("n1")["reason"]["boot"] == "second", "its record")
    bench.cluster.edit_node("n2", {"metadata": {"labels": {MIG: "all-1g"}}})
    bench.until(lambda: len(bench.rounds) == 3, "a round for the label")
    bench.until(lambda: bench.recorded("n2", "done"), "the label's record")
    assert bench.record("n2")["reason"]["mig"] == "all-1g"
    assert bench.applied()[1:] == [["n1"], ["n2"]]


def test_a_reboot_of_the_round_itself_is_no_reason_for_another(bench: Bench) -> None:
    def reboot(this: Round) -> None:
        for node in this.inventory.nodes:
            boot = {"status": {"nodeInfo": {"bootID": f"again-{node.name}"}}}
            bench.cluster.edit_node(node.name, boot)

    bench.during = reboot
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    time.sleep(0.5)
    assert len(bench.rounds) == 1


def test_a_node_that_fails_is_recorded_and_tried_again(bench: Bench) -> None:
    bench.fails["n1"] = "no driver"
    bench.start()
    bench.until(lambda: bench.recorded("n1", "failed"), "a failure")
    assert bench.record("n1")["text"] == "no driver"
    bench.until(lambda: bench.recorded("n2", "done"), "the other node")
    bench.fails.clear()
    bench.until(lambda: bench.recorded("n1", "done"), "the next try")
    assert bench.applied() == [["n1", "n2"], ["n1"]]
    kinds = {one["reason"]: one["type"] for one in bench.cluster.all("events")}
    assert kinds["GpustateApplyFailed"] == "Warning"


def test_an_inventory_that_fails_is_tried_again(bench: Bench) -> None:
    inventory, calls = bench.inventory, iter(range(100))

    def breaks() -> Inventory:
        if next(calls) == 0:
            raise ClusterError("the inventory is broken")
        return inventory()

    bench.inventory = breaks  # type: ignore[method-assign]
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    assert any(line.startswith("the inventory is broken; again in 1 s") for line in bench.lines)


def test_nodes_of_others_are_reported_once_and_left_alone(bench: Bench) -> None:
    bench.cluster.add_node("cpu", ids("cpu"), {})
    for n in range(1, 4):
        bench.cluster.add_node(f"else{n}", ids(f"else{n}"), GPUS)
    bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    time.sleep(0.3)
    assert bench.applied() == [["n1", "n2"]]
    (line,) = [line for line in bench.lines if "not in the inventory" in line]
    assert line == "else[1-3]: have GPUs and are not in the inventory"
    assert RECORD not in bench.cluster.node("cpu")["metadata"]["annotations"]


def test_a_second_watcher_waits_and_takes_over_from_one_that_ended(bench: Bench) -> None:
    first = bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    bench.start()
    bench.until(lambda: any("waiting: " in line for line in bench.lines), "the second one waits")
    time.sleep(0.5)
    assert len([line for line in bench.lines if line.startswith("waiting: ")]) == 1
    first.end()
    bench.until(lambda: len([one for one in bench.lines if "watching the Nodes" in one]) == 2, "it takes over")  # fmt: skip
    bench.cluster.add_node("n3", ids("n3"), GPUS)
    bench.until(lambda: bench.recorded("n3", "done"), "the third node")
    assert bench.applied() == [["n1", "n2"], ["n3"]]


def test_what_another_watcher_left_half_done_is_done(bench: Bench) -> None:
    record = {"reason": {"boot": "boot-n1", "mig": "", "plugin": ""}, "phase": "applying", "run": "r0", "since": "", "text": ""}  # fmt: skip
    for name, phase in (("n1", "applying"), ("n2", "done")):
        text = json.dumps({**record, "phase": phase, "reason": {**record["reason"], "boot": f"boot-{name}"}})  # type: ignore[dict-item]  # fmt: skip
        bench.cluster.edit_node(name, {"metadata": {"annotations": {RECORD: text}}})
    bench.start()
    bench.until(lambda: bench.recorded("n1", "done"), "the node that was half done")
    time.sleep(0.3)
    assert bench.applied() == [["n1"]]
    assert any("n1: run r0 did not end; applying" in line for line in bench.lines)


def test_without_its_lease_it_stops_and_writes_nothing(bench: Bench) -> None:
    stopped: list[bool] = []
    refused: list[str] = []

    def lose(this: Round) -> None:
        with bench.cluster.lock:
            held = bench.cluster.objects["leases"]["kube-system/gpustate-watch"]
            held["spec"]["holderIdentity"] = "somebody else"
            bench.cluster._store("leases", held)
        bench.until(this.stop, "the loss is seen")
        stopped.append(this.stop())
        try:
            this.fence()
        except ClusterError as error:
            refused.append(str(error))
        bench.gate.begin()

    bench.during = lose
    bench.start()
    bench.until(lambda: bench.errors, "the watcher ends")
    assert stopped == [True]
    assert "was lost" in refused[0]
    assert isinstance(bench.errors[0], LockHeld)
    assert bench.gate.writes == []
    assert bench.recorded("n1", "applying")


def test_a_signal_ends_it_after_the_nodes_under_way(bench: Bench) -> None:
    def signal(this: Round) -> None:
        bench.signals[0].end()
        control = bench.folder / "gpustate/runs" / f"{this.run}.control"
        assert json.loads(control.read_text())["action"] == "abort"
        assert not this.stop()

    (bench.folder / "gpustate/runs").mkdir(parents=True)
    bench.during = signal
    bench.start()
    bench.threads[0].join(10)
    assert bench.recorded("n1", "done")
    assert bench.errors == []
    spec = bench.cluster.objects["leases"]["kube-system/gpustate-watch"]["spec"]
    assert not spec.get("holderIdentity")


def test_a_second_signal_ends_it_after_the_running_step(bench: Bench) -> None:
    signals = Signals()
    signals.end()
    assert (signals.ending, signals.stopping) == (True, False)
    signals.end()
    assert (signals.ending, signals.stopping) == (True, True)


def test_nodes_wait_for_their_window(bench: Bench) -> None:
    hour = time.gmtime().tm_hour
    bench.window = f"{(hour + 2) % 24:02}:00-{(hour + 3) % 24:02}:00"
    bench.start()
    bench.until(lambda: any("for its window" in line for line in bench.lines), "they wait")
    time.sleep(0.3)
    assert bench.rounds == []
    assert len([line for line in bench.lines if "n1: new; waits" in line]) == 1


def test_missing_rights_are_named_with_their_rules(bench: Bench) -> None:
    bench.cluster.denied = {("watch", "", "nodes"), ("update", "coordination.k8s.io", "leases")}
    bench.start()
    bench.until(lambda: bench.errors, "a refusal")
    text = str(bench.errors[0])
    assert '{apiGroups: [""], resources: ["nodes"], verbs: ["watch"]}' in text
    assert '{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["update"]}' in text


def test_a_record_that_cannot_be_written_stops_nothing(bench: Bench) -> None:
    def deny(_: Round) -> None:
        bench.cluster.denied.add(("patch", "", "nodes"))

    bench.during = deny
    bench.start()
    bench.until(lambda: any("no record on the Node" in line for line in bench.lines), "a line")
    assert any('verbs: ["patch"]' in line for line in bench.lines)
    bench.cluster.denied.clear()


def test_after_a_removal_the_next_watcher_sets_nodes_up_and_a_running_one_does_not(
    bench: Bench,
) -> None:
    first = bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes")
    for name in ("n1", "n2"):
        bench.cluster.edit_node(name, {"metadata": {"annotations": {RECORD: None}}})
    time.sleep(0.5)
    assert len(bench.rounds) == 1
    first.ending = True
    bench.threads[0].join(10)
    second = bench.start()
    bench.until(lambda: bench.recorded("n2", "done"), "both nodes again")
    assert bench.applied() == [["n1", "n2"]] * 2
    second.ending = True
    bench.threads[1].join(10)
    lists = bench.cluster.lists.count("nodes")
    bench.start()
    bench.until(lambda: bench.cluster.lists.count("nodes") > lists, "the third watcher")
    time.sleep(0.5)
    bench.cluster.edit_node("n1", {"metadata": {"annotations": {RECORD: None}}})
    time.sleep(0.5)
    assert len(bench.rounds) == 2, "nor one that has found them set up"
