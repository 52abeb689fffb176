"""The objects of the nodes' clusters in ``plan``, ``apply``, ``drift`` and ``remove``."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpustate.cli import admission, common
from gpustate.cli import show as pages
from gpustate.cli.render import given_settings, namespace_option, pinned
from gpustate.cluster import pods
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.errors import EXIT_PENDING, ClusterError, RefusedError, UsageError
from gpustate.formats.words import cut
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import BY_NAME, NODE, Key, key, title
from gpustate.manifests.ownership import DEVICE_PLUGIN, DRA_PLUGIN, NFD_DEFINITION, is_owned
from gpustate.plan.objects import NO_GPUS, QUIET, REFUSED, SKIPPED, pending, refused
from gpustate.plan.ranges import fold
from gpustate.plan.render import objects_page
from gpustate.reconcile import placement
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data, exit_codes
from gpustate.reconcile.owners import OF_OPERATOR, find_operator
from gpustate.reconcile.planning import (
    Action,
    Change,
    Target,
    for_new_pods,
    is_ours,
    plan,
    staged,
)
from gpustate.reconcile.saved import stale

if TYPE_CHECKING:
    from gpustate.api import Result
    from gpustate.cluster.api import Api
    from gpustate.cluster.kubeconfig import Kubeconfig
    from gpustate.cluster.objects import Objects
    from gpustate.core.inventory import Inventory
    from gpustate.core.policy import Policy
    from gpustate.manifests.differences import Difference
    from gpustate.manifests.settings import ClusterSettings, System
    from gpustate.reconcile.placement import Absence
    from gpustate.rollout.claims import Claims

Json = dict[str, Any]
Made = TypeVar("Made", bound="Result")

_ROLLOUT_S = 300
_OWN_OPTIONS = ("namespace", "install_nfd", "force_conflicts", "startup_taint")
_FEATURE_DISCOVERY = "daemonset/gpu-feature-discovery"
_FEATURE_DEFINITION = f"customresourcedefinition/{NFD_DEFINITION}"
_FEATURE_WORKER = "-node-feature-discovery-worker"
_PLUGIN_IMAGE = "/k8s-device-plugin:"
#: Of nodes that a run does not change.
_LEFT_ALONE = (NodeStatus.REFUSED, NodeStatus.LOCKED)
_OFFERING = (f"daemonset/{DEVICE_PLUGIN}", f"daemonset/{DRA_PLUGIN}")


#: Options of verbs that remove objects of clusters.
removal_options = common.options(
    click.option(
        "--cluster-objects",
        is_flag=True,
        help="Include the policy's Kubernetes objects (device plugin, RuntimeClass and others) in the nodes' clusters.",
    ),
    namespace_option,
    click.option(
        "--force-conflicts",
        is_flag=True,
        help="Also change objects, and fields of objects, that others manage; otherwise these are refused.",
    ),
    heading="Kubernetes objects",
)
#: Options of verbs that compare objects of clusters with a policy.
object_options = common.options(
    removal_options,
    click.option(
        "--install-nfd",
        is_flag=True,
        help="Include node feature discovery, unless the cluster has one of others [default: as Helm values say].",
    ),
    admission.startup_taint_option,
    heading="Kubernetes objects",
)

rollout_option = click.option(
    "--rollout-timeout",
    type=common.Seconds(min=1),
    default=_ROLLOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="With --cluster-objects: timeout for the DaemonSets' pods to become available.",
)


@dataclass(frozen=True)
class Clusters:
    """The clusters of an inventory, and what should be in them.

    Args:
        policy: with settings of objects, images included.
        kubeconfigs: by node, its cluster's.
        options: of the verb.
        absent: remove all objects.
        force: take over fields of other managers.
        saved: the plan that is applied; ``None``: the policy is.
        resumed: the plan was applied in part.
        systems: of Nodes with GPUs, where the policy does not name them; filled while planning.
    """

    policy: Policy
    kubeconfigs: Mapping[str, Kubeconfig]
    options: Mapping[str, Any]
    absent: bool
    force: bool
    saved: Mapping[str, Any] | None = None
    resumed: bool = False
    systems: list[System] = field(default_factory=list["System"])
    _staged: dict[tuple[str, Key], tuple[Difference, ...]] = field(
        default_factory=dict["tuple[str, Key]", "tuple[Difference, ...]"]
    )

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
        from gpustate.plan.document import with_clusters

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
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                saved = self._saved_of(objects.server, kubeconfig)
                changes = plan(objects, *self._target(objects, kubeconfig, ()))
                now = cluster_data(objects.server, self.namespace, changes)
                found = stale(saved, now, lenient=self.resumed, nodes=self.absent)
            if found:
                title, words = next(iter(found.items()))
                more = f", and {len(found) - 1} more" if len(found) > 1 else ""
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
        found = next((one for one in rows if one["server"] == server), None)
        if found is None:
            servers = ", ".join(one["server"] for one in rows)
            raise RefusedError(
                f"the plan is for the cluster {servers}, and {kubeconfig} is of {server}",
                fix="use the inventory and kubeconfig that the plan was made with",
            )
        if troubles := [*found.get("failures", ()), *found.get("refusals", ())]:
            raise RefusedError(
                f"the plan has no objects of this cluster: {troubles[0]}",
                place=server,
                fix=self._again(),
            )
        cluster: Mapping[str, Any] = found
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
        now = cluster_data(objects.server, self.namespace, changes)
        found = stale(saved, now, lenient=True)
        return [
            one
            if title(one.item) not in found
            else dataclasses.replace(
                one,
                action=Action.REFUSED,
                reason=f"it has changed since the plan was made: {found[title(one.item)]}",
            )
            for one in changes
        ]

    def plan(
        self,
        nodes: Sequence[NodeResult],
        listed: Mapping[Kubeconfig, list[Json]] | None = None,
        *,
        drift: bool = False,
    ) -> list[dict[str, Any]]:
        """Compare every cluster; nothing is changed. Arguments as of :meth:`document`."""
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                here = self._nodes_of(kubeconfig, nodes)
                bad = (one.would_refuse or one.status is not NodeStatus.OK for one in here)
                idle = bool(here) and not drift and not self.absent and all(bad)
                done = Applied()
                try:
                    known = (listed or {}).get(kubeconfig)
                    target, known = self._target(objects, kubeconfig, nodes, known)
                    done.changes = [] if idle else plan(objects, target, known)
                    self._check_rollback(done.changes)
                    with self._claims(objects, kubeconfig, target) as claims:
                        done.notes += claims.notes() if claims else ()
                        done.refusals += claims.refusals() if claims else ()
                    absent = placement.absences(done.changes, known or (), target.labels)
                    (done.unready if drift else done.notes).extend(placement.lines(absent))
                    done.notes += [
                        "no object changes: no node of the cluster can be changed"
                    ] * idle
                    done.notes += _kept_notes(target)
                except ClusterError as error:
                    done.failures.append(str(error))
                except RefusedError as error:
                    done.refusals.append(str(error))
                done.notes += [*_notes(objects, done.changes), *self._deletion_notes(done.changes)]
                found.append(cluster_data(objects.server, self.namespace, done.changes, done))
        return found

    def _deletion_notes(self, changes: Sequence[Change]) -> list[str]:
        """What pods and Nodes lose by objects that are deleted."""
        deleted = [title(one.item) for one in changes if one.action is Action.DELETE]
        kept = [title(one.item) for one in changes if one.action is not Action.DELETE]
        notes = [
            f"{name} is deleted: {NO_GPUS}; running pods keep theirs"
            for name in deleted
            if name in _OFFERING and not any(other in kept for other in _OFFERING)
        ]
        if not self.absent and any(name.endswith(_FEATURE_WORKER) for name in deleted):
            notes.append("node feature discovery is deleted; to keep it, add --install-nfd")
        return notes

    def check_nodes(self, nodes: Sequence[NodeResult]) -> None:
        """Refuse a cluster that is not that of its nodes; nothing is changed.

        Raises:
            RefusedError: a kubelet runs on nodes, and none of them is a Node of the cluster.
        """
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                try:
                    self._target(objects, kubeconfig, nodes)
                except ClusterError:
                    continue  # named when its objects are removed

    def stage(self) -> None:
        """Give DaemonSets that are there already their new template, before nodes change.

        A program that is restarted in its node's turn then fits what the node becomes. Other pods stay as they are
        until :meth:`apply`. A cluster whose objects cannot be changed is left to it.

        Raises:
            UsageError: as of :meth:`_check_rollback`.
        """
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects, suppress(ClusterError, RefusedError):
                target, _ = self._target(objects, kubeconfig, ())
                changes = self._as_saved(objects, kubeconfig, plan(objects, staged(target)))
                if any(change.action is Action.REFUSED for change in changes):
                    continue
                self._check_rollback(changes)
                for change in for_new_pods(changes):
                    objects.apply(change.item, force=self.force)
                    self._staged[objects.server, key(change.item)] = change.differences

    def _check_rollback(self, changes: Sequence[Change]) -> None:
        """Refuse to roll nodes back to what the device plugin does not start with: only nodes go back, not its template.

        Raises:
            UsageError: they would have MIG devices of several profiles under the strategy ``single``.
        """
        changed = ("mixed", "single") in _mig_strategies(changes)
        if self.options.get("rollback_on_failure") and changed:
            raise UsageError(
                "--rollback-on-failure: a node that is rolled back may have MIG devices of several profiles, with which the "
                "device plugin does not start under the strategy single",
                fix="omit --rollback-on-failure while mig.strategy changes from mixed to single",
            )

    def apply(
        self,
        nodes: Sequence[NodeResult],
        stop: Callable[[], bool] = lambda: False,
        pods_on: frozenset[str] = frozenset(),
        run: str = "",
    ) -> list[dict[str, Any]]:
        """Apply to every cluster, after its nodes.

        Args:
            nodes: with the results of the run.
            stop: polled; once true, nothing more is written or waited for.
            run: its id, for a removal, which drains Nodes before the DRA driver is deleted.
            pods_on: Nodes whose pods of DaemonSets are waited for; empty: all.
        """
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                try:
                    target, listed = self._target(objects, kubeconfig, nodes)
                    here = self._nodes_of(kubeconfig, nodes)
                    failed = all(node.status is not NodeStatus.OK for node in here)
                    if here and failed and not self.absent:
                        words = self._unwritten("no node of the cluster succeeded")
                        done = Applied(notes=[words])
                        self._admit(done, kubeconfig, nodes, stop, "no node succeeded")
                        found.append(cluster_data(objects.server, self.namespace, (), done))
                        continue
                    applier = Applier(
                        objects,
                        target,
                        float(self.options.get("rollout_timeout") or _ROLLOUT_S),
                        lambda text: click.echo(f"cluster: {text}", err=True),
                        stop,
                        nodes=pods_on,
                    )
                    # What was written is a change since the plan was made.
                    if self.saved is not None:
                        applier = replace(applier, again=self._again())
                    changes = [
                        self._with_staged(objects.server, change)
                        for change in plan(objects, target, listed)
                    ]
                    with (
                        self._claims(objects, kubeconfig, target) as claims,
                        claims.drained(run, applier.say, stop) if claims else nullcontext(),
                    ):
                        done = applier.apply(self._as_saved(objects, kubeconfig, changes))
                    absent = placement.absences(done.changes, listed or (), target.labels)
                    self._admit(done, kubeconfig, nodes, stop, absent=absent)
                    done.notes += _kept_notes(target)
                    done.unready += placement.lines(absent)
                except ClusterError as error:
                    done = Applied(failures=[str(error)], notes=["nothing is written"])
                except RefusedError as error:
                    done = Applied(refusals=[str(error)])
                if done.refusals and self._staged:
                    done.notes.append(self._unwritten("the objects are refused"))
                # After a failure the server may be away, and is not waited for again.
                if not done.failures:
                    done.notes += _notes(objects, done.changes)
                found.append(cluster_data(objects.server, self.namespace, done.changes, done))
        return found

    @contextmanager
    def _claims(
        self, objects: Objects, kubeconfig: Kubeconfig, target: Target
    ) -> Iterator[Claims | None]:
        """Pods that leave before a DRA driver that is removed; ``None``: there is none, or no Node is drained."""
        sets = objects.list(BY_NAME["DaemonSet"], target.namespace) if target.drained else ()
        if not any(key(item)[1] == DRA_PLUGIN and is_ours(item) for item in sets):
            yield None
            return
        from gpustate.cli.schedulers import schedulers_of
        from gpustate.core.drain import DrainPolicy
        from gpustate.rollout.claims import Claims
        from gpustate.schedulers.kubernetes import Kubernetes

        rules = schedulers_of(self.options).overrides.on(self.policy.drain or DrainPolicy())
        with _api(kubeconfig) as api:
            yield Claims(Kubernetes(api), rules, target.kept_nodes)

    def _with_staged(self, server: str, change: Change) -> Change:
        """A change with the fields that :meth:`stage` has written already, unless others have changed more since."""
        fields = self._staged.get((server, key(change.item)))
        left = (one.field for one in change.differences)
        if fields is None or not all(name.startswith("spec.updateStrategy") for name in left):
            return change
        return replace(change, action=Action.UPDATE, differences=fields)

    def report(
        self, nodes: Sequence[NodeResult], stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, Any]]:
        """Write only what a run says about the GPUs of Nodes, after one that was stopped."""
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                done = Applied(notes=[self._unwritten("the run was stopped")])
                self._admit(done, kubeconfig, nodes, stop, "the run was stopped")
                found.append(cluster_data(objects.server, self.namespace, (), done))
        return found

    def _unwritten(self, why: str) -> str:
        """What a run that ends early has written of the objects."""
        names = sorted(f"{kind.lower()}/{name}" for _, (kind, name) in self._staged)
        what = f"only the change of {', '.join(names)} for new pods" if names else "nothing"
        return f"{what} is written: {why}"

    def remove_marks(self, applied: Sequence[dict[str, Any]]) -> None:
        """Remove what watchers and runs left in every cluster, and add what stays to the results.

        Args:
            applied: of :meth:`apply`.
        """
        for kubeconfig, data in zip(self._distinct(), applied, strict=True):
            if left := marks(kubeconfig, None):
                data["notes"] = [*data.get("notes", ()), *left]

    def _admit(
        self,
        done: Applied,
        kubeconfig: Kubeconfig,
        nodes: Sequence[NodeResult],
        stop: Callable[[], bool],
        blocked: str = "",
        absent: Iterable[Absence] = (),
    ) -> None:
        """Write conditions, and lift start-up taints unless objects were not applied.

        Pods that do not run keep no taint: a Node is admitted when it offers GPUs itself.
        On Nodes without the pod that offers GPUs, the condition says so.
        """
        dra = self.settings.dra_driver.enabled
        offers = [one for one in done.unready if dra and one.startswith(f"daemonset/{DRA_PLUGIN}:")]
        if done.failures or offers or any(one.action == "refused" for one in done.changes):
            blocked = "objects of the cluster are not as wanted"
        here = self._nodes_of(kubeconfig, nodes)
        changed = [node for node in here if admission.quarantine_changed(node)]
        try:
            if self.absent:
                admitted = admission.withdraw(kubeconfig)
            else:
                if changed and not blocked:
                    for name, in_effect, words in admission.restart_plugins(kubeconfig, changed):
                        (done.notes if in_effect else done.failures).append(f"{name}: {words}")
                admitted = admission.admit(
                    kubeconfig,
                    here,
                    taint=admission.taint_of(self.policy, self.options),
                    offers_gpus=self.settings.device_plugin.enabled,
                    blocked=blocked,
                    stop=stop,
                    without_plugin={
                        one.node: one.reason
                        for one in absent
                        if any(name in _OFFERING for name in one.daemon_sets)
                    },
                )
        except ClusterError as error:
            if str(error) not in done.failures:
                done.failures.append(str(error))
        else:
            done.notes += map(str, admitted.notes)
            done.failures += map(str, admitted.failures)

    def read_kubeconfigs(self) -> None:
        """Read every kubeconfig; no cluster is contacted.

        Raises:
            UsageError: one of them is invalid.
        """
        for one in self._distinct():
            with connected(one):
                pass

    def _distinct(self) -> list[Kubeconfig]:
        return list(dict.fromkeys(one for one in self.kubeconfigs.values() if one))

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
        from gpustate.manifests.build import build
        from gpustate.reconcile.nodes import check_cluster, labels_of, members, systems_of

        labels: dict[str, dict[str, str]] = {}
        settings = self.settings
        here = self._nodes_of(kubeconfig, nodes)
        kept: set[str] = set()
        if here or (self.absent and self.saved) or (settings.needs_systems and not self.absent):
            listed = objects.list(NODE, "") if listed is None else listed
            check_cluster(listed, here, objects.server)
        if listed is not None and not self.absent:
            found = members(listed, here)
            labels = labels_of(found, self.policy)
            if settings.needs_systems:
                systems = systems_of(listed, found)
                self.systems.extend(one for one in systems if one not in self.systems)
                settings = replace(settings, systems=tuple(systems))
        if self.saved is not None:
            planned = {
                one["object"] for one in self._saved_of(objects.server, kubeconfig)["objects"]
            }
            labels = {name: said for name, said in labels.items() if f"node/{name}" in planned}
            if self.absent and all(name.startswith("node/") for name in planned):
                names = (title(one) for one in listed or ())
                kept = {name.removeprefix("node/") for name in names if name not in planned}
        elif self.absent:
            refused = [node for node in here if node.would_refuse or node.status in _LEFT_ALONE]
            kept = {one.name for one in members(listed or (), refused)}
        items = [] if self.absent else build(settings, {})
        target = Target(items, self.namespace, labels, self.absent, self.force)
        drained = self.absent and not self.options.get("ignore_scheduler")
        return replace(target, kept_nodes=frozenset(kept), drained=drained), listed


def _kept_notes(target: Target) -> list[str]:
    """Why a removal keeps all objects."""
    names = cut(", ".join(sorted(target.kept_nodes)), 100)
    what = "the objects stay, and pods on other Nodes go: the removal is refused on"
    return [f"{what} {names}; run it again once they can be changed"] if names else []


def marks(kubeconfig: Kubeconfig, results: Sequence[NodeResult] | None) -> list[str]:
    """Remove what watchers and runs left in a cluster; what stays, and why.

    Args:
        kubeconfig: of the cluster.
        results: only records of watchers, on the Nodes of these machines; ``None``: everything.
    """
    from gpustate.watch.marks import remove_all, remove_records

    with _api(kubeconfig) as api:
        try:
            return list(remove_all(api) if results is None else remove_records(api, results))
        except ClusterError as error:
            return [f"annotations of gpustate stay on Nodes: {error}"]


def remove_records(
    inventory: Inventory, options: Mapping[str, Any], results: Sequence[NodeResult]
) -> None:
    """Remove the records of watchers from the Nodes of a run that removed a policy; say what stays."""
    from gpustate.cluster.kubeconfig import kubeconfig_of

    option = options.get("kubeconfig") or ""
    found = {kubeconfig_of(node, option): None for node in inventory}
    for kubeconfig in filter(None, found):
        for line in marks(kubeconfig, results):
            click.echo(f"gpustate: {line}", err=True)


def _notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """What others have in the cluster, or lack, that concerns these objects."""
    looks = (operator_notes, feature_notes, other_plugin_notes, mig_notes)
    return [note for look in looks for note in look(objects, changes)]


def operator_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """What was found, of which version, and what to do, if objects belong to a GPU Operator."""
    count = sum(change.reason.startswith(OF_OPERATOR) for change in changes)
    if not count:
        return []
    try:
        operator = find_operator(objects)
    except ClusterError:  # without the rights to look at it
        operator = None
    found = operator.describe() if operator is not None else "a GPU Operator"
    return [
        f"{found} manages {count} of these objects; take them over with "
        "gpustate adopt POLICY -i INVENTORY, or plan without --cluster-objects"
    ]


def feature_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """What to do if GPU feature discovery has no node feature discovery to publish its labels through."""
    from gpustate.reconcile.features import FEATURES

    kept = {title(one.item) for one in changes if one.action is not Action.DELETE}
    if _FEATURE_DISCOVERY not in kept or _FEATURE_DEFINITION in kept:
        return []
    try:
        served = objects.serves(FEATURES)
    except ClusterError:
        return []
    if served:
        return []
    return [
        f"{_FEATURE_DISCOVERY} cannot run: the cluster has no NodeFeatures; "
        "add --install-nfd, install node feature discovery, or set gfd.enabled to false"
    ]


def other_plugin_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """Device plugins of others beside the policy's: the kubelet uses the one that registers last."""
    kept = [one.item for one in changes if one.action is not Action.DELETE]
    own = {(title(one), one["metadata"].get("namespace")) for one in kept}
    try:
        offers = any(name == _OFFERING[0] for name, _ in own)
        others = objects.list(BY_NAME["DaemonSet"], "*") if offers else []
    except ClusterError:  # without the right
        return []
    return [
        f"{title(one)} in namespace {one['metadata']['namespace']} is a device plugin too, and the kubelet uses the one "
        "that registers last: delete it, or set devicePlugin.enabled to false"
        for one in others
        if not is_owned(one) and (title(one), one["metadata"]["namespace"]) not in own
        for containers in [one["spec"]["template"]["spec"]["containers"]]
        if any(_PLUGIN_IMAGE in container["image"] for container in containers)
    ]


def _mig_strategies(changes: Iterable[Change]) -> list[tuple[Any, Any]]:
    """MIG strategies of programs before and after, where their variable changes, comes or goes."""

    def text(variable: Any) -> Any:
        return variable.get("value") if isinstance(variable, dict) else variable

    return [
        (text(one.before), text(one.after))
        for change in changes
        for one in change.differences
        if "env[MIG_STRATEGY]" in one.field
    ]


def mig_notes(objects: Objects, changes: Sequence[Change]) -> list[str]:
    """Nodes with MIG devices where the device plugin no longer offers these."""

    plugins = [
        change
        for change in changes
        if title(change.item) == f"daemonset/{DEVICE_PLUGIN}" and change.action is Action.UPDATE
    ]
    offering = ("single", "mixed")
    ends = any(
        before in offering and after not in offering for before, after in _mig_strategies(plugins)
    )
    try:
        nodes = objects.list(NODE, "") if ends else []
    except ClusterError:  # without the right
        return []
    divided = [
        node["metadata"]["name"]
        for node in nodes
        if any(name.startswith(pods.MIG_PREFIX) for name in pods.allocatable(node))
        or (node["metadata"].get("labels") or {}).get("nvidia.com/mig.strategy") == "single"
    ]
    return [
        f"{', '.join(fold(divided))}: the device plugin will offer GPUs in MIG mode as whole ones, and pods that get one do "
        "not start; take a layout of gpustate back with mig: {ensure: absent}, or keep mig_strategy"
    ] * bool(divided)


def clusters(
    policy: Policy, source: str, inventory: Inventory, options: Mapping[str, Any], *, absent: bool
) -> Clusters | None:
    """The clusters of an inventory; ``None`` without ``--cluster-objects``.

    Raises:
        UsageError: the policy has no objects, no node has a kubeconfig, or a removal leaves out nodes of a cluster.
    """
    given = [name for name in _OWN_OPTIONS if options.get(name)]
    if not options.get("cluster_objects"):
        if given:
            word = f"--{given[0].replace('_', '-')}"
            raise UsageError(f"{word} is only for objects", fix="add --cluster-objects")
        return None
    settings = admission.with_taint(given_settings(policy, source, options), options)
    made = policy.with_cluster(pinned(policy, settings, options))
    force = bool(options.get("force_conflicts"))
    kubeconfigs = _kubeconfigs(inventory, options)
    if absent:
        _refuse_a_part(kubeconfigs, options, ", or omit --cluster-objects")
    found = Clusters(made, kubeconfigs, options, absent, force)
    found.read_kubeconfigs()
    return found


def _refuse_a_part(
    kubeconfigs: Mapping[str, Kubeconfig], options: Mapping[str, Any], otherwise: str = ""
) -> None:
    """Refuse to remove the objects of clusters of which the limit leaves out nodes.

    Args:
        kubeconfigs: by node.
        options: of the verb.
        otherwise: what to do instead of leaving out the limit.

    Raises:
        UsageError: it does.
    """
    given = [name for name in ("limit", "exclude") if options.get(name)]
    if not given:
        return
    whole = common.load_inventory(
        {**options, "limit": None, "exclude": None}, reach=False, notes_shown=False
    )
    theirs = set(filter(None, kubeconfigs.values()))
    out = sorted(
        name
        for name, one in _kubeconfigs(whole, options).items()
        if one in theirs and name not in kubeconfigs
    )
    if out:
        options_ = " and ".join(f"--{name}" for name in given)
        raise UsageError(
            f"this removes the objects of the whole cluster, and {options_} leaves out nodes of it: {cut(', '.join(out), 100)}",
            fix=f"omit {options_}{otherwise}",
        )


def check_saved(source: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would change a saved plan.

    Raises:
        UsageError: one is given.
    """
    own = ("cluster_objects", *_OWN_OPTIONS)
    for word in (f"--{name.replace('_', '-')}" for name in own if options.get(name)):
        raise UsageError(
            f"{source} is a saved plan, and {word} is only for new plans", fix=f"omit {word}"
        )


def clusters_of_plan(
    document: Mapping[str, Any],
    read_policy: Callable[[str], Policy],
    source: str,
    inventory: Inventory,
    options: Mapping[str, Any],
    *,
    resumed: bool,
) -> Clusters | None:
    """The clusters of a saved plan; ``None`` if it is only for nodes.

    Args:
        document: the plan.
        read_policy: reads the policy's file, for its secrets.
        source: the plan's file.
        inventory: the plan's nodes.
        options: of the verb.
        resumed: the plan was applied in part.

    Raises:
        UsageError: no node has a kubeconfig, or a removal leaves out nodes of a cluster.
        RefusedError: a cluster has changed since.
    """
    from gpustate.api import saved

    if "clusters" not in document:
        return None
    policy = saved.policy_of(document, read_policy, source)
    how = document["objects"]
    kubeconfigs = _kubeconfigs(inventory, options)
    if how["absent"]:
        _refuse_a_part(kubeconfigs, options)
    found = Clusters(
        policy,
        kubeconfigs,
        options,
        how["absent"],
        how["force"],
        saved=document,
        resumed=resumed,
    )
    found.check()
    return found


def _kubeconfigs(inventory: Inventory, options: Mapping[str, Any]) -> dict[str, Kubeconfig]:
    """The kubeconfig of each node's cluster.

    Raises:
        UsageError: no node has one.
    """
    from gpustate.cluster.kubeconfig import kubeconfig_of

    option = options.get("kubeconfig") or ""
    found = {node.name: kubeconfig_of(node, option) for node in inventory}
    if not any(found.values()):
        raise UsageError(
            "no node has a kubeconfig",
            fix="pass --kubeconfig FILE, or set the inventory variable gpustate_kubeconfig",
        )
    return found


@contextmanager
def _api(kubeconfig: Kubeconfig) -> Iterator[Api]:
    from gpustate.cluster.api import connect

    with closing(connect(kubeconfig.path, kubeconfig.context)) as api:
        yield api


@contextmanager
def connected(kubeconfig: Kubeconfig) -> Iterator[Objects]:
    """The objects of a cluster; the connection is closed at the end."""
    from gpustate.cluster.objects import Objects

    with _api(kubeconfig) as api:
        yield Objects(api)


def show(document: Mapping[str, Any], *, whole: bool = False) -> None:
    """Print the clusters of a document."""
    pages.show(objects_page(document, whole=whole))


def changes(document: Mapping[str, Any]) -> int:
    """How many objects an apply would write."""
    return sum(pending(data) for data in document.get("clusters", ()))


def counted(result: Made, document: dict[str, Any]) -> Made:
    """A result with a document that has clusters, and their objects in the line for grep."""
    clusters_ = document["clusters"]
    numbers = {
        "objects": sum(len(data["objects"]) for data in clusters_),
        "objects_changed": changes(document),
        "objects_refused": sum(map(refused, clusters_)),
    }
    summary = " ".join([result.summary, *(f"{key}={value}" for key, value in numbers.items())])
    if "summary" in document:
        document = {**document, "summary": summary}
    return replace(result, document=document, summary=summary)


def drifted(document: Mapping[str, Any]) -> str:
    """How many objects differ, of those that were compared; empty without any."""
    rows = [one for data in document.get("clusters", ()) for one in data["objects"]]
    conflicts = sum(map(_differs, rows))
    compared = sum(one["action"] not in (SKIPPED, REFUSED) or _differs(one) for one in rows)
    return f"{changes(document) + conflicts} of {compared} objects" if compared else ""


def _differs(row: Mapping[str, Any]) -> bool:
    """Whether an object differs that an apply would not write: refused, or with fields that others added."""
    return row["action"] in (REFUSED, *QUIET) and bool(row.get("changes"))


def codes(document: Mapping[str, Any], *, detailed: bool = False, drift: bool = False) -> list[int]:
    """Exit codes for the clusters of a document.

    Args:
        document: of a plan or a result.
        detailed: pending changes count.
        drift: objects that differ count, and those that could not be changed count as such.
    """
    found: list[int] = []
    for data in document.get("clusters", ()):
        rows = data.get("objects", ())
        compared = [one for one in rows if one["action"] == REFUSED and _differs(one)]
        if drift and (data.get("unready") or any(map(_differs, rows))):
            found.append(EXIT_PENDING)
        if not drift or refused(data) != len(compared) or not compared:
            found += exit_codes({**data, "unready": ()} if drift else data)
    if (detailed or drift) and changes(document):
        found.append(EXIT_PENDING)
    return found
