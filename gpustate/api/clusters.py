"""The objects of the nodes' clusters: planned, applied after their nodes, and removed after them."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gpustate.api.cluster_settings import object_settings
from gpustate.cluster.api import connected
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.cluster.objects import Objects, opened
from gpustate.cluster.pods import allocatable, names_of
from gpustate.core.change import Disruption
from gpustate.core.drain import DrainPolicy
from gpustate.core.inventory import Inventory
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Policy
from gpustate.documents import Json
from gpustate.engine import fleet
from gpustate.errors import ClusterError, LockHeld, RefusedError, UsageError
from gpustate.formats.words import cut
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import NODE, Key, key, title
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN
from gpustate.manifests.settings import ClusterSettings, System
from gpustate.plan.document import with_clusters
from gpustate.plan.ranges import fold
from gpustate.reconcile import cluster_notes, node_reports, placement
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data
from gpustate.reconcile.nodes import Member, check_cluster, labels_of, members, systems_of
from gpustate.reconcile.placement import Absence
from gpustate.reconcile.planning import (
    PENDING,
    Action,
    Change,
    Target,
    for_new_pods,
    plan,
    staged,
    withdrawn,
)
from gpustate.reconcile.saved import stale
from gpustate.rollout.maintenance import WITHDRAWS
from gpustate.rollout.options import SCHEDULERS, Schedulers
from gpustate.rollout.running import running_at
from gpustate.rollout.status import Status
from gpustate.rollout.withdrawal import Withdrawal
from gpustate.schedulers.base import Emit, discard, never
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate.schedulers.kubernetes.members import read_hold

#: Seconds for the pods of DaemonSets to become available.
ROLLOUT_S = 300
#: Of nodes that a run does not change.
_LEFT_ALONE = (NodeStatus.REFUSED, NodeStatus.LOCKED)


@dataclass(frozen=True)
class Clusters:
    """The clusters of an inventory, and what should be in them.

    Args:
        policy: with settings of objects, images included.
        kubeconfigs: by node, its cluster's.
        absent: remove all objects.
        force: take over fields of other managers.
        schedulers: how Nodes are drained before the DRA driver is removed.
        rollout_timeout_s: for the pods of DaemonSets to become available.
        rollback_on_failure: the run takes nodes that fail back.
        emit: hears a line for each step.
        command: of a run, for next steps; empty: this machine has no record of it.
        saved: the plan that is applied; ``None``: the policy is.
        resumed: the plan was applied in part.
        run: id of the run that applies them.
        systems: of Nodes with GPUs, where the policy does not name them; filled while planning.
    """

    policy: Policy
    kubeconfigs: Mapping[str, Kubeconfig]
    absent: bool = False
    force: bool = False
    schedulers: Schedulers = SCHEDULERS
    rollout_timeout_s: float = ROLLOUT_S
    rollback_on_failure: bool = False
    emit: Emit = discard
    command: Callable[[str], str] = lambda run: ""
    saved: Mapping[str, Any] | None = None
    resumed: bool = False
    run: str = field(default_factory=fleet.new_run_id)
    systems: list[System] = field(default_factory=list["System"])
    _staged: dict[tuple[str, Key], Change] = field(default_factory=dict["tuple[str, Key]", Change])
    _withdrawn: set[str] = field(default_factory=set["str"])
    _begun: set[Kubeconfig] = field(default_factory=set["Kubeconfig"])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def settings(self) -> ClusterSettings:
        """The settings of the objects."""
        return settings_of(self.policy)

    @property
    def namespace(self) -> str:
        """The namespace of the objects."""
        return self.settings.namespace

    def document(
        self,
        document: Mapping[str, Any],
        nodes: Sequence[NodeResult],
        listed: Mapping[Kubeconfig, list[Json]] | None = None,
        *,
        drift: bool = False,
    ) -> dict[str, Any]:
        """The plan of nodes together with that of their clusters.

        Args:
            document: the plan of nodes.
            nodes: as they were planned.
            listed: Nodes of clusters that were listed for it.
            drift: clusters are compared whatever becomes of their nodes.
        """
        planned = self.plan(nodes, listed, drift=drift)
        settings = self.settings
        if settings.needs_systems and self.systems:
            settings = replace(settings, systems=tuple(self.systems))
        return with_clusters(document, settings, planned, absent=self.absent, force=self.force)

    def check(self) -> None:
        """Refuse a saved plan if a cluster has changed since it was made; nothing is changed.

        Raises:
            RefusedError: another change would be made of an object, or the cluster is another one.
            ClusterError: a request failed.
        """
        if self.saved is None:
            return
        for kubeconfig in self.distinct():
            with opened(kubeconfig) as objects:
                saved = self._saved_of(objects.server, kubeconfig)
                changes = plan(objects, *self._target(objects, kubeconfig, ()))
                current = cluster_data(objects.server, self.namespace, changes)
                reasons = stale(saved, current, lenient=self.resumed, nodes=self.absent)
            if reasons:
                title, words = next(iter(reasons.items()))
                more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
                raise RefusedError(
                    f"the cluster has changed since the plan was made: {title} ({words}){more}",
                    place=objects.server,
                    fix=self._again(),
                )

    def _saved_of(self, server: str, kubeconfig: Kubeconfig) -> Mapping[str, Any]:
        """The cluster in the saved plan.

        Raises:
            RefusedError: the plan has no objects of it.
        """
        rows = (self.saved or {})["clusters"]
        cluster_row = next((row for row in rows if row["server"] == server), None)
        if cluster_row is None:
            servers = ", ".join(row["server"] for row in rows)
            raise RefusedError(
                f"the plan is for the cluster {servers}, and {kubeconfig} is of {server}",
                fix="use the inventory and kubeconfig that the plan was made with",
            )
        if troubles := [*cluster_row.get("failures", ()), *cluster_row.get("refusals", ())]:
            raise RefusedError(
                f"the plan has no objects of this cluster: {troubles[0]}",
                place=server,
                fix=self._again(),
            )
        cluster: Mapping[str, Any] = cluster_row
        return cluster

    def _again(self) -> str:
        """The command for a new plan."""
        words = ((self.saved or {}).get("context") or {}).get("retry") or ("gpustate plan POLICY",)
        return f"make a new plan: {shlex.join(words)} --out FILE"

    def _as_saved(
        self, objects: Objects, kubeconfig: Kubeconfig, changes: list[Change]
    ) -> list[Change]:
        """The changes, refused where the saved plan has another one."""
        if self.saved is None:
            return changes
        saved = self._saved_of(objects.server, kubeconfig)
        current = cluster_data(objects.server, self.namespace, changes)
        reasons = stale(saved, current, lenient=True)
        return [
            change
            if title(change.item) not in reasons
            else replace(
                change,
                action=Action.REFUSED,
                reason=f"it has changed since the plan was made: {reasons[title(change.item)]}",
            )
            for change in changes
        ]

    def plan(
        self,
        nodes: Sequence[NodeResult],
        listed: Mapping[Kubeconfig, list[Json]] | None = None,
        *,
        drift: bool = False,
    ) -> list[dict[str, Any]]:
        """Compare every cluster; nothing is changed. Arguments as of :meth:`document`."""
        rows: list[dict[str, Any]] = []
        for kubeconfig in self.distinct():
            with opened(kubeconfig) as objects:
                results = self._nodes_of(kubeconfig, nodes)
                bad = (node.would_refuse or node.status is not NodeStatus.OK for node in results)
                idle = bool(results) and not drift and not self.absent and all(bad)
                report = Applied()
                try:
                    listing = (listed or {}).get(kubeconfig)
                    target, listing = self._target(objects, kubeconfig, nodes, listing)
                    report.changes = [] if idle else plan(objects, target, listing)
                    self._check_rollback(report.changes)
                    names = withdrawn(objects, target, report.changes)
                    claims = target.drained and DRA_PLUGIN in names
                    with self._withdrawal(kubeconfig, target, names, needed=claims) as withdrawal:
                        for words, stuck in withdrawal.preview() if withdrawal else ():
                            (report.refusals if stuck else report.notes).append(words)
                    absent = placement.absences(report.changes, listing or (), target.labels)
                    (report.unready if drift else report.notes).extend(placement.lines(absent))
                    with suppress(ClusterError):  # without the right to list pods
                        report.unready += Applier(objects, target, 0).stuck() if drift else ()
                    for words, abandoned in (
                        self._held(kubeconfig, listing or (), results) if drift else ()
                    ):
                        (report.unready if abandoned else report.notes).append(words)
                    report.notes += [
                        "no object changes: no node of the cluster can be changed"
                    ] * idle
                    report.notes += _kept_notes(target)
                    if self.absent and names:
                        report.notes += self._last_notes(members(listing or (), results), target)
                except ClusterError as error:
                    report.failures.append(str(error))
                except RefusedError as error:
                    report.refusals.append(str(error))
                report.notes += [
                    *cluster_notes.notes(objects, report.changes, absent=self.absent),
                    *cluster_notes.deletion_notes(report.changes, absent=self.absent),
                ]
                rows.append(cluster_data(objects.server, self.namespace, report.changes, report))
        return rows

    def _held(
        self, kubeconfig: Kubeconfig, listed: Iterable[Json], nodes: Sequence[NodeResult]
    ) -> Iterator[tuple[str, bool]]:
        """Nodes that runs hold out of service, with the next step, and whether no run at work returns them to service."""
        names = {member.name for member in members([*listed], nodes) if read_hold(member.node)}
        if not names:
            return
        with connected(kubeconfig) as api:
            cluster, live = Kubernetes(api, read_only=True, died=fleet.died), ""
            with suppress(ClusterError):  # without the right to read the Lease
                holder = running_at(cluster)
                live = holder.run if holder is not None and not holder.silent else ""
            for member in cluster.members():
                hold = member.hold
                if hold is None or member.name not in names:
                    continue
                running = hold.run == live
                status = Status(cluster.title, member, running, self.command(hold.run))
                since = f"node/{member.name}: run {hold.run} holds it out of service since {hold.since} ({hold.phase})"
                abandoned = not running and hold.phase != "left"
                yield "; ".join(filter(None, (since, status.next))), abandoned

    @property
    def withdraws(self) -> bool:
        """A removal holds every node that changes, for what offers its GPUs goes in its turn.

        Where the DRA driver runs, only nodes that are drained: pods with its claims have to leave before it does.
        """
        return self.absent and not self.settings.dra_driver.enabled

    def _last_notes(self, cluster_members: Iterable[Member], target: Target) -> Iterator[str]:
        """Nodes that lose their GPUs together at the end of a removal."""
        least = Disruption.NONE if self.withdraws else Disruption.DRAIN
        last = [
            member.name
            for member in cluster_members
            if allocatable(member.node) and member.name not in target.kept_nodes
            if self.schedulers.ignore
            or not any(
                state.outcome in (Outcome.PENDING, Outcome.KNOWN_AFTER) and state.worst >= least
                for state in member.result.states
            )
        ]
        if last:
            yield (
                f"{cut(', '.join(fold(last)), 100)}: what offers their GPUs goes from all of these at once, after the last "
                "wave: no change of their own takes them out of service"
            )

    def check_rollback(self) -> None:
        """Refuse ``rollback_on_failure`` before nodes change, as of :meth:`_check_rollback`; nothing is written."""
        for kubeconfig in self.distinct() if self.rollback_on_failure else ():
            with opened(kubeconfig) as objects, suppress(ClusterError, RefusedError):
                target, _ = self._target(objects, kubeconfig, ())
                self._check_rollback(plan(objects, staged(target)))

    def stage(self, node: NodeResult) -> None:
        """Change what concerns a node in its turn; other pods stay as they are until :meth:`apply`.

        Before the first node of their cluster, DaemonSets get their new template, and what it needs: a program that is
        restarted in its node's turn then fits what the node becomes. A removal takes from each node what offers its
        GPUs. A cluster whose objects cannot be changed is left to :meth:`apply`.

        Raises:
            RefusedError: a removal from a cluster that is not that of the node, where a kubelet runs.
        """
        kubeconfig = self.kubeconfigs.get(node.name)
        if kubeconfig and self.absent:
            with opened(kubeconfig) as objects, suppress(ClusterError):
                self._withdraw(objects, kubeconfig, node)
            return
        with self._lock:
            if not kubeconfig or kubeconfig in self._begun:
                return
            self._begun.add(kubeconfig)
            with opened(kubeconfig) as objects, suppress(ClusterError, RefusedError):
                target, _ = self._target(objects, kubeconfig, ())
                changes = self._as_saved(objects, kubeconfig, plan(objects, staged(target)))
                if any(change.action is Action.REFUSED for change in changes):
                    return
                self._write_early(objects, for_new_pods(changes))

    def label(self, node: NodeResult) -> None:
        """Write the labels of a Node that is held, by which components run there: it is waited for what these offer.

        What cannot be written is left to :meth:`apply`.
        """
        kubeconfig = self.kubeconfigs.get(node.name)
        if not kubeconfig or self.absent:
            return
        with opened(kubeconfig) as objects, suppress(ClusterError, RefusedError):
            target, listed = self._target(objects, kubeconfig, [node])
            changes = plan(objects, replace(target, objects_stay=True), listed)
            changes = self._as_saved(objects, kubeconfig, changes)
            self._write_early(objects, (change for change in changes if change.action in PENDING))

    def _write_early(self, objects: Objects, changes: Iterable[Change]) -> None:
        """Apply changes in a node's turn, which :meth:`apply` then counts as its own."""
        for change in changes:
            objects.apply(change.item, force=self.force)
            self._staged[objects.server, key(change.item)] = change

    def _withdraw(self, objects: Objects, kubeconfig: Kubeconfig, node: NodeResult) -> None:
        """Take the labels from a Node that the run holds, by which DaemonSets offer its GPUs."""
        target, listed = self._target(objects, kubeconfig, [node])
        holds = {member.name: read_hold(member.node) for member in members(listed or (), [node])}
        held = {name for name, hold in holds.items() if hold and hold.run == self.run}
        names = held - target.kept_nodes
        if not names:
            return
        other_names = frozenset(item["metadata"]["name"] for item in listed or ()) - names
        target = replace(target, kept_nodes=other_names, objects_stay=True)
        applier = Applier(objects, target, self.rollout_timeout_s, self.emit)
        self._withdrawn.update(names)
        applier.apply(plan(objects, target, listed))
        applier.wait_for_kubelets(names, offer=False)
        with connected(kubeconfig) as api:
            cluster = Kubernetes(api)
            for member in cluster.members():
                if member.name in names:
                    cluster.note(member, "changing", WITHDRAWS)

    def _check_rollback(self, changes: Sequence[Change]) -> None:
        """Refuse to roll nodes back to MIG devices that the device plugin no longer offers: only nodes go back, not its template.

        Raises:
            UsageError: the strategy changes from one with MIG devices to another one than ``mixed``, which offers any.
        """
        for before, after in cluster_notes.mig_strategies(changes) * self.rollback_on_failure:
            if before in cluster_notes.DIVIDING and after not in (before, "mixed"):
                raise UsageError(
                    "rollout.rollback_on_failure: a node that is rolled back may have MIG devices that the device plugin does not "
                    f"offer under the strategy {after or 'none'}",
                    fix=f"set it to false while mig.strategy changes from {before} to {after or 'none'}",
                )

    def apply(
        self,
        nodes: Sequence[NodeResult],
        stop: Callable[[], bool] = never,
        pods_on: frozenset[str] = frozenset(),
    ) -> list[dict[str, Any]]:
        """Apply to every cluster, after its nodes.

        Args:
            nodes: with the results of the run.
            stop: polled; once true, nothing more is written or waited for.
            pods_on: Nodes whose pods of DaemonSets are waited for; empty: all.
        """
        rows: list[dict[str, Any]] = []
        for kubeconfig in self.distinct():
            with opened(kubeconfig) as objects:
                try:
                    target, listed = self._target(objects, kubeconfig, nodes)
                    if self.has_failed(kubeconfig, nodes):
                        words = self._unwritten("no node of the cluster succeeded")
                        report = Applied(notes=[words])
                        self._admit(report, kubeconfig, nodes, stop, "no node succeeded")
                        rows.append(cluster_data(objects.server, self.namespace, (), report))
                        continue
                    applier = Applier(
                        objects, target, self.rollout_timeout_s, self.emit, stop, nodes=pods_on
                    )
                    # What was written is a change since the plan was made.
                    if self.saved is not None:
                        applier = replace(applier, again=self._again())
                    changes = [
                        self._with_staged(objects.server, change)
                        for change in plan(objects, target, listed)
                    ]
                    changes = self._as_saved(objects, kubeconfig, changes)
                    names = withdrawn(objects, target, changes)
                    writes = any(change.action in PENDING for change in changes)
                    # A removal that was killed may have left Nodes held.
                    needed = writes or self.absent
                    with self._withdrawal(kubeconfig, target, names, needed=needed) as withdrawal:
                        if withdrawal is not None:
                            hold = withdrawal.held(self.run, self.emit, stop, writes=writes)
                            applier = replace(applier, hold=hold)
                        report = applier.apply(changes)
                        report.failures += withdrawal.left if withdrawal is not None else ()
                    absent = placement.absences(report.changes, listed or (), target.labels)
                    spared = target.kept_nodes
                    self._admit(report, kubeconfig, nodes, stop, absent=absent, spared=spared)
                    report.notes += _kept_notes(target)
                    if lost := ", ".join(sorted(self._withdrawn & spared)):
                        report.notes.append(f"{lost}: they have had their turn, and offer no GPUs")
                    report.unready += placement.lines(absent)
                except ClusterError as error:
                    report = Applied(failures=[str(error)], notes=["nothing is written"])
                except (LockHeld, RefusedError) as error:
                    report = Applied(refusals=[str(error)])
                if report.refusals and self._staged:
                    report.notes.append(self._unwritten("the objects are refused"))
                # After a failure the server may be away, and is not waited for again.
                if not report.failures:
                    report.notes += cluster_notes.notes(objects, report.changes, absent=self.absent)
                rows.append(cluster_data(objects.server, self.namespace, report.changes, report))
        return rows

    @contextmanager
    def _withdrawal(
        self, kubeconfig: Kubeconfig, target: Target, names: Collection[str], *, needed: bool
    ) -> Iterator[Withdrawal | None]:
        """Keeps other runs from the cluster, and new pods from Nodes whose GPUs go; ``None``: it is not needed."""
        if self.schedulers.ignore or not needed:
            yield None
            return
        rules = self.schedulers.overrides.on(self.policy.drain or DrainPolicy())
        claims = target.drained and DRA_PLUGIN in names
        with connected(kubeconfig) as api:
            cluster = Kubernetes(api, died=fleet.died)
            yield Withdrawal(
                cluster, rules, target.kept_nodes, DEVICE_PLUGIN in names, claims, self.absent
            )

    def _with_staged(self, server: str, change: Change) -> Change:
        """A change with the fields that :meth:`stage` or :meth:`label` has written already, unless others have changed more since."""
        before = self._staged.get((server, key(change.item)))
        fields = (row.field for row in change.differences)
        if before is None or not all(name.startswith("spec.updateStrategy") for name in fields):
            return change
        return replace(change, action=before.action, differences=before.differences)

    def report(
        self, nodes: Sequence[NodeResult], stop: Callable[[], bool] = never
    ) -> list[dict[str, Any]]:
        """Write only what a run says about the GPUs of Nodes, after one that was stopped."""
        rows: list[dict[str, Any]] = []
        for kubeconfig in self.distinct():
            with opened(kubeconfig) as objects:
                report = Applied(notes=[self._unwritten("the run was stopped")])
                self._admit(report, kubeconfig, nodes, stop, "the run was stopped")
                rows.append(cluster_data(objects.server, self.namespace, (), report))
        return rows

    def _unwritten(self, why: str) -> str:
        """What a run that ends early has written of the objects."""
        if self.absent:
            return f"the objects stay: {why}; Nodes that had their turn offer no GPUs"
        items = [change.item for change in self._staged.values()]
        labelled = sorted(title(item) for item in items if item["kind"] == "Node")
        names = sorted(title(item) for item in items if item["kind"] != "Node")
        parts = [f"of {', '.join(names)} for new pods"] if names else []
        parts += [f"of labels of {', '.join(labelled)}"] if labelled else []
        scope = f"only the change {' and '.join(parts)}" if parts else "nothing"
        again = "; a pod that is created again gets it, also on a Node that is as before the run"
        return f"{scope} is written: {why}{again * bool(names)}"

    def _admit(
        self,
        report: Applied,
        kubeconfig: Kubeconfig,
        nodes: Sequence[NodeResult],
        stop: Callable[[], bool],
        blocked: str = "",
        absent: Iterable[Absence] = (),
        spared: Collection[str] = (),
    ) -> None:
        """Write conditions, and lift start-up taints unless objects were not applied.

        Pods that do not run keep no taint: a Node is admitted when it offers GPUs itself.
        On Nodes without the pod that offers GPUs, the condition says so. A removal leaves kept ones as they are.
        """
        if self.absent and blocked:
            return  # what was said of the Nodes stays, too
        dra = self.settings.dra_driver.enabled
        offers = [
            line for line in report.unready if dra and line.startswith(f"daemonset/{DRA_PLUGIN}:")
        ]
        if (
            report.failures
            or offers
            or any(change.action == "refused" for change in report.changes)
        ):
            blocked = "objects of the cluster are not as wanted"
        results = self._nodes_of(kubeconfig, nodes)
        changed = [node for node in results if node_reports.quarantine_changed(node)]
        try:
            if self.absent:
                admitted = node_reports.withdraw(kubeconfig, spared)
            else:
                if changed and not blocked:
                    restarts = node_reports.restart_plugins(kubeconfig, changed, stop)
                    for name, in_effect, words in restarts:
                        (report.notes if in_effect else report.failures).append(f"{name}: {words}")
                admitted = node_reports.admit(
                    kubeconfig,
                    results,
                    taint=self.settings.startup_taint,
                    offers_gpus=self.settings.device_plugin.enabled,
                    blocked=blocked,
                    stop=stop,
                    without_plugin={
                        absence.node: absence.reason
                        for absence in absent
                        if any(name in cluster_notes.OFFERING for name in absence.daemon_sets)
                    },
                )
        except ClusterError as error:
            if str(error) not in report.failures:
                report.failures.append(str(error))
        else:
            report.notes += map(str, admitted.notes)
            report.failures += map(str, admitted.failures)

    def read_kubeconfigs(self) -> None:
        """Read every kubeconfig; no cluster is contacted.

        Raises:
            UsageError: one of them is invalid.
        """
        for kubeconfig in self.distinct():
            with opened(kubeconfig):
                pass

    def distinct(self) -> list[Kubeconfig]:
        """The kubeconfig of each cluster."""
        return list(dict.fromkeys(filter(None, self.kubeconfigs.values())))

    def has_failed(self, kubeconfig: Kubeconfig, nodes: Sequence[NodeResult]) -> bool:
        """No node of a cluster succeeded, so nothing of it is applied or removed."""
        results = self._nodes_of(kubeconfig, nodes)
        return bool(results) and all(node.status is not NodeStatus.OK for node in results)

    def _nodes_of(self, kubeconfig: Kubeconfig, nodes: Sequence[NodeResult]) -> list[NodeResult]:
        return [node for node in nodes if self.kubeconfigs.get(node.name) == kubeconfig]

    def _target(
        self,
        objects: Objects,
        kubeconfig: Kubeconfig,
        nodes: Sequence[NodeResult],
        listed: list[Json] | None = None,
    ) -> tuple[Target, list[Json] | None]:
        """What should be in a cluster, and its Nodes if they are ``listed`` already, or were for that.

        Raises:
            RefusedError: the cluster is not that of its nodes.
        """
        labels: dict[str, dict[str, str]] = {}
        settings = self.settings
        results = self._nodes_of(kubeconfig, nodes)
        kept_names: set[str] = set()
        if results or (self.absent and self.saved) or (settings.needs_systems and not self.absent):
            listed = objects.list(NODE, "") if listed is None else listed
            check_cluster(listed, results, objects.server)
        if listed is not None and not self.absent:
            cluster_members = members(listed, results)
            labels = labels_of(cluster_members, self.policy)
            if settings.needs_systems:
                systems = systems_of(listed, cluster_members)
                self.systems.extend(system for system in systems if system not in self.systems)
                settings = replace(settings, systems=tuple(systems))
        if self.absent:
            refused = [node for node in results if node.would_refuse or node.status in _LEFT_ALONE]
            kept_names = {member.name for member in members(listed or (), refused)}
            # Of those that could not be probed only names are known.
            refused_names = {node.name for node in refused}
            named = (node for node in listed or () if not refused_names.isdisjoint(names_of(node)))
            kept_names |= {node["metadata"]["name"] for node in named}
        if self.saved is not None:
            planned = {
                row["object"] for row in self._saved_of(objects.server, kubeconfig)["objects"]
            }
            labels = {
                name: node_labels
                for name, node_labels in labels.items()
                if f"node/{name}" in planned
            }
            if self.absent and all(name.startswith("node/") for name in planned):
                titles = (title(node) for node in listed or ())
                kept_names |= {name.removeprefix("node/") for name in titles if name not in planned}
        items = [] if self.absent else build(settings, {})
        target = Target(items, self.namespace, labels, self.absent, self.force)
        drained = self.absent and not self.schedulers.ignore
        return replace(target, kept_nodes=frozenset(kept_names), drained=drained), listed


def _kept_notes(target: Target) -> list[str]:
    """Why a removal keeps all objects."""
    names = cut(", ".join(sorted(target.kept_nodes)), 100)
    outcome = "the objects stay, and pods on other Nodes go: the removal is refused on"
    return [f"{outcome} {names}; run it again once they can be changed"] if names else []


def cluster_objects(
    policy: Policy,
    inventory: Inventory,
    *,
    source: str = "",
    release: str = "",
    schedulers: Schedulers = SCHEDULERS,
    **how: Any,
) -> Clusters:
    """The clusters of an inventory, and the objects that a policy wants there; none is contacted.

    Args:
        policy: with settings of objects.
        inventory: the nodes, each of which names its cluster's kubeconfig.
        source: of the policy, for messages.
        release: of the Operator, whose images are the defaults; empty: the policy's, or the newest.
        schedulers: its ``kubeconfig`` takes precedence over the inventory's.
        how: further arguments of :class:`Clusters`.

    Raises:
        UsageError: the policy has no objects, no node has a kubeconfig, or one is invalid.
    """
    pinned = policy.with_cluster(object_settings(policy, source, release=release))
    kubeconfigs = kubeconfigs_of(inventory, schedulers.kubeconfig)
    clusters = Clusters(pinned, kubeconfigs, schedulers=schedulers, **how)
    clusters.read_kubeconfigs()
    return clusters


def kubeconfigs_of(inventory: Inventory, kubeconfig: str = "") -> dict[str, Kubeconfig]:
    """The kubeconfig of each node's cluster; ``kubeconfig`` takes precedence over the inventory's.

    Raises:
        UsageError: no node has one.
    """
    kubeconfigs = {node.name: kubeconfig_of(node, kubeconfig) for node in inventory}
    if not any(kubeconfigs.values()):
        raise UsageError(
            "no node has a kubeconfig",
            fix="pass --kubeconfig FILE, or set the inventory variable gpustate_kubeconfig",
        )
    return kubeconfigs
