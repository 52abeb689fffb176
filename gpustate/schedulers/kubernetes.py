"""Kubernetes as a scheduler: hold is a cordon, draining is eviction, and the record is an annotation of the Node.

The cordon and the record of who made it are one write, guarded by the Node's resourceVersion, so neither is there
without the other. What is shown in a plan comes from one list per kind and run; what is written is read anew.

Sources:
    kubernetes/kubectl, pkg/drain; kubernetes, registry/core/pod/storage/eviction.go (429 and Retry-After, 500 for two
    budgets, NamespaceTerminating).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from gpustate import clock
from gpustate.cluster import pods as cluster_pods
from gpustate.cluster.api import Api, RefusedRequest
from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, RefusedError
from gpustate.manifests.ownership import DEPLOY, FIELD_MANAGER
from gpustate.schedulers import eviction, foreign, node_events
from gpustate.schedulers.base import (
    HeldElsewhereError,
    Hold,
    Member,
    NotAllowedError,
    NotDrainedError,
    NotMemberError,
    NotRefreshedError,
    Say,
    Scope,
    Stop,
    Why,
    Workload,
    rules_of,
    taken_over,
)
from gpustate.schedulers.lease import NAMESPACE, Leased
from gpustate.schedulers.mig_labels import MigLabels
from gpustate.schedulers.mig_state import is_ours as mig_is_ours
from gpustate.schedulers.mig_state import manager_of
from gpustate.schedulers.nvidia_pods import FOR_DRIVER, NvidiaPods, write_node

Json = dict[str, Any]

#: The annotation of a Node that has the record of our hold, as JSON.
HOLD = "gpustate.io/hold"
_RETRY_S = 5.0
_POLL_S = 1.0
#: Between two looks at pods that are waited for, and between two reports of pods that do not leave.
_WAIT_S = 5.0
_REMIND_S = 300.0
#: How long what keeps pods from being evicted may be out of date: a budget's status follows its change.
_SETTLE_S = 10.0
#: What a change of nodes needs: verb, API group, resource.
_RIGHTS = (
    ("get", "", "nodes"),
    ("list", "", "nodes"),
    ("patch", "", "nodes"),
    ("list", "", "pods"),
    ("delete", "", "pods"),
    ("create", "", "pods/eviction"),
    ("list", "apps", "daemonsets"),
    ("list", "policy", "poddisruptionbudgets"),
    ("list", "resource.k8s.io", "resourceclaims"),
    ("get", "coordination.k8s.io", "leases"),
    ("create", "coordination.k8s.io", "leases"),
    ("update", "coordination.k8s.io", "leases"),
    ("list", "maintenance.nvidia.com", "nodemaintenances"),
)
#: What it needs to show which nodes are out of service, and why.
_READING = (
    ("list", "", "nodes"),
    ("get", "coordination.k8s.io", "leases"),
    ("list", "maintenance.nvidia.com", "nodemaintenances"),
)
_CONFLICTS = 5
_FAILED_S = 30.0
#: Clocks that differ by more are wrong.
_SKEW_S = 60.0
_REFRESH_S = 180.0


@dataclass(slots=True)
class _Lists:
    """What one run has listed."""

    nodes: list[Json]
    index: cluster_pods.NodeIndex
    maintenances: list[Json]


class Kubernetes(Leased):
    """One cluster.

    Args:
        api: access to it.
        read_only: nothing is changed, so fewer rights are needed.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        api: Api,
        *,
        read_only: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._read_only = read_only
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._reviewing = threading.Lock()
        super().__init__(api, sleep, clock)
        self._events = node_events.NodeEvents(api)
        self.mig = MigLabels(api, sleep, clock)
        self._nvidia_pods = NvidiaPods(api, FOR_DRIVER, sleep, clock)
        self._lists: _Lists | None = None
        self._written: dict[str, Json] = {}
        #: Of Nodes whose kubelets report that of their machine: as it was when the run began.
        self._boot_ids: dict[str, str] = {}
        self._failed = (float("-inf"), ClusterError(""))
        self._missing: list[str] | None = None
        self._user = ""
        self._cluster: eviction.Cluster | None = None
        self._pods: dict[str, list[Json]] | None = None
        self._daemon_sets: list[Json] | None = None

    @property
    def title(self) -> str:
        """As messages name it."""
        return f"Kubernetes at {self._api.server}"

    @property
    def out_word(self) -> str:
        """A Node that takes no new pods."""
        return "cordoned"

    # --- members -----------------------------------------------------------------------

    def _listed(self) -> _Lists:
        with self._lock:
            if self._lists is None:
                if self._clock() < self._failed[0]:
                    raise self._failed[1]
                try:
                    nodes = self._api.nodes()
                    maintenances = self._api.maintenances()
                except RefusedRequest as error:
                    if error.status == 403:
                        self._check_rights()
                    raise self._denied(error) from None
                except ClusterError as error:
                    # The other nodes of the run do not wait for it one after the other.
                    self._failed = (self._clock() + _FAILED_S, error)
                    raise
                self._lists = _Lists(nodes, cluster_pods.NodeIndex(nodes), maintenances)
            return self._lists

    @cached_property
    def _has_operator(self) -> bool:
        """A GPU Operator may be at work: the cluster has a ClusterPolicy, or does not say."""
        try:
            return bool(self._api.get("apis/nvidia.com/v1/clusterpolicies")["items"])
        except ClusterError as error:
            return not isinstance(error, RefusedRequest) or error.status != 404

    @property
    def listed(self) -> list[Json]:
        """All Nodes, if they were listed already; else empty."""
        with self._lock:
            return [] if self._lists is None else self._lists.nodes

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every Node."""
        nodes = self._api.nodes() if fresh else self._listed().nodes
        return [self._member(node) for node in nodes]

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The Node that is this machine.

        Raises:
            NotMemberError: there is none.
            RefusedError: more than one may be it.
        """
        machine = cluster_pods.Machine(facts.boot_id, facts.machine_id, facts.system_uuid)
        try:
            node = self._listed().index.match(machine, any_boot=True)
        except cluster_pods.Verdict as verdict:
            unregistered = isinstance(verdict, cluster_pods.Unregistered)
            raise (NotMemberError if unregistered else RefusedError)(
                f"{name}: {self.title}: {verdict.check.evidence}", fix=verdict.check.remedy
            ) from None
        name = node["metadata"]["name"]
        if facts.boot_id == _boot_id(node):
            self._boot_ids.setdefault(name, facts.boot_id)
        return self._member(self._written.get(name, node))

    def _member(self, node: Json) -> Member:
        hold = read_hold(node)
        name = node["metadata"]["name"]
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        others = foreign.holders(
            node,
            held=hold is not None,
            own_manager=FIELD_MANAGER,
            maintenances=self._listed().maintenances,
            operator=lambda: self._has_operator,
        )
        return Member(
            name,
            ready=eviction.is_ready(node),
            schedulable=not cordoned,
            hold=hold,
            foreign=others,
            foreign_since=foreign.cordon(node)[0] if others and cordoned else "",
            not_ready_since=eviction.not_ready_since(node),
            undo=f"kubectl uncordon {name}" if others and cordoned else "",
            gpus=sum(cluster_pods.allocatable(node).values()),
            counts=cluster_pods.has_gpus(node),
        )

    def labels(self, key: str) -> dict[str, str]:
        """A label's value, by every name and address of the Nodes that have it."""
        found: dict[str, str] = {}
        for node in self._listed().nodes:
            value = (node["metadata"].get("labels") or {}).get(key)
            if value:
                found.update(dict.fromkeys(cluster_pods.names_of(node), str(value)))
        return found

    def held(self) -> frozenset[str]:
        """Names and addresses of the Nodes that runs of gpustate hold."""
        found = ((node, read_hold(node)) for node in self._listed().nodes)
        return frozenset(
            name
            for node, hold in found
            if hold is not None and hold.phase != "left"
            for name in cluster_pods.names_of(node)
        )

    def by_name(self) -> dict[str, Json]:
        """All Nodes, by every name and address that they have.

        Raises:
            ClusterError: they cannot be listed.
        """
        found: dict[str, Json] = {}
        for node in self._listed().nodes:
            for name in cluster_pods.names_of(node):
                found.setdefault(name, node)
        return found

    def mig_manager_on(self, node: Json) -> str:
        """The DaemonSet of NVIDIA's MIG manager that has a pod on a Node; empty: there is none.

        Raises:
            ClusterError: the DaemonSets cannot be listed.
        """
        return manager_of(node, self._listed_daemon_sets())

    def _listed_daemon_sets(self) -> list[Json]:
        """The DaemonSets of the cluster, listed once in a run."""
        with self._lock:
            if self._daemon_sets is None:
                self._daemon_sets = self._api.daemon_sets()
            return self._daemon_sets

    # --- workloads ---------------------------------------------------------------------

    def _of_cluster(self, *, fresh: bool = False) -> eviction.Cluster:
        with self._lock:
            if self._cluster is None or fresh:
                self._cluster = eviction.Cluster.of(
                    self._api.daemon_sets(), self._api.claims(), self._api.budgets()
                )
            return self._cluster

    def _all_pods(self) -> dict[str, list[Json]]:
        with self._lock:
            if self._pods is None:
                found: dict[str, list[Json]] = {}
                for pod in self._api.pods():
                    node = (pod.get("spec") or {}).get("nodeName")
                    if node:
                        found.setdefault(node, []).append(pod)
                self._pods = found
            return self._pods

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """The pods that would have to leave."""
        cluster = self._of_cluster()
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

    # --- hold and release --------------------------------------------------------------

    def enter(self, why: Why, say: Say, stop: Stop) -> None:
        """Check the rights and the clock, and take the cluster's Lease."""
        self._check_rights()
        self._check_clock()
        self._lease.hold(why, say, stop)
        self._events.begin(why, say, to_be_granted([rule(*node_events.RIGHT)]))

    def hold(self, member: Member, why: Why) -> Member:
        """Cordon it."""
        self._listed().maintenances = self._api.maintenances()

        def change(node: Json, current: Member) -> Json:
            if current.foreign:
                raise HeldElsewhereError(
                    f"{self.title}: Node {member.name} is out of service: {'; '.join(current.foreign)}",
                    fix="run again when that is over; --ignore-scheduler changes it all the same",
                )
            before = current.hold
            record = Hold(
                why.run,
                why.person,
                why.text,
                "held",
                clock.now(),
                before.schedulable_before if before else current.schedulable,
                before.gpus_before if before else current.gpus,
                before.ready_before if before else current.ready,
            )
            return _hold_patch(record, cordoned=True)

        held = self._write(member.name, change)
        self._report(member, node_events.HELD, "cordoned")
        return held

    def _check_rights(self) -> None:
        """Refuse before anything is written, with every rule that is missing."""
        with self._reviewing:
            if self._missing is None:
                rights = _READING if self._read_only else _RIGHTS
                try:
                    self._missing = missing_rules(self._api, rights)
                except RefusedRequest as error:
                    raise self._denied(error) from None
                self._user = self._api.user() if self._missing else ""
        if self._missing:
            what = "list nodes out of service" if self._read_only else "take nodes out of service"
            raise self._denied(lacking(self.title, what, self._user, self._missing))

    def _denied(self, error: ClusterError) -> ClusterError:
        """The error of a request that the user may not make; before a change, nothing is written yet."""
        if self._read_only or (
            isinstance(error, RefusedRequest) and error.status not in (401, 403)
        ):
            return error
        return NotAllowedError(error.message, place=error.place, fix=error.fix)

    def _check_clock(self) -> None:
        """Refuse to write times of a clock that is off; a Lease and the records on Nodes are read elsewhere."""
        skew_s = self._api.skew_s
        if abs(skew_s) > _SKEW_S:
            raise ClusterError(
                f"{self.title}: this machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the API server's",
                fix="synchronize both clocks, then run again",
            )

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase."""

        def change(node: Json, current: Member) -> Json | None:
            hold = current.hold
            if hold is None or (hold.phase == phase and why in ("", hold.text)):
                return None
            if other := taken_over(member, hold):
                raise HeldElsewhereError(f"{self.title}: Node {member.name}: {other}")
            text = why or hold.text
            return _hold_patch(replace(hold, phase=phase, since=clock.now(), text=text))

        noted = self._write(member.name, change)
        if phase == "failed":
            words = "the change failed, the Node stays cordoned"
            self._report(member, node_events.FAILED, f"{words}: {why}" if why else words)
        return noted

    def _report(self, member: Member, reason: str, text: str) -> None:
        """Record an Event on a Node."""
        for node in self._listed().nodes:
            if node["metadata"]["name"] == member.name:
                self._events.record(node, reason, text)

    def refresh(self, member: Member, facts: NodeFacts, say: Say, stop: Stop) -> None:
        """Delete the pods of NVIDIA's DaemonSets on it, which are created again, and wait for Ready and GPUs."""
        self._report(member, node_events.CHANGED, "changed and validated")
        self._resume(member)
        old = {
            str(pod["metadata"]["uid"]): pod
            for pod in self._api.pods_on(member.name)
            if eviction.is_operand(pod)
        }
        if old:
            say(f"restarting {_some(map(eviction.name, old.values()))}")
        withdrawn = self._withdraw(member.name, say)
        for pod in old.values():
            self._api.delete(pod)
        deadline = self._clock() + _REFRESH_S
        while True:
            waits = self._refreshing(member, facts, set(old))
            if not waits and withdrawn and not any(map(_devices, self._api.slices(member.name))):
                waits = "its DRA driver has not published its GPUs again"
            if not waits:
                return
            if self._clock() > deadline:
                raise NotRefreshedError(
                    f"{self.title}: Node {member.name} is not ready for GPU pods {_REFRESH_S:g} s after the change: {waits}",
                    fix="on it: journalctl -u kubelet, and the log of NVIDIA's device plugin; then gpustate apply again",
                )
            _check(stop)
            self._sleep(_POLL_S)

    def _refreshing(self, member: Member, facts: NodeFacts, old: set[str]) -> str:
        """What is not there yet; empty: all is."""
        node, before = self._api.node(member.name), member.hold
        boot_id = self._boot_ids.get(member.name, facts.boot_id)
        if facts.boot_id and facts.boot_id != boot_id == _boot_id(node):
            return "its kubelet has not reported since the boot"
        if (before is None or before.ready_before) and not eviction.is_ready(node):
            return "the Node is not Ready"
        pods = [one for one in self._api.pods_on(member.name) if eviction.is_operand(one)]
        for pod in pods:
            if str(pod["metadata"]["uid"]) in old:
                return f"{eviction.name(pod)} is terminating"
            if not eviction.is_ready(pod):
                return f"{eviction.name(pod)} is not ready"
        if old and not pods:
            return self._paused(member.name)
        offered = member.gpus or (member.hold.gpus_before if member.hold else 0)
        if offered and not cluster_pods.allocatable(node):
            return "allocatable has none"
        return ""

    def _withdraw(self, name: str, say: Say) -> bool:
        """Offer no GPU of a Node by claims until NVIDIA's DRA driver publishes them again; whether it did.

        What an earlier process of it has published is what the GPUs were, and nothing tells whether a later one has
        agreed. A slice without devices is filled at the start of the driver, or half a minute later; one that is
        deleted is not always.
        """
        if not any(map(eviction.is_dra_driver, self._listed_daemon_sets())):
            return False
        try:
            published = [one["metadata"]["name"] for one in self._api.slices(name) if _devices(one)]
            for slice_name in published:
                self._api.empty_slice(slice_name)
        except RefusedRequest as error:
            if error.status != 403:
                raise
            say(f"the ResourceSlices of Node {name} may be out of date: {error}")
            return False
        return bool(published)

    def _paused(self, name: str) -> str:
        """Why NVIDIA's DaemonSets do not create their pods again."""
        labels = self._api.node(name)["metadata"].get("labels") or {}
        paused = [
            key
            for key, value in sorted(labels.items())
            if key.startswith(DEPLOY) and str(value).startswith("paused")
        ]
        if not paused:
            return "its DaemonSets have not created their pods again"
        words = " ".join(f"{key}=true" for key in paused)
        return (
            f"another tool left labels that keep NVIDIA's pods away: kubectl label node {name} "
            f"--overwrite {words}"
        )

    def _resume(self, member: Member) -> None:
        """Let NVIDIA's programs that have GPUs open run again, where a hold of ours has paused them."""

        def ours(node: Json) -> bool:
            hold = read_hold(node)
            return hold is not None and not taken_over(member, hold)

        self._nvidia_pods.resume(member.name, ours)

    def release(self, member: Member) -> str:
        """Uncordon it and let NVIDIA's programs run again, where the cordon is ours and nobody else has a claim on it."""
        reason, result = "", ""

        def change(node: Json, current: Member) -> Json | None:
            nonlocal reason, result
            reason, result = "", ""
            if current.hold is None:
                return None
            if reason := taken_over(member, current.hold):
                return None
            labels = self._nvidia_pods.resumed(node)
            if current.foreign:
                reason = "; ".join(current.foreign)
                if current.hold.phase == "left":
                    return None
                result = f"left cordoned: {reason}"
                return _hold_patch(replace(current.hold, phase="left", text=result), labels=labels)
            stays = not current.hold.schedulable_before
            result = "released, it stays cordoned as it was before" if stays else "uncordoned"
            return _hold_patch(None, cordoned=None if stays else False, labels=labels)

        self._write(member.name, change)
        if result:
            self._report(member, node_events.RELEASED, result)
        return reason

    def _write(self, name: str, change: Callable[[Json, Member], Json | None]) -> Member:
        for _ in range(_CONFLICTS):
            node = self._written[name] = self._api.node(name)
            current = self._member(node)
            patch = change(node, current)
            if patch is None:
                return current
            try:
                node = self._written[name] = write_node(self._api, node, patch)
                return self._member(node)
            except RefusedRequest as error:
                if error.status != 409:
                    raise
        raise ClusterError(f"{self.title}: Node {name} is changed all the time; run again")

    # --- drain -------------------------------------------------------------------------

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, say: Say, stop: Stop
    ) -> None:
        """Wait for pods that are to complete, evict those that have to leave, and wait until they have."""
        self._wait_for(member, policy, say, stop)
        cluster = self._of_cluster(fresh=True)

        def evict(scope: Scope, *, after_gpu_pods: bool = False) -> None:
            going = _Eviction(
                self._api,
                member.name,
                rules_of(policy, scope).timeout_s,
                policy.grace_period_s,
                say,
                stop,
                self._sleep,
                self._clock,
            )
            # A pod that was bound before the cordon may show only now.
            while pods := self._leaving(
                member, scope, policy, cluster, stop, after_gpu_pods=after_gpu_pods
            ):
                going.run(pods, [pod for pod in pods if eviction.is_lost(pod, cluster)])

        try:
            evict(scope)
        except NotDrainedError as error:
            if scope is Scope.ALL or not policy.node_after_gpu_pods or stop():
                raise
            say(f"{error}; draining the whole node")
            evict(Scope.ALL, after_gpu_pods=True)
        if scope is Scope.GPU:  # a reboot ends them all
            self._pause_nvidia_pods(member, say, stop)
        which = "pods that use a GPU" if scope is Scope.GPU else "pods"
        self._report(member, node_events.DRAINED, f"{which} have left")

    def _pause_nvidia_pods(self, member: Member, say: Say, stop: Stop) -> None:
        """Keep NVIDIA's programs that have GPUs open away; for a MIG label, its protocol does so."""
        if mig_is_ours(self._api.node(member.name)):
            return
        self._nvidia_pods.pause(member.name, say, stop)

    def _leaving(
        self,
        member: Member,
        scope: Scope,
        policy: DrainPolicy,
        cluster: eviction.Cluster,
        stop: Stop,
        *,
        after_gpu_pods: bool,
    ) -> list[Json]:
        """The pods that have to leave, as they are now.

        Raises:
            NotDrainedError: one of them cannot, so none is evicted.
        """
        until = self._clock() + _SETTLE_S
        while True:
            pods = self._api.pods_on(member.name)
            selection = eviction.select(
                *(pods, scope, policy, cluster),
                after_gpu_pods=after_gpu_pods,
                spared=member.spared,
            )
            dead_ends = [(pod, eviction.dead_end(pod, cluster)) for pod in selection.leave]
            stuck = [*selection.refused, *(one for one in dead_ends if one[1])]
            if not stuck:
                return selection.leave
            if selection.refused or self._clock() >= until:
                break
            _check(stop)
            self._sleep(_RETRY_S)
            cluster = self._of_cluster(fresh=True)
        words = "; ".join(f"{eviction.name(pod)}: {why}" for pod, why in stuck[:4])
        more = len(stuck) - 4
        raise NotDrainedError(
            f"{self.title}: Node {member.name} cannot be drained: {words}"
            + (f"; and {more} more pods" if more > 0 else "")
        )

    def _wait_for(self, member: Member, policy: DrainPolicy, say: Say, stop: Stop) -> None:
        """Wait for pods that are to complete by themselves, or until their time is over."""
        if not policy.wait_selector:
            return
        began = self._clock()
        reported: set[str] = set()
        while True:
            pods = self._api.pods_on(member.name)
            left = {eviction.name(pod) for pod in pods if eviction.is_waited_for(pod, policy)}
            if not left:
                return
            if policy.wait_timeout_s and self._clock() - began > policy.wait_timeout_s:
                say(f"{_some(left)} did not complete within {policy.wait_timeout_s:g} s")
                return
            if left - reported:
                say(f"waiting for {_some(left)} to complete")
                reported |= left
            _check(stop)
            self._sleep(_WAIT_S)


@dataclass(slots=True)
class _Eviction:
    """The pods of one Node on their way out."""

    api: Api
    node: str
    timeout_s: float
    grace_period_s: int | None
    say: Say
    stop: Stop
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def run(self, pods: Sequence[Json], lost: Sequence[Json]) -> None:
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
        reported_at = self.clock()
        if evicted_pods := [pod for pod in pods if pod not in lost]:
            self.say(f"evicting {_some(map(eviction.name, evicted_pods))}")
        if lost:
            self.say(
                f"deleting {_some(map(eviction.name, lost))} for good: no controller creates it again"
            )
        while waiting:
            _check(self.stop)
            for uid, pod in waiting.items():
                if uid in evicted or self.clock() < next_try.get(uid, 0.0):
                    continue
                words, retry_s, final = self._evict(pod)
                if final:
                    failed[uid] = f"{eviction.name(pod)}: {words}"
                elif words:
                    if blocked.get(uid) != words:
                        self.say(f"{eviction.name(pod)}: {words}")
                    blocked[uid] = words
                    next_try[uid] = self.clock() + retry_s
                else:
                    evicted.add(uid)
                    blocked.pop(uid, None)
            there = {str(pod["metadata"]["uid"]): pod for pod in self.api.pods_on(self.node)}
            waiting = {uid: there[uid] for uid in waiting if uid in there and uid not in failed}
            if not waiting:
                break
            if self.timeout_s and self.clock() - self.began > self.timeout_s:
                raise self._late(waiting, blocked)
            if self.clock() - reported_at > _REMIND_S:
                self.say(f"still waiting: {self._remaining(waiting, blocked)}")
                reported_at = self.clock()
            self.sleep(_POLL_S)
        if failed:
            raise NotDrainedError(
                f"Node {self.node} cannot be drained: {'; '.join(list(failed.values())[:4])}"
            )

    def _evict(self, pod: Json) -> tuple[str, float, bool]:
        """Words of a refusal, seconds until the next try, and whether it is final."""
        try:
            self.api.evict(pod, self.grace_period_s)
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
        ready = eviction.is_ready(self.api.node(self.node))
        rows = [
            f"{eviction.name(pod)} ({blocked.get(uid) or eviction.remains(pod, ready=ready, timeout_s=self.timeout_s)})"
            for uid, pod in list(waiting.items())[:4]
        ]
        more = f"; and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return f"{'; '.join(rows)}{more}"

    def _late(self, waiting: dict[str, Json], blocked: dict[str, str]) -> NotDrainedError:
        return NotDrainedError(
            f"Node {self.node} was not drained within {self.timeout_s:g} s: {self._remaining(waiting, blocked)}",
            fix="pass a longer --drain-timeout, or change what keeps these pods",
        )


def _boot_id(node: Json) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "").lower()


def read_hold(node: Json) -> Hold | None:
    """The record of our hold on a Node; one that cannot be read is a hold of an unknown run."""
    text = (node["metadata"].get("annotations") or {}).get(HOLD)
    if not text:
        return None
    try:
        data = json.loads(text)
        return Hold(**{key: data[key] for key in Hold.__slots__ if key in data})
    except (ValueError, KeyError, TypeError):
        return Hold("", "", "an unreadable record", "held", "")


def _hold_patch(
    hold: Hold | None,
    *,
    cordoned: bool | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """A merge patch of a hold.

    Args:
        hold: its record; ``None`` removes it.
        cordoned: the Node is cordoned, or uncordoned, with the same write; ``None``: it stays as it is.
        labels: written as well.
    """
    record = None if hold is None else json.dumps(asdict(hold), sort_keys=True)
    patch: Json = {"metadata": {"annotations": {HOLD: record}}}
    if labels:
        patch["metadata"]["labels"] = dict(labels)
    if cordoned is not None:
        patch["spec"] = {"unschedulable": cordoned or None}
    return patch


def _some(names: Iterable[str], limit: int = 4) -> str:
    found = sorted(names)
    more = f" and {len(found) - limit} more pods" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more


def _check(stop: Stop) -> None:
    if stop():
        raise NotDrainedError("interrupted while it was drained")


def _devices(resource_slice: Json) -> list[Json]:
    found: list[Json] = resource_slice["spec"].get("devices") or []
    return found


def lacking(cluster: str, what: str, user: str, missing: Iterable[str]) -> ClusterError:
    """The error that a cluster's user lacks rights to do something, with the rules to add."""
    whose = f"user {user}" if user else "its user"
    return ClusterError(
        f"{cluster}: {whose} lacks rights to {what}", fix=to_be_granted(missing, whose)
    )


def to_be_granted(rules: Iterable[str], whose: str = "its user") -> str:
    """The next move where rules of RBAC are missing."""
    return f"add to a ClusterRole of {whose}: {'; '.join(rules)}"


def missing_rules(api: Api, rights: Iterable[tuple[str, str, str]]) -> list[str]:
    """Rules for rights that a user does not have: verb, API group, resource with its subresource.

    Leases are in one namespace only.
    """
    missing: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource in rights:
        name, _, sub = resource.partition("/")
        namespace = NAMESPACE if name == "leases" else ""
        if not api.may(verb, group, name, sub, namespace):
            missing.setdefault((group, resource), []).append(verb)
    return [_rule(group, resource, verbs) for (group, resource), verbs in missing.items()]


def rule(verb: str, group: str, resource: str) -> str:
    """A rule of RBAC, as YAML has it on one line."""
    return _rule(group, resource, [verb])


def _rule(group: str, resource: str, verbs: Sequence[str]) -> str:
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: {json.dumps(verbs)}}}'
