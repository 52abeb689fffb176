"""The objects of clusters beside the nodes of a run: what a result has of them, and their part of an apply."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpustate.api.clusters import Clusters, kubeconfigs_of
from gpustate.api.results import ApplyResult, Result
from gpustate.cluster.api import connected
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.inventory import Inventory
from gpustate.core.outcome import NodeResult
from gpustate.core.policy import Policy
from gpustate.errors import EXIT_INTERRUPTED, ClusterError, worst_exit_code
from gpustate.plan.objects import REFUSED, differs, pending_of, refused
from gpustate.reconcile.document import exit_codes
from gpustate.rollout.marks import remove_all, remove_records

ResultT = TypeVar("ResultT", bound=Result)


def clusters_of_plan(
    document: Mapping[str, Any], policy: Policy, inventory: Inventory, kubeconfig: str, **how: Any
) -> Clusters | None:
    """The clusters of a saved plan, compared with what they are now; ``None`` if it is only for nodes.

    Args:
        document: the plan.
        policy: the plan's, with secrets.
        inventory: the plan's nodes.
        kubeconfig: takes precedence over the inventory's.
        how: further arguments of :class:`gpustate.api.Clusters`.

    Raises:
        UsageError: no node has a kubeconfig.
        RefusedError: a cluster has changed since.
    """
    if "clusters" not in document:
        return None
    planned = document["objects"]
    kubeconfigs = kubeconfigs_of(inventory, kubeconfig)
    clusters = Clusters(
        policy, kubeconfigs, planned["absent"], planned["force"], saved=document, **how
    )
    clusters.check()
    return clusters


def with_objects(
    result: ResultT, document: dict[str, Any], began: float, *, drift: bool = False
) -> ResultT:
    """A result with a document that has clusters, their codes, and their objects and time in the line for grep.

    Args:
        result: of the nodes.
        document: with clusters.
        began: when their part began, monotonic.
        drift: objects were only compared.
    """
    clusters = document["clusters"]
    code = worst_exit_code((result.exit_code, *codes(document, drift=drift)))
    numbers = {
        "objects": sum(len(data["objects"]) for data in clusters),
        "objects_changed": pending_of(document),
        "objects_refused": sum(map(refused, clusters)),
    }
    spent_s = time.monotonic() - began
    summary = re.sub(
        r"(?<=duration_s=)\S+", lambda text: f"{float(text[0]) + spent_s:.1f}", result.summary
    )
    summary = " ".join([summary, *(f"{key}={value}" for key, value in numbers.items())])
    if "summary" in document:
        document = {**document, "exit_code": code, "summary": summary}
    return replace(result, document=document, exit_code=code, summary=summary)


def codes(document: Mapping[str, Any], *, drift: bool = False) -> list[int]:
    """Exit codes for the clusters of a document; pending changes are not counted.

    Args:
        document: of a plan or a result.
        drift: objects that could not be changed differ, and pods that are not ready do: neither is an error.
    """
    values: list[int] = []
    for data in document.get("clusters", ()):
        compared = [
            row for row in data.get("objects", ()) if row["action"] == REFUSED and differs(row)
        ]
        if not drift or refused(data) != len(compared) or not compared:
            values += exit_codes({**data, "unready": ()} if drift else data)
    return values


def apply_objects(
    clusters: Clusters, result: ApplyResult, stop: Callable[[], bool], *, absent: bool
) -> ApplyResult:
    """Apply or remove the objects once their nodes have ended; nothing is written where the run was interrupted.

    Args:
        clusters: of the run.
        result: of the nodes.
        stop: polled while pods are waited for.
        absent: the objects are removed.
    """
    if result.interrupted:
        return result
    began = time.monotonic()
    if result.stopped:
        applied = clusters.report(result.nodes, stop)
    else:
        applied = clusters.apply(result.nodes, stop)
        if absent:
            _remove_marks(clusters, applied, result.nodes)
    if not applied:
        return result
    if stop():
        result = replace(result, interrupted=True, exit_code=EXIT_INTERRUPTED)
    return with_objects(result, {**result.document, "clusters": applied}, began)


def _remove_marks(
    clusters: Clusters, applied: Sequence[dict[str, Any]], results: Sequence[NodeResult]
) -> None:
    """Remove what watchers and runs left in every cluster, and add what stays to what became of its objects."""
    for kubeconfig, data in zip(clusters.distinct(), applied, strict=True):
        # It may be another cluster, or another run may be changing its nodes.
        if not data.get("refusals") and not clusters.has_failed(kubeconfig, results):
            data["notes"] = [*data.get("notes", ()), *remove_marks(kubeconfig, None)]


def remove_marks(kubeconfig: Kubeconfig, results: Sequence[NodeResult] | None) -> list[str]:
    """Remove what watchers and runs left in a cluster; what stays, and why.

    Args:
        kubeconfig: of the cluster.
        results: only records of watchers, on the Nodes of these machines; ``None``: everything.
    """
    with connected(kubeconfig) as api:
        try:
            return list(remove_all(api) if results is None else remove_records(api, results))
        except ClusterError as error:
            return [f"annotations of gpustate stay on Nodes: {error}"]
