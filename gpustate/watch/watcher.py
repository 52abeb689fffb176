"""Watch the Nodes of one cluster, and apply the policy to those that are due, a round at a time.

One watcher does so at a time, the one that holds the Lease ``gpustate-watch``; another waits for it. Once the Lease is
lost, no step begins and nothing is written to the cluster any more. What was done stands on the Nodes, so any
watcher goes on where another one ended.

A round is an ordinary apply with a limit: its waves, budgets, windows, holds and drains are the same. Its nodes are
those whose maintenance windows are open; Nodes that become due meanwhile wait for its end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpustate import clock
from gpustate.api.results import ApplyResult
from gpustate.cluster.api import Api, RefusedRequest, connect
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.cluster.node_watch import EventKind, NodeEvent, NodeWatch
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import NodeResult
from gpustate.engine import fleet
from gpustate.errors import ClusterError, GpustateError, LockHeld
from gpustate.plan.ranges import fold
from gpustate.rollout.board import ABORT, Control, RecordBoard
from gpustate.rollout.strategy import Strategy
from gpustate.rollout.windows import wait_s
from gpustate.schedulers import node_events
from gpustate.schedulers.base import Why
from gpustate.schedulers.kubernetes.rights import lacking, missing_rules, rule, to_be_granted
from gpustate.schedulers.lease import WATCH, ClusterLease
from gpustate.watch.nodes import APPLYING, COMPLETED, FAILED, NodeSnapshot, Record, see, why
from gpustate.watch.work_queue import WorkQueue

#: What watching needs, beside what an apply needs: verb, API group, resource.
RIGHTS = (
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
    ("get", "", "nodes"),
    ("patch", "", "nodes"),
    ("get", "coordination.k8s.io", "leases"),
    ("create", "coordination.k8s.io", "leases"),
    ("update", "coordination.k8s.io", "leases"),
)
#: Between two looks at the Lease, whether a signal came, and whether a Node is due.
_LOOK_S = 1.0
_LEASE_S = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """One apply.

    Args:
        run: its id.
        inventory: its nodes.
        stop: no further step begins once it returns true.
        fence: raises where nothing may be written to the cluster any more.
        names: of its Nodes, by those of the inventory.
    """

    run: str
    inventory: Inventory
    stop: Callable[[], bool]
    fence: Callable[[], None]
    names: Mapping[str, str]


@dataclass(slots=True)
class Signals:
    """What the process was asked for.

    Args:
        ending: no further node begins.
        stopping: no further step begins.
        runs: rounds at work.
    """

    ending: bool = False
    stopping: bool = False
    runs: set[str] = field(default_factory=set[str])

    def end(self) -> None:
        """End after the nodes under way; a second time: after their running steps."""
        self.stopping = self.ending
        self.ending = True
        for run in tuple(self.runs):
            self.abort(run)

    def abort(self, run: str) -> None:
        """No further node of a round begins."""
        request = Control(run, ABORT, fleet.controller().name, clock.now())
        try:
            RecordBoard(run).ask(request.text())
        except OSError:
            self.stopping = True  # nothing else ends it


@dataclass(slots=True)
class Watcher:
    """Watches one cluster.

    Args:
        kubeconfig: of the cluster.
        inventory: reads the inventory as it is now.
        apply: carries out one round.
        window: maintenance windows besides those of the nodes.
        emit: prints a line.
        signals: of the process.
        text: what is done, in a few words, for Leases and Events.
        option: kubeconfig of the command line, which counts for every node; empty: each node's variable.
    """

    kubeconfig: Kubeconfig
    inventory: Callable[[], Inventory]
    apply: Callable[[Round], ApplyResult]
    window: str
    emit: Callable[[str], None]
    signals: Signals
    text: str
    option: str = ""
    clock: Callable[[], float] = time.time
    _queue: WorkQueue = field(default_factory=WorkQueue)
    _events: queue.SimpleQueue[NodeEvent] = field(default_factory=lambda: queue.SimpleQueue())
    _reported: set[str] = field(default_factory=set[str])
    _lease: ClusterLease | None = None

    def run(self) -> None:
        """Watch until the process is asked to end.

        Raises:
            UsageError: the kubeconfig cannot be used.
            ClusterError: rights are missing.
            LockHeld: the Lease was lost.
        """
        api = self._connect()
        try:
            self._check_rights(api)
            self._lease = ClusterLease(api, WATCH)
            if not self._enter(self._lease, api):
                return
            self.emit(f"watching the Nodes of {api.server}")
            watch = NodeWatch(self._connect, self.emit, self._over)
            threading.Thread(target=self._follow, args=(watch,), daemon=True).start()
            self._loop(self._lease)
        finally:
            if self._lease is not None:
                self._lease.release()
            api.close()

    def _connect(self) -> Api:
        return connect(self.kubeconfig.path, self.kubeconfig.context)

    def _over(self) -> bool:
        """Nothing more is watched."""
        return self.signals.ending or (self._lease is not None and not self._lease.held)

    def _follow(self, watch: NodeWatch) -> None:
        for event in watch.events():
            self._events.put(event)

    def _check_rights(self, api: Api) -> None:
        missing = missing_rules(api, RIGHTS)
        if missing:
            raise lacking(api.server, "watch Nodes", api.user(), missing)

    def _enter(self, lease: ClusterLease, api: Api) -> bool:
        """Take the Lease, as soon as nobody else holds it; whether it was taken."""
        identity = Why(fleet.new_run_id(), fleet.controller().name, self.text)
        reported = ""
        while not self.signals.ending:
            try:
                lease.hold(identity, self.emit, lambda: self.signals.ending)
            except LockHeld as error:
                words = f"waiting: {error.message}"
            except ClusterError as error:
                words = str(error)
            except GpustateError:
                return False  # interrupted
            else:
                return True
            if words != reported:
                self.emit(words)
                reported = words
            self._sleep(_LEASE_S)
        return False

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.signals.ending:
            time.sleep(min(_LOOK_S, seconds))

    # --- the loop ----------------------------------------------------------------------

    def _loop(self, lease: ClusterLease) -> None:
        while not self.signals.ending:
            if not lease.held:
                raise LockHeld(
                    f"the Lease {WATCH} was lost; nothing more is written",
                    fix="another watcher goes on; start this one again to wait for it",
                )
            self._read_events()
            due = self._queue.due(self.clock())
            if due:
                self._round(due)

    def _read_events(self) -> None:
        """Take the events that are there; wait a moment for the first one."""
        timeout = _LOOK_S
        while True:
            try:
                event = self._events.get(timeout=timeout) if timeout else self._events.get_nowait()
            except queue.Empty:
                return
            timeout = 0.0
            time_s = self.clock()
            nodes = [see(node) for node in event.nodes]
            if event.kind is EventKind.LISTED:
                self._queue.listed(nodes, time_s)
            elif event.kind is EventKind.CHANGED:
                self._queue.changed(nodes[0], time_s)
            else:
                self._queue.remove(nodes[0].name)

    def _round(self, due: Sequence[NodeSnapshot]) -> None:
        """Apply the policy to Nodes that are due."""
        try:
            inventory = self.inventory()
            chosen = self._open(self._matched(inventory, due))
        except GpustateError as error:
            self._failed([snapshot.name for snapshot in due], str(error))
            return
        if not chosen:
            return
        run = fleet.new_run_id()
        names = {node.name for node, _ in chosen.values()}
        nodes = tuple(node for node in inventory.nodes if node.name in names)
        for node, snapshot in chosen.values():
            self.emit(f"{_title(node, snapshot)}: {why(snapshot)}; applying, run {run}")
        api = self._connect()
        api.fence = self._fence
        events = node_events.NodeEvents(api)
        try:
            events.begin(
                Why(run, fleet.controller().name, self.text),
                self._say_once,
                to_be_granted([rule(*node_events.RIGHT)]),
            )
            for snapshot in [snapshot for _, snapshot in chosen.values()]:
                record = Record(snapshot.reason, APPLYING, run, clock.now())
                self._write(api, events, snapshot, record, node_events.APPLYING, why(snapshot))
            self.signals.runs.add(run)
            called = {node.name: snapshot.name for node, snapshot in chosen.values()}
            selected = replace(inventory, nodes=nodes)
            results = self._applied(Round(run, selected, self._stop, self._fence, called))
            self.signals.runs.discard(run)
            for name, (node, snapshot) in chosen.items():
                self._ended(api, events, run, snapshot, node, results.get(name))
        finally:
            api.close()

    def _matched(
        self, inventory: Inventory, due: Iterable[NodeSnapshot]
    ) -> dict[str, tuple[InventoryNode, NodeSnapshot]]:
        """The inventory's nodes for Nodes, by their names."""
        index: dict[str, InventoryNode] = {}
        for node in inventory.nodes:
            if kubeconfig_of(node, self.option) == self.kubeconfig:
                index.setdefault(node.name, node)
                index.setdefault(node.connection.host or node.name, node)
        matches: dict[str, tuple[InventoryNode, NodeSnapshot]] = {}
        unknown: list[str] = []
        for snapshot in due:
            match = next((index[name] for name in snapshot.names if name in index), None)
            if match is not None:
                matches[match.name] = (match, snapshot)
                continue
            self._queue.unknown(snapshot)
            if snapshot.gpus:
                unknown.append(snapshot.name)
        if unknown:
            have = "have GPUs and are" if len(unknown) > 1 else "has GPUs and is"
            self._say_once(f"{', '.join(fold(unknown))}: {have} not in the inventory")
        return matches

    def _open(
        self, matches: Mapping[str, tuple[InventoryNode, NodeSnapshot]]
    ) -> dict[str, tuple[InventoryNode, NodeSnapshot]]:
        """Those whose maintenance windows are open; the others wait for them."""
        nodes = tuple(node for node, _ in matches.values())
        if not nodes:
            return {}
        time_s = self.clock()
        rollout = Strategy(window=self.window).rollout(Inventory("", nodes), 1, time_s)
        chosen: dict[str, tuple[InventoryNode, NodeSnapshot]] = {}
        for place in rollout.places:
            node, snapshot = matches[place.name]
            closed_s = max((wait_s(window, time_s) for window in place.windows), default=0.0)
            if closed_s:
                self._queue.postpone(snapshot.name, time_s + closed_s)
                self.emit(
                    f"{_title(node, snapshot)}: {why(snapshot)}; waits {closed_s:.0f} s for its window"
                )
            else:
                chosen[place.name] = (node, snapshot)
        return chosen

    def _stop(self) -> bool:
        """No further step begins."""
        return self.signals.stopping or self._lease is None or not self._lease.held

    def _fence(self) -> None:
        """Refuse to write to the cluster without the Lease."""
        if self._lease is None or not self._lease.held:
            raise ClusterError(f"the Lease {WATCH} was lost; nothing more is written")

    def _applied(self, this: Round) -> dict[str, NodeResult | str]:
        """The results of a round, or why it has none, by node."""
        try:
            result = self.apply(this)
        except GpustateError as error:
            return {node.name: str(error) for node in this.inventory.nodes}
        except Exception as error:  # noqa: BLE001  a round that fails must not end the watcher
            words = f"{type(error).__name__}: {error} (a bug in gpustate)"
            return {node.name: words for node in this.inventory.nodes}
        stopped = result.stopped or ("interrupted" if result.interrupted else "not started")
        results: dict[str, NodeResult | str] = dict.fromkeys(result.skipped, stopped)
        return {**results, **{node.name: node for node in result.nodes}}

    def _ended(
        self,
        api: Api,
        events: node_events.NodeEvents,
        run: str,
        snapshot: NodeSnapshot,
        node: InventoryNode,
        result: NodeResult | str | None,
    ) -> None:
        """Record how a Node ended, and when it is tried again."""
        title = _title(node, snapshot)
        if isinstance(result, NodeResult) and not result.exit_code:
            boot = str(result.facts.get("boot_id") or snapshot.reason.boot)
            reason = replace(snapshot.reason, boot=boot)
            self._queue.finish(snapshot.name, reason)
            changed = [row.state for row in result.states if row.outcome.value == "changed"]
            words = f"changed {', '.join(changed)}" if changed else "nothing to change"
            self.emit(f"{title}: done, {words} ({result.duration_s:.0f} s)")
            for note in result.notes:
                self.emit(f"{title}: note: {note}")
            self._write(
                api,
                events,
                snapshot,
                Record(reason, COMPLETED, run, clock.now()),
                node_events.APPLIED,
                words,
            )
            return
        if isinstance(result, NodeResult):
            why_not = result.reason or result.status.value
        else:
            why_not = result or "not started"
        delay_s = self._queue.failed(snapshot.name, self.clock())
        self.emit(f"{title}: failed: {why_not}; again in {delay_s:.0f} s")
        record = Record(snapshot.reason, FAILED, run, clock.now(), why_not)
        self._write(api, events, snapshot, record, node_events.APPLY_FAILED, why_not)

    def _failed(self, names: Iterable[str], words: str) -> None:
        """A round did not begin."""
        delays = [self._queue.failed(name, self.clock()) for name in names]
        self.emit(f"{words}; again in {min(delays, default=0.0):.0f} s")

    def _write(
        self,
        api: Api,
        events: node_events.NodeEvents,
        snapshot: NodeSnapshot,
        record: Record,
        event: str,
        words: str,
    ) -> None:
        """Record on a Node what is done with it; without that the next watcher does it again."""
        try:
            node = api.patch_node(snapshot.name, record.patch())
        except ClusterError as error:
            if not (isinstance(error, RefusedRequest) and error.status == 404):  # it is gone
                self.emit(f"{snapshot.name}: no record on the Node: {error}")
            return
        events.record(node, event, words)

    def _say_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.emit(text)


def _title(node: InventoryNode, snapshot: NodeSnapshot) -> str:
    return snapshot.name if node.name == snapshot.name else f"{snapshot.name} ({node.name})"
