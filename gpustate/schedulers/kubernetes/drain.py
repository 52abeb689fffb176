"""How a Node is drained: pods that are to complete are waited for, those that have to leave are evicted.

Sources:
    kubernetes/kubectl, pkg/drain; kubernetes, registry/core/pod/storage/eviction.go (429 and Retry-After, 500 for two
    budgets, NamespaceTerminating).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpustate.cluster.api import RefusedRequest
from gpustate.core.drain import DrainPolicy
from gpustate.documents import Json
from gpustate.formats.words import listed
from gpustate.schedulers import eviction, node_events
from gpustate.schedulers.base import (
    Emit,
    Member,
    NotDrainedError,
    Scope,
    Stop,
    Workload,
    refuse_stopped,
    rules_of,
)
from gpustate.schedulers.kubernetes.members import Nodes
from gpustate.schedulers.mig_state import is_ours as mig_is_ours

_RETRY_S = 5.0
_POLL_S = 1.0
#: Between two looks at pods that are waited for, and between two reports of pods that do not leave.
_WAIT_S = 5.0
_REMIND_S = 300.0
#: How long what keeps pods from being evicted may be out of date: a budget's status follows its change.
_SETTLE_S = 10.0


class Drains:
    """The pods of a cluster that have to leave Nodes.

    Args:
        nodes: those of the cluster.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._owners: eviction.Cluster | None = None
        self._by_node: dict[str, list[Json]] | None = None

    def owners(self, *, fresh: bool = False) -> eviction.Cluster:
        """What decides of pods whether they leave: DaemonSets, claims and budgets."""
        with self._lock:
            if self._owners is None or fresh:
                self._owners = eviction.Cluster.of(
                    self._nodes.api.daemon_sets(),
                    self._nodes.api.claims(),
                    self._nodes.api.budgets(),
                )
            return self._owners

    def _all_pods(self) -> dict[str, list[Json]]:
        with self._lock:
            if self._by_node is None:
                by_node: dict[str, list[Json]] = {}
                for pod in self._nodes.api.pods():
                    node = (pod.get("spec") or {}).get("nodeName")
                    if node:
                        by_node.setdefault(node, []).append(pod)
                self._by_node = by_node
            return self._by_node

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """The pods that would have to leave."""
        cluster = self.owners()
        pods = self._all_pods().get(member.name, [])
        selection = eviction.select(pods, scope, policy, cluster, spared=member.spared)
        if selection.refused and policy.node_after_gpu_pods:
            selection = eviction.select(pods, Scope.ALL, policy, cluster, after_gpu_pods=True)
        leave = [(pod, eviction.dead_end(pod, cluster)) for pod in selection.leave]
        rows = {eviction.name(pod): (pod, words) for pod, words in (*leave, *selection.refused)}
        for pod in pods:
            if eviction.is_waited_for(pod, policy):
                rows.setdefault(eviction.name(pod), (pod, ""))
        return [
            Workload(
                name,
                eviction.uses_gpu(pod, cluster.claims),
                words,
                waited=eviction.is_waited_for(pod, policy),
                lost=eviction.is_lost(pod, cluster),
            )
            for name, (pod, words) in sorted(rows.items())
        ]

    def restarted(self, member: Member) -> Sequence[str]:
        """The DaemonSets of NVIDIA's whose pods are deleted there."""
        pods = self._all_pods().get(member.name, [])
        sets = (
            f"DaemonSet {pod['metadata']['namespace']}/{(eviction.controller(pod) or {}).get('name')}"
            for pod in pods
            if eviction.is_operand(pod)
        )
        return sorted(set(sets))

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
    ) -> None:
        """Wait for pods that are to complete, evict those that have to leave, and wait until they have."""
        draining = _Draining(self._nodes, self.owners, member, scope, policy, emit, stop)
        draining.wait()
        try:
            draining.evict()
        except NotDrainedError as error:
            if scope is Scope.ALL or not policy.node_after_gpu_pods or stop():
                raise
            emit(f"{error}; draining the whole node")
            replace(draining, scope=Scope.ALL, after_gpu_pods=True).evict()
        # A reboot ends NVIDIA's programs, and for a MIG label its protocol pauses them.
        if scope is Scope.GPU and not mig_is_ours(self._nodes.api.node(member.name)):
            self._nodes.nvidia_pods.pause(member.name, emit, stop)
        subject = "pods that use a GPU" if scope is Scope.GPU else "pods"
        self._nodes.report(member.name, node_events.DRAINED, f"{subject} have left")


@dataclass(slots=True)
class _Draining:
    """The pods of one Node on their way out."""

    nodes: Nodes
    owners: Callable[..., eviction.Cluster]
    member: Member
    scope: Scope
    policy: DrainPolicy
    emit: Emit
    stop: Stop
    after_gpu_pods: bool = False
    began: float = 0.0

    @property
    def timeout_s(self) -> float:
        """Seconds for pods to leave; 0: no limit."""
        return rules_of(self.policy, self.scope).timeout_s

    def wait(self) -> None:
        """Wait for pods that are to complete by themselves, or until their time is over."""
        if not self.policy.wait_selector:
            return
        began = self.nodes.clock()
        reported: set[str] = set()
        while True:
            pods = self.nodes.api.pods_on(self.member.name)
            remaining = {
                eviction.name(pod): pod for pod in pods if eviction.is_waited_for(pod, self.policy)
            }
            if not remaining:
                return
            if (
                self.policy.wait_timeout_s
                and self.nodes.clock() - began > self.policy.wait_timeout_s
            ):
                self.emit(
                    f"{eviction.names(remaining.values())} did not complete within {self.policy.wait_timeout_s:g} s"
                )
                return
            if remaining.keys() - reported:
                self.emit(f"waiting for {eviction.names(remaining.values())} to complete")
                reported |= remaining.keys()
            refuse_stopped(self.stop)
            self.nodes.sleep(_WAIT_S)

    def evict(self) -> None:
        """Evict the pods that have to leave, and wait until they have.

        Raises:
            NotDrainedError: one cannot leave, or has not in time.
        """
        self.began, cluster = self.nodes.clock(), self.owners(fresh=True)
        # A pod that was bound before the cordon may show only now.
        while pods := self._leaving(cluster):
            self._evict_all(pods, [pod for pod in pods if eviction.is_lost(pod, cluster)])

    def _leaving(self, cluster: eviction.Cluster) -> list[Json]:
        """The pods that have to leave, as they are now.

        Raises:
            NotDrainedError: one of them cannot, so none is evicted.
        """
        until = self.nodes.clock() + _SETTLE_S
        while True:
            pods = self.nodes.api.pods_on(self.member.name)
            selection = eviction.select(
                *(pods, self.scope, self.policy, cluster),
                after_gpu_pods=self.after_gpu_pods,
                spared=self.member.spared,
            )
            dead_ends = [(pod, eviction.dead_end(pod, cluster)) for pod in selection.leave]
            stuck = [*selection.refused, *(row for row in dead_ends if row[1])]
            if not stuck:
                return selection.leave
            if selection.refused or self.nodes.clock() >= until:
                break
            refuse_stopped(self.stop)
            self.nodes.sleep(_RETRY_S)
            cluster = self.owners(fresh=True)
        words = [f"{eviction.name(pod)}: {why}" for pod, why in stuck]
        raise NotDrainedError(
            f"{self.nodes.title}: Node {self.member.name} cannot be drained: "
            + listed(words, 4, "; ", "pods")
        )

    def _evict_all(self, pods: Sequence[Json], lost: Sequence[Json]) -> None:
        """Evict all, then again those whose budget said no, until all are gone.

        Args:
            pods: that leave.
            lost: those of them that nothing creates again.
        """
        waiting = {str(pod["metadata"]["uid"]): pod for pod in pods}
        evicted: set[str] = set()
        next_try: dict[str, float] = {}
        blocked: dict[str, str] = {}
        failed: dict[str, str] = {}
        reported_at = self.nodes.clock()
        if evicted_pods := [pod for pod in pods if pod not in lost]:
            self.emit(f"evicting {eviction.names(evicted_pods)}")
        if lost:
            self.emit(f"deleting {eviction.names(lost)} for good: no controller creates it again")
        while waiting:
            refuse_stopped(self.stop)
            for uid, pod in waiting.items():
                if uid in evicted or self.nodes.clock() < next_try.get(uid, 0.0):
                    continue
                words, retry_s, final = self._evict(pod)
                if final:
                    failed[uid] = f"{eviction.name(pod)}: {words}"
                elif words:
                    if blocked.get(uid) != words:
                        self.emit(f"{eviction.name(pod)}: {words}")
                    blocked[uid] = words
                    next_try[uid] = self.nodes.clock() + retry_s
                else:
                    evicted.add(uid)
                    blocked.pop(uid, None)
            present = {
                str(pod["metadata"]["uid"]): pod for pod in self.nodes.api.pods_on(self.member.name)
            }
            waiting = {uid: present[uid] for uid in waiting if uid in present and uid not in failed}
            if not waiting:
                break
            if self.timeout_s and self.nodes.clock() - self.began > self.timeout_s:
                raise self._late(waiting, blocked)
            if self.nodes.clock() - reported_at > _REMIND_S:
                self.emit(f"still waiting: {self._remaining(waiting, blocked)}")
                reported_at = self.nodes.clock()
            self.nodes.sleep(_POLL_S)
        if failed:
            raise NotDrainedError(
                f"Node {self.member.name} cannot be drained: {'; '.join(list(failed.values())[:4])}"
            )

    def _evict(self, pod: Json) -> tuple[str, float, bool]:
        """Words of a refusal, seconds until the next try, and whether it is final."""
        try:
            self.nodes.api.evict(pod, self.policy.grace_period_s)
        except RefusedRequest as error:
            if error.status == 404 or error.status == 409:
                return "", 0.0, False  # gone, or another pod of that name
            if error.status == 429:
                return error.words, max(_RETRY_S, error.retry_after_s or 0.0), False
            if error.status == 403 and "NamespaceTerminating" in error.causes:
                return error.words, _RETRY_S, False
            return str(error), 0.0, True
        return "", 0.0, False

    def _remaining(self, waiting: dict[str, Json], blocked: dict[str, str]) -> str:
        """The pods that are still there, and why."""
        ready = eviction.is_ready(self.nodes.api.node(self.member.name))
        rows = [
            f"{eviction.name(pod)} ({blocked.get(uid) or eviction.remains(pod, ready=ready, timeout_s=self.timeout_s)})"
            for uid, pod in waiting.items()
        ]
        return listed(rows, 4, "; ", "pods")

    def _late(self, waiting: dict[str, Json], blocked: dict[str, str]) -> NotDrainedError:
        return NotDrainedError(
            f"Node {self.member.name} was not drained within {self.timeout_s:g} s: {self._remaining(waiting, blocked)}",
            fix="pass a longer --set drain.timeout_s, or change what keeps these pods",
        )
