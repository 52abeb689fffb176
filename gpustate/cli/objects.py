"""The objects of the nodes' clusters in ``plan``, ``apply``, ``drift`` and ``remove``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import admission, common
from gpustate.cli import show as pages
from gpustate.cli.render import built, namespace_option, settings_of
from gpustate.errors import EXIT_PENDING, ClusterError, UsageError
from gpustate.manifests.kinds import NODE
from gpustate.plan.render import Page
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.document import cluster_data, exit_codes, lines, pending, refused
from gpustate.reconcile.owners import OF_OPERATOR, find_operator
from gpustate.reconcile.planning import Change, Target, plan

if TYPE_CHECKING:
    from gpustate.cluster.kubeconfig import Kubeconfig
    from gpustate.cluster.objects import Objects
    from gpustate.core.inventory import Inventory
    from gpustate.core.outcome import NodeResult
    from gpustate.core.policy import Policy
    from gpustate.manifests.settings import System

_ROLLOUT_S = 300


def object_options(function: common.F) -> common.F:
    """Options of verbs that compare objects of clusters with a policy."""
    for option in reversed(
        (
            click.option(
                "--cluster-objects",
                is_flag=True,
                help="Include the policy's Kubernetes objects in the clusters of the nodes.",
            ),
            namespace_option,
            click.option(
                "--force-conflicts",
                is_flag=True,
                help="Take over objects, and fields of objects, that others manage.",
            ),
            admission.startup_taint_option,
        )
    ):
        function = option(function)
    return function


rollout_option = click.option(
    "--rollout-timeout",
    type=click.IntRange(min=1),
    default=_ROLLOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="With --cluster-objects: time within which the DaemonSets' pods are available.",
)


@dataclass(frozen=True)
class Clusters:
    """The clusters of an inventory, and what should be in them.

    Args:
        policy: with settings of objects.
        items: the objects; none if they are to be absent.
        namespace: of the objects.
        kubeconfigs: by node, its cluster's.
        options: of the verb.
        absent: remove all objects.
        make: the objects for the systems of a cluster's Nodes, where the policy does not name them.
    """

    policy: Policy
    items: list[dict[str, Any]]
    namespace: str
    kubeconfigs: Mapping[str, Kubeconfig]
    options: Mapping[str, Any]
    absent: bool
    make: Callable[[Sequence[System]], list[dict[str, Any]]] | None = None

    def plan(self, nodes: Sequence[NodeResult]) -> list[dict[str, Any]]:
        """Compare every cluster; nothing is changed."""
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                done = Applied()
                try:
                    done.changes = plan(objects, self._target(objects, kubeconfig, nodes))
                except ClusterError as error:
                    done.failures.append(str(error))
                done.notes += operator_notes(objects, done.changes)
                found.append(cluster_data(objects.server, self.namespace, done.changes, done))
        return found

    def apply(
        self, nodes: Sequence[NodeResult], stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, Any]]:
        """Apply to every cluster, after its nodes."""
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                try:
                    target = self._target(objects, kubeconfig, nodes)
                    applier = Applier(
                        objects,
                        target,
                        float(self.options.get("rollout_timeout") or _ROLLOUT_S),
                        lambda text: click.echo(f"cluster: {text}", err=True),
                        stop,
                    )
                    done = applier.apply(plan(objects, target))
                    self._admit(done, kubeconfig, nodes, stop)
                except ClusterError as error:
                    done = Applied(failures=[str(error)])
                done.notes += operator_notes(objects, done.changes)
                found.append(cluster_data(objects.server, self.namespace, done.changes, done))
        return found

    def report(
        self, nodes: Sequence[NodeResult], stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, Any]]:
        """Write only what a run says about the GPUs of Nodes, after one that was stopped."""
        found: list[dict[str, Any]] = []
        for kubeconfig in self._distinct():
            with connected(kubeconfig) as objects:
                done = Applied()
                self._admit(done, kubeconfig, nodes, stop, "the run was stopped")
                found.append(cluster_data(objects.server, self.namespace, (), done))
        return found

    def _admit(
        self,
        done: Applied,
        kubeconfig: Kubeconfig,
        nodes: Sequence[NodeResult],
        stop: Callable[[], bool],
        blocked: str = "",
    ) -> None:
        """Write conditions, and lift start-up taints if the objects are as wanted."""
        if done.failures or done.unready or any(one.action == "refused" for one in done.changes):
            blocked = "objects of the cluster are not as wanted"
        here = [node for node in nodes if self.kubeconfigs.get(node.name) == kubeconfig]
        changed = [node for node in here if admission.quarantine_changed(node)]
        settings = self.policy.cluster
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
                    offers_gpus=settings is not None and settings.device_plugin.enabled,
                    blocked=blocked,
                    stop=stop,
                )
        except ClusterError as error:
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

    def _target(
        self, objects: Objects, kubeconfig: Kubeconfig, nodes: Sequence[NodeResult]
    ) -> Target:
        from gpustate.reconcile.nodes import labels_of, members, systems_of

        labels: dict[str, dict[str, str]] = {}
        items = self.items
        if not self.absent and self.policy.cluster is not None:
            here = [node for node in nodes if self.kubeconfigs.get(node.name) == kubeconfig]
            live = objects.list(NODE, "") if here or self.make is not None else []
            found = members(live, here)
            labels = labels_of(found, self.policy)
            if self.make is not None:
                items = self.make(systems_of(live, found))
        force = bool(self.options.get("force_conflicts"))
        return Target(items, self.namespace, labels, self.absent, force)


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


def clusters(
    policy: Policy, source: str, inventory: Inventory, options: Mapping[str, Any], *, absent: bool
) -> Clusters | None:
    """The clusters of an inventory; ``None`` without ``--cluster-objects``.

    Raises:
        UsageError: the policy has no objects, or no node has a kubeconfig.
    """
    own = ("namespace", "force_conflicts", "startup_taint")
    given = [name for name in own if options.get(name)]
    if not options.get("cluster_objects"):
        if given:
            word = f"--{given[0].replace('_', '-')}"
            raise UsageError(f"{word} is only for objects", fix="add --cluster-objects")
        return None
    from gpustate.cluster.kubeconfig import kubeconfig_of

    if options.get("out"):
        raise UsageError(
            "a saved plan is only for nodes", fix="omit --cluster-objects, or omit --out"
        )
    settings = admission.with_taint(settings_of(policy, source, options.get("namespace")), options)
    kubeconfigs = {
        node.name: kubeconfig_of(node, options.get("kubeconfig") or "") for node in inventory
    }
    if not any(kubeconfigs.values()):
        raise UsageError(
            "no node has a kubeconfig",
            fix="pass --kubeconfig FILE, or set the inventory variable gpustate_kubeconfig",
        )
    by_nodes = settings.needs_systems and not absent

    def make(systems: Sequence[System]) -> list[dict[str, Any]]:
        return built(policy, replace(settings, systems=tuple(systems)), options)

    items = [] if absent or by_nodes else built(policy, settings, options)
    found = Clusters(
        policy,
        items,
        settings.namespace,
        kubeconfigs,
        options,
        absent,
        make if by_nodes else None,
    )
    found.read_kubeconfigs()
    return found


@contextmanager
def connected(kubeconfig: Kubeconfig) -> Iterator[Objects]:
    from gpustate.cluster.api import connect
    from gpustate.cluster.objects import Objects

    api = connect(kubeconfig.path, kubeconfig.context)
    try:
        yield Objects(api)
    finally:
        api.close()


def show(document: Mapping[str, Any], *, whole: bool = False) -> None:
    """Print the clusters of a document."""
    page = Page()
    for data in document.get("clusters", ()):
        for pieces in lines(data, whole=whole):
            page.add(*pieces)
    pages.show(page)


def changes(document: Mapping[str, Any]) -> int:
    """How many objects an apply would write."""
    return sum(pending(data) for data in document.get("clusters", ()))


def codes(document: Mapping[str, Any], *, detailed: bool = False, drift: bool = False) -> list[int]:
    """Exit codes for the clusters of a document.

    Args:
        document: of a plan or a result.
        detailed: pending changes count.
        drift: objects that differ count, and those that could not be changed count as such.
    """
    found: list[int] = []
    for data in document.get("clusters", ()):
        compared = [one for one in data["objects"] if one.get("changes")]
        if (
            drift
            and refused(data)
            and all(one in compared for one in data["objects"] if one["action"] == "refused")
        ):
            found.append(EXIT_PENDING)  # refused, and still compared
        else:
            found += exit_codes(data)
    if (detailed or drift) and changes(document):
        found.append(EXIT_PENDING)
    return found
