"""The objects of the nodes' clusters in ``plan``, ``apply``, ``drift`` and ``remove``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, next_steps
from gpustate.cli import show as pages
from gpustate.cli.rollout import rolls_back, strategy_of
from gpustate.cli.schedulers import schedulers_of
from gpustate.errors import UsageError
from gpustate.formats.words import cut
from gpustate.plan.objects import REFUSED, SKIPPED, differs, pending_of
from gpustate.plan.render import objects_page

if TYPE_CHECKING:
    from gpustate.api.clusters import Clusters
    from gpustate.cluster.kubeconfig import Kubeconfig
    from gpustate.core.inventory import Inventory
    from gpustate.core.outcome import NodeResult
    from gpustate.core.policy import Policy

#: Options of verbs that compare objects of clusters with a policy, or remove them.
object_options = common.options(
    click.option(
        "--cluster-objects",
        is_flag=True,
        help="Include the policy's objects of the nodes' clusters.",
    ),
    click.option(
        "--force-conflicts", is_flag=True, help="Change, or plan to change, fields of others, too."
    ),
    heading="Kubernetes objects",
)


def remove_records(
    inventory: Inventory, options: Mapping[str, Any], results: Sequence[NodeResult]
) -> None:
    """Remove the records of watchers from the Nodes of a run that removed a policy; say what stays."""
    from gpustate.api.objects import remove_marks
    from gpustate.cluster.kubeconfig import kubeconfig_of

    option = options.get("kubeconfig") or ""
    kubeconfigs = {kubeconfig_of(node, option): None for node in inventory}
    for kubeconfig in filter(None, kubeconfigs):
        for line in remove_marks(kubeconfig, results):
            click.echo(f"gpustate: {line}", err=True)


def clusters(
    policy: Policy, source: str, inventory: Inventory, options: Mapping[str, Any], *, absent: bool
) -> Clusters | None:
    """The clusters of an inventory; ``None`` without ``--cluster-objects``.

    Raises:
        UsageError: the policy has no objects, no node has a kubeconfig, or a removal leaves out nodes of a cluster.
    """
    if not options.get("cluster_objects"):
        if options.get("force_conflicts"):
            raise UsageError("--force-conflicts is only for objects", fix="add --cluster-objects")
        return None
    from gpustate.api.clusters import cluster_objects, kubeconfigs_of

    if absent:
        kubeconfigs = kubeconfigs_of(inventory, options.get("kubeconfig") or "")
        _refuse_a_part(kubeconfigs, options, ", or omit --cluster-objects")
    return cluster_objects(
        policy,
        inventory,
        source=source,
        release=options.get("release") or "",
        absent=absent,
        force=bool(options.get("force_conflicts")),
        **_how(options, policy),
    )


def _how(options: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Arguments of :class:`gpustate.api.clusters.Clusters` that options of a verb and its policy give."""
    strategy = strategy_of(options).beside(policy.rollout)
    timeout_s = strategy.pods_timeout_s
    return {
        "schedulers": schedulers_of(options),
        "rollback_on_failure": rolls_back(strategy, options),
        "command": next_steps.command_of,
        "emit": lambda text: click.echo(f"cluster: {text}", err=True),
    } | ({"rollout_timeout_s": float(timeout_s)} if timeout_s else {})


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
    if not options.get("limit"):
        return
    from gpustate.api.clusters import kubeconfigs_of

    inventory = common.load_inventory({**options, "limit": None}, reach=False, notes_shown=False)
    clusters = set(filter(None, kubeconfigs.values()))
    out = sorted(
        name
        for name, path in kubeconfigs_of(inventory, options.get("kubeconfig") or "").items()
        if path in clusters and name not in kubeconfigs
    )
    if out:
        raise UsageError(
            f"this removes the objects of the whole cluster, and --limit leaves out nodes of it: {cut(', '.join(out), 100)}",
            fix=f"omit --limit{otherwise}",
        )


def check_saved(source: str, options: Mapping[str, Any]) -> None:
    """Refuse options that would change a saved plan.

    Raises:
        UsageError: one is given.
    """
    names = ("cluster_objects", "force_conflicts")
    for word in (f"--{name.replace('_', '-')}" for name in names if options.get(name)):
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
    from gpustate.api import objects, saved

    if "clusters" not in document:
        return None
    policy = saved.policy_of(document, read_policy, source)
    if document["objects"]["absent"]:
        from gpustate.api.clusters import kubeconfigs_of

        _refuse_a_part(kubeconfigs_of(inventory, options.get("kubeconfig") or ""), options)
    return objects.clusters_of_plan(
        document,
        policy,
        inventory,
        options.get("kubeconfig") or "",
        resumed=resumed,
        **_how(options, policy),
    )


def show(document: Mapping[str, Any], *, whole: bool = False) -> None:
    """Print the clusters of a document."""
    pages.show(objects_page(document, full=whole))


def way_back_note(document: Mapping[str, Any]) -> str:
    """What a rollback of nodes does not take back; empty without clusters."""
    if not document.get("clusters"):
        return ""
    changes = [row for item in _rows(document) for row in item.get("changes", ())]
    words = "objects of the cluster are not restored"
    if any("env[MIG_STRATEGY]" in row["field"] for row in changes):
        words += (
            "; it is refused where the MIG layout of before does not fit their MIG strategy of now: then apply the policy of "
            "before with --cluster-objects"
        )
    return f" ({words})"


def _rows(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for data in document.get("clusters", ()) for row in data["objects"]]


def drifted(document: Mapping[str, Any]) -> str:
    """How many objects differ, of those that were compared; empty without any."""
    rows = _rows(document)
    conflicts = sum(map(differs, rows))
    compared = sum(row["action"] not in (SKIPPED, REFUSED) or differs(row) for row in rows)
    return f"{pending_of(document) + conflicts} of {compared} objects" if compared else ""


def has_drifted(document: Mapping[str, Any]) -> bool:
    """Whether objects differ from the policy, or pods of theirs are not ready."""
    unready = any(data.get("unready") for data in document.get("clusters", ()))
    return bool(unready or pending_of(document) or any(map(differs, _rows(document))))
