"""Write on Nodes what a run says about their GPUs, and admit validated ones: the start-up taint is lifted.

The taint is put on new Nodes by the kubelet or the node group, never by gpustate. A Node whose validation failed, or that
does not offer its GPUs yet, keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpustate.cluster import node_status, pods
from gpustate.cluster.node_status import CONDITION
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.reconcile.verdicts import Verdict

_POLL_S = 1.0
_VALIDATE = "once it is fixed: gpustate validate POLICY -i INVENTORY"
#: Seconds within which a device plugin whose pod has just become available registers with the kubelet.
_REGISTER_S = 30.0


class NodeApi(Protocol):
    """The requests that are needed; see :class:`gpustate.cluster.node_status.NodeStatusApi`."""

    def nodes(self) -> list[Json]: ...
    def apply_condition(self, name: str, condition: Mapping[str, str] | None) -> None: ...
    def lift_taint(self, node: Json, key: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One line about a Node.

    Args:
        node: its name.
        text: what was written, or kept, or failed.
    """

    node: str
    text: str

    def __str__(self) -> str:
        return f"node/{self.node}: {self.text}"


@dataclass(slots=True)
class Admitted:
    """What was written.

    Args:
        notes: changes, taints that were kept, and conditions that could not be written.
        failures: taints that could not be lifted.
        names: of Nodes, by the machine of the run.
    """

    notes: list[Line] = field(default_factory=list[Line])
    failures: list[Line] = field(default_factory=list[Line])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def about(self, machine: str) -> list[Line]:
        """The lines about the Node of a machine of the run."""
        return [
            line for line in (*self.notes, *self.failures) if self.names.get(machine) == line.node
        ]


@dataclass(frozen=True)
class Admission:
    """Reports verdicts on the Nodes of one cluster.

    Args:
        api: of the cluster.
        timestamp: the time, as the API server writes it.
        taint: key of the start-up taint; empty: taints are left alone.
        offers_gpus: a Node is admitted only when it offers GPUs.
        blocked: why no Node is admitted; empty: nothing is in the way.
        sleep, clock: wait, and the time in seconds.
        stop: polled; once true, nothing is waited for.
    """

    api: NodeApi
    timestamp: str
    taint: str = ""
    offers_gpus: bool = False
    blocked: str = ""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    stop: Callable[[], bool] = lambda: False

    def report(self, verdicts: Sequence[tuple[Json, Verdict]]) -> Admitted:
        """Write the condition of each Node, and lift the taint of those that passed."""
        admitted = Admitted()
        judged: list[tuple[Json, Verdict]] = []
        for node, verdict in verdicts:
            newer = verdict.outdated_by(node_status.condition_of(node))
            if newer is None:
                self._condition(node, verdict, admitted)
            else:
                words = f"{CONDITION} stays False, for nothing was validated since ({newer.reason}: {newer.message}); {_VALIDATE}"
                admitted.notes.append(Line(node["metadata"]["name"], words))
            judged.append((node, newer or verdict))
        if self.taint:
            self._admit(
                [(n, v) for n, v in judged if node_status.has_taint(n, self.taint)], admitted
            )
        return admitted

    def withdraw(self, nodes: Iterable[Json]) -> Admitted:
        """Remove the condition from every Node on which it is gpustate's."""
        admitted = Admitted()
        for node in nodes:
            if node_status.owns_condition(node):
                self._write(node, None, f"condition {CONDITION} removed", admitted)
        return admitted

    def _condition(self, node: Json, verdict: Verdict, admitted: Admitted) -> None:
        live = node_status.condition_of(node) or {}
        condition = {"status": verdict.status, "reason": verdict.reason, "message": verdict.message}
        same = condition.items() <= live.items()
        if same and not verdict.fresh and node_status.owns_condition(node):
            return
        changed = live.get("status") != verdict.status
        times = {
            "lastHeartbeatTime": self.timestamp,
            "lastTransitionTime": self.timestamp if changed else str(live["lastTransitionTime"]),
        }
        words = f"{CONDITION} is {verdict.status} ({verdict.reason}: {verdict.message})"
        self._write(node, {**condition, **times}, "" if same else words, admitted)

    def _write(
        self, node: Json, condition: Mapping[str, str] | None, words: str, admitted: Admitted
    ) -> None:
        name = node["metadata"]["name"]
        try:
            self.api.apply_condition(name, condition)
        except node_status.OtherWriter as error:
            words = f"{CONDITION} has another writer, and is left to it: {error}"
        except ClusterError as error:
            words = f"{CONDITION} could not be written: {error}"
        if words:
            admitted.notes.append(Line(name, words))

    def _admit(self, verdicts: Sequence[tuple[Json, Verdict]], admitted: Admitted) -> None:
        passed = [node for node, verdict in verdicts if verdict.passed]
        waiting = self._without_gpus(passed) if not self.blocked else set[str]()
        for node, verdict in verdicts:
            name = node["metadata"]["name"]
            if not verdict.passed:
                self._keep(name, f"{verdict.reason}: {verdict.message}", admitted)
            elif self.blocked:
                self._keep(name, self.blocked, admitted)
            elif name in waiting:
                self._keep(name, "the Node offers no GPU: check the device plugin's pod", admitted)
            else:
                self._lift(node, admitted)

    def _lift(self, node: Json, admitted: Admitted) -> None:
        name = node["metadata"]["name"]
        try:
            if self.api.lift_taint(node, self.taint):
                admitted.notes.append(Line(name, f"start-up taint {self.taint} lifted"))
        except ClusterError as error:
            admitted.failures.append(Line(name, f"start-up taint {self.taint} stays: {error}"))

    def _keep(self, name: str, why: str, admitted: Admitted) -> None:
        admitted.notes.append(Line(name, f"start-up taint {self.taint} stays: {why}"))

    def _without_gpus(self, nodes: Sequence[Json]) -> set[str]:
        """Names of the Nodes that do not offer a GPU, after a while."""
        if not self.offers_gpus:
            return set()
        missing = {node["metadata"]["name"] for node in nodes if not pods.allocatable(node)}
        end = self.clock() + _REGISTER_S
        while missing and self.clock() < end and not self.stop():
            self.sleep(_POLL_S)
            missing -= {
                node["metadata"]["name"] for node in self.api.nodes() if pods.allocatable(node)
            }
        return missing
