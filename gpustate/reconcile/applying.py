"""Apply a plan of a cluster's objects, and verify the result by reading again.

Objects are applied in order, removed ones deleted in the opposite order. A namespace is deleted only if nothing of
others is in it, and a custom resource definition only if others have no objects of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType

from gpustate.cluster.pods import allocatable
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.differences import additions
from gpustate.manifests.kinds import BY_NAME, NODE, POD, Key, Kind, key, order, title
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN, MissingKind, StaleObject
from gpustate.plan.ranges import fold
from gpustate.reconcile import readiness
from gpustate.reconcile.features import FEATURES, is_by_worker, pruning
from gpustate.reconcile.planning import (
    PENDING,
    Action,
    Change,
    Objects,
    Target,
    disowned,
    is_ours,
    kept_for,
    kept_namespace,
    plan,
    prunes_after,
    withdrawn,
)
from gpustate.reconcile.plugin_restart import REPORT_S

_POLL_S = 1.0
_TRIES = 5
#: After so many polls what keeps pods from being ready is named; an image that cannot be pulled stays so.
_TELLING = 15
_PLUGIN = ("DaemonSet", DEVICE_PLUGIN)
_STARTS = (Action.CREATE, Action.UPDATE)
_WORKLOADS = ("Deployment", "DaemonSet")
_EVENTS = Kind("Event", "v1", "events", namespaced=True)
#: Three reports of a kubelet: the first after a device plugin came or went has its GPUs.
_REPORTED_S = 30.0


@dataclass(slots=True)
class Applied:
    """The result of an apply.

    Args:
        changes: what was done, what was refused, and what is as it should be.
        failures: what went wrong, or does not hold afterwards.
        refusals: why nothing was written.
        unready: workloads that were not rolled out in time, and why.
        notes: what else was found, or done.
    """

    changes: list[Change] = field(default_factory=list[Change])
    failures: list[str] = field(default_factory=list[str])
    refusals: list[str] = field(default_factory=list[str])
    unready: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Applier:
    """Applies a target to a cluster.

    Args:
        objects: of the cluster.
        target: what should be there.
        timeout_s: seconds within which workloads are rolled out, and removed objects are gone.
        emit: called with what is being done.
        stop: polled; once true, nothing more is written or waited for.
        sleep, clock: wait, and the time in seconds.
        again: what to do after a request that failed.
        nodes: pods of DaemonSets on other Nodes are not waited for; empty: those on all Nodes are.
        hold: keeps new pods off Nodes until kubelets have reported that what offers their GPUs is gone.
    """

    objects: Objects
    target: Target
    timeout_s: float
    emit: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    again: str = "run the same command again to continue"
    nodes: frozenset[str] = frozenset()
    hold: AbstractContextManager[None] = field(default_factory=nullcontext)

    def apply(self, changes: Sequence[Change]) -> Applied:
        """Carry out a plan. Nothing is written if one of its objects is refused."""
        applied = Applied()
        pending = sum(change.action in PENDING for change in changes)
        if count := sum(change.action is Action.REFUSED for change in changes):
            applied.changes = [change for change in changes if change.action not in PENDING]
            words = "1 object is refused" if count == 1 else f"{count} objects are refused"
            more = f"; {pending} more would have been written" if pending else ""
            applied.refusals.append(f"nothing is written: {words}{more}")
            return applied
        try:
            self._carry_out_all(changes, applied)
        except ClusterError as error:
            applied.failures.append(str(error))
            if pending:
                written = sum(change.action in PENDING for change in applied.changes)
                applied.notes.append(f"{written} of {pending} objects were written; {self.again}")
        return applied

    def _carry_out_all(self, changes: Sequence[Change], applied: Applied) -> None:
        """Write what changes, verify it, and wait for pods.

        Raises:
            ClusterError: a request failed, or the run is to stop.
        """
        last = prunes_after(self.target, changes)
        plugin = withdrawn(self.objects, self.target, changes).get(DEVICE_PLUGIN)
        losing = self._ready_on(plugin) - self.target.kept_nodes if plugin else frozenset[str]()
        starting = [change.item for change in changes if change.action in _STARTS]
        labelled = {item["metadata"]["name"] for item in starting if item["kind"] == NODE.name}
        restarted = any(key(item) == _PLUGIN for item in starting)
        plugins = [i for i in self.target.items if key(i) == _PLUGIN and (restarted or labelled)]
        before = self._offered() if plugins else {}
        with self.hold:
            for index, change in enumerate(changes):
                if self.stop():
                    raise ClusterError("interrupted")
                if index == last:
                    self._prune(applied)
                applied.changes.append(self._carry_out(change))
            if losing:
                self.wait_for_kubelets(losing, offer=False)
        if any(change.action in PENDING for change in applied.changes):
            self._verify(applied)
        if not self.target.absent:
            applied.unready = self._wait_for_pods()
        for item in plugins:
            ready = self._ready_on(item)
            self.wait_for_kubelets(
                ready if restarted else ready & labelled, offer=True, before=before
            )

    def _ready_on(self, item: Json) -> frozenset[str]:
        return readiness.ready_on(self.objects.list(POD, self.target.namespace), item)

    def _offered(self) -> dict[str, dict[str, int]]:
        """The GPUs that Nodes offer, by name."""
        return {node["metadata"]["name"]: allocatable(node) for node in self.objects.list(NODE, "")}

    def wait_for_kubelets(
        self,
        names: Collection[str],
        *,
        offer: bool,
        before: Mapping[str, dict[str, int]] = MappingProxyType({}),
    ) -> None:
        """Wait until these Nodes offer GPUs, or no longer do. Who runs next relies on what kubelets have reported.

        Not for long: a plugin may find no GPU to offer, and another one may offer them as well.

        Args:
            names: of the Nodes.
            offer: they offer GPUs in the end.
            before: what they offered before the plugin started; the same counts only after the next report.
        """
        began, announced = self.clock(), False
        end = began + min(_REPORTED_S, self.timeout_s)
        while self.clock() < end and not self.stop():
            offered = {name: gpus for name, gpus in self._offered().items() if name in names}
            fresh = self.clock() >= began + REPORT_S or not any(
                offer and gpus == before.get(name) for name, gpus in offered.items()
            )
            if fresh and all(bool(gpus) is offer for gpus in offered.values()):
                return
            if not announced:
                gpus_text = "the GPUs" if offer else "no GPUs"
                self.emit(f"waiting for kubelets to report {gpus_text} of {', '.join(fold(names))}")
                announced = True
            self.sleep(2 * _POLL_S)

    def _carry_out(self, change: Change) -> Change:
        if change.action not in PENDING:
            return change
        self.emit(f"{change.action} {title(change.item)}")
        if change.action is Action.DELETE or (
            change.action is Action.RELEASE and is_ours(change.item)
        ):
            return self._delete(change)
        self._apply(change.item)
        return change

    def _delete(self, change: Change) -> Change:
        """Delete an object; a namespace or a definition only if others still do not use it."""
        if change.item["kind"] == "Namespace":
            return self._delete_namespace(change)
        reason = kept_for(self.objects, self.target, change.item)
        if change.action is Action.DELETE and not reason:
            if change.item["metadata"]["name"] == DRA_PLUGIN:
                self._wait_for_claims()
            self.objects.delete(change.item)
            return change
        item = disowned(change.item)
        self.objects.apply(item, force=True)
        return Change(item, Action.RELEASE, reason=reason or change.reason)

    def _wait_for_claims(self) -> None:
        """Wait until no pod holds a claim of the DRA driver, without which it would not end.

        Raises:
            ClusterError: one still does after the timeout, or the run is to stop.
        """
        # It knows the components, which commands without a cluster need not read.
        from gpustate.reconcile.switching import claims_in_use

        end, announced = self.clock() + self.timeout_s, ""
        while users := claims_in_use(self.objects):
            if users != announced:
                self.emit(f"waiting for the release of {users}")
                announced = users
            if self.clock() > end or self.stop():
                words = f"the DRA driver stays, which alone can release {users}"
                raise ClusterError(words, fix="delete these pods")
            self.sleep(_POLL_S)

    def _delete_namespace(self, change: Change) -> Change:
        """Delete a namespace, unless others use it; then only gpustate's own objects in it."""
        name = change.item["metadata"]["name"]
        content, unread = self.objects.content(name)
        reason = kept_namespace(name, content, unread)
        if change.action is Action.DELETE and not reason:
            self.objects.delete(change.item)
            return change
        own_items = [item for item in content if is_ours(item) and item["kind"] in BY_NAME]
        for item in sorted(own_items, key=order, reverse=True):
            self.objects.delete(item)
        namespace: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.objects.apply(namespace)
        return Change(namespace, Action.RELEASE, reason=reason or change.reason)

    def _apply(self, item: Json) -> None:
        """Apply an object; the API server serves a kind a moment after its definition was created, and others write too."""
        end = self.clock() + self.timeout_s
        while True:
            try:
                live = self.objects.apply(item, force=self.target.force)
                if self.target.force and (added := additions(live)):
                    operations = [{"op": "remove", "path": addition.pointer} for addition in added]
                    self.objects.patch(live, operations)
                return
            except (MissingKind, StaleObject):
                if self.clock() > end or self.stop():
                    raise
            self.sleep(_POLL_S)

    def _prune(self, applied: Applied) -> None:
        """Remove from Nodes what node feature discovery has written; its master may not write any more."""
        if namespace := self._other_discovery():
            applied.notes.append(
                f"labels of node feature discovery stay on Nodes: another one runs in namespace {namespace}"
            )
            return
        for node in self.objects.list(NODE, ""):
            pruned = pruning(node)
            if pruned is None:
                continue
            self.emit(f"remove what node feature discovery has written on {title(node)}")
            if pruned.status:
                self.objects.merge(node, pruned.status, status=True)
            if pruned.taints:
                self._untaint(node, pruned.taints)
            self.objects.merge(node, pruned.metadata)
            count = len(pruned.metadata["metadata"]["labels"])
            applied.notes.append(f"{title(node)}: {count} labels of node feature discovery removed")

    def _other_discovery(self) -> str:
        """The namespace of another node feature discovery, which uses the same definitions; empty: there is none."""
        try:
            features = self.objects.list(FEATURES, "*")
        except MissingKind:
            return ""
        places = (feature["metadata"]["namespace"] for feature in features if is_by_worker(feature))
        return next((place for place in places if place != self.target.namespace), "")

    def _untaint(self, node: Json, taints: Collection[tuple[str, str]]) -> None:
        """Remove taints from a Node."""
        for _ in range(_TRIES):
            present = (node.get("spec") or {}).get("taints") or []
            remaining = [
                taint for taint in present if (taint["key"], taint["effect"]) not in taints
            ]
            if len(remaining) == len(present):
                return
            try:
                self.objects.patch(
                    node, [{"op": "replace", "path": "/spec/taints", "value": remaining}]
                )
                return
            except StaleObject:
                nodes = {key(node_item): node_item for node_item in self.objects.list(NODE, "")}
                node = nodes.get(key(node), {**node, "spec": {}})
        raise ClusterError(f"{title(node)}: others change it all the time", fix="run it again")

    def _verify(self, applied: Applied) -> None:
        """Read again: nothing may be left to change."""
        end = self.clock() + self.timeout_s
        while True:
            remaining = [
                change for change in plan(self.objects, self.target) if self._is_left(change)
            ]
            if not remaining:
                return
            if not self.target.absent or self.clock() > end or self.stop():
                break
            self.sleep(_POLL_S)
        applied.failures += [
            f"{title(change.item)}: still to {change.action}: "
            f"{', '.join(item.field for item in change.differences) or change.reason or 'it remains'}"
            for change in remaining
        ]

    def _is_left(self, change: Change) -> bool:
        if change.action in (Action.UNCHANGED, Action.FOREIGN, Action.SKIPPED):
            return False
        # A deleted object may take a while; waiting for it is only useful when all are to go.
        deleting = bool(change.item["metadata"].get("deletionTimestamp"))
        return not (deleting and not self.target.absent)

    def _workloads(self) -> dict[Key, Json]:
        """The workloads of the target as they are in the cluster."""
        names = [key(item) for item in self.target.items if item["kind"] in _WORKLOADS]
        kinds = [BY_NAME[kind] for kind in dict.fromkeys(kind for kind, _ in names)]
        live = {
            key(item): item
            for kind in kinds
            for item in self.objects.list(kind, self.target.namespace)
        }
        return {name: live[name] for name in names if name in live}

    def stuck(self) -> Iterator[str]:
        """Workloads that are not rolled out now, with what keeps their pods from starting; those that start do not count."""
        live = self._workloads()
        waiting = {name: words for name, item in live.items() if (words := readiness.waiting(item))}
        pods = self.objects.list(POD, self.target.namespace) if waiting else []
        failing = [pod for pod in pods if not readiness.is_starting(pod)]
        for name, words in waiting.items():
            if why := readiness.problems(failing, live[name]):
                yield "; ".join((words, *why[:4]))

    def _wait_for_pods(self) -> list[str]:
        """Wait for the workloads of the target; return those that are not rolled out, and why."""
        began = self.clock()
        end = began + self.timeout_s
        announced = ""
        polls = 0
        while True:
            polls += 1
            live = self._workloads()
            waiting = {
                name: words for name, item in live.items() if (words := readiness.waiting(item))
            }
            if waiting and self.nodes:
                pods = self.objects.list(POD, self.target.namespace)
                waiting = {
                    name: words
                    for name, words in waiting.items()
                    if not readiness.is_elsewhere(pods, live[name], self.nodes)
                }
            if not waiting:
                return []
            time_s = self.clock()
            if time_s > end or self.stop():
                break
            words = "; ".join(waiting.values())
            if words != announced:
                self.emit(f"waiting for {words}")
                announced = words
            if polls == _TELLING:
                pods = self.objects.list(POD, self.target.namespace)
                for line in (
                    text for name in waiting for text in readiness.problems(pods, live[name])
                ):
                    self.emit(line)
            self.sleep(_POLL_S)
        pods = self.objects.list(POD, self.target.namespace)
        try:
            events = self.objects.list(_EVENTS, self.target.namespace)
        except ClusterError:  # without the right
            events = []
        lines: list[str] = []
        waited = min(time_s - began, self.timeout_s)
        for name, words in waiting.items():
            why = readiness.problems(pods, live[name])
            if not why and (failure := readiness.creation_failure(events, live[name])):
                why = [failure]
            if any("ended with" in reason for reason in why):
                workload = "/".join(name).lower()
                log = f"kubectl logs -n {self.target.namespace} {workload} --all-containers --prefix --tail 20"
                why = [*why[:3], f"read its log: {log}"]
            lines.append("; ".join((f"{words} after {waited:.0f} s", *why[:4])))
        return lines
