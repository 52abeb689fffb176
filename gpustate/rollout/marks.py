"""Remove what watchers and runs leave in a cluster: records and annotations of Nodes, and the Leases.

Surprising: without the record of a watcher, the next one sets a Node up again. That is right once the policy was removed
from its machine, whatever else is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.documents import Json
from gpustate.manifests.ownership import written_labels
from gpustate.reconcile.nodes import members
from gpustate.schedulers.kubernetes.members import HOLD
from gpustate.schedulers.lease import NAME, NAMESPACE, VALID_S, WATCH
from gpustate.schedulers.mig_state import RUN_ANNOTATION, STATE

#: Annotation of a Node: what watchers have done with it.
RECORD = "gpustate.io/watch"

_UNTOUCHED = (NodeStatus.UNREACHABLE, NodeStatus.REFUSED, NodeStatus.LOCKED)


def remove_records(api: Api, results: Sequence[NodeResult]) -> Iterator[str]:
    """Remove the records of watchers from the Nodes of machines that a policy was removed from; what stays, and why."""
    nodes = [node for node in api.nodes() if RECORD in _annotations(node)]
    changed = [result for result in results if result.status not in _UNTOUCHED]
    for member in members(nodes, changed):
        yield from _patched(api, member.name, {"annotations": {RECORD: None}})


def remove_all(api: Api) -> Iterator[str]:
    """Remove everything of watchers and runs from all Nodes, and Leases that nobody holds; what stays, and why."""
    for node in api.nodes():
        held = HOLD in _annotations(node)  # the run that holds it still needs those of changes
        notes = dict.fromkeys(
            _annotations(node).keys() & {RECORD, *([] if held else [RUN_ANNOTATION])}
        )
        labels = {} if held else dict.fromkeys(written_labels(node) & {STATE})
        if notes or labels:
            patch: Json = {"annotations": notes, "labels": labels}
            yield from _patched(api, node["metadata"]["name"], patch)
    for name in (NAME, WATCH):
        try:
            yield from _without_lease(api, name)
        except RefusedRequest as error:
            yield f"Lease {name} stays: {error}"


def _without_lease(api: Api, name: str) -> Iterator[str]:
    lease = api.lease(NAMESPACE, name)
    if lease is None:
        return
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), str(spec.get("renewTime") or "")
    if holder and renewed:
        age = datetime.now(UTC) - datetime.fromisoformat(renewed.replace("Z", "+00:00"))
        if age.total_seconds() - api.skew_s < float(spec.get("leaseDurationSeconds") or VALID_S):
            yield f"Lease {name} stays: {holder} holds it"
            return
    if not api.delete_lease(lease):
        yield f"Lease {name} stays: another run has just taken it"


def _patched(api: Api, name: str, metadata: Json) -> Iterator[str]:
    try:
        api.patch_node(name, {"metadata": metadata})
    except RefusedRequest as error:
        if error.status != 404:
            yield f"node/{name}: annotations of gpustate stay: {error}"


def _annotations(node: Json) -> Mapping[str, str]:
    texts: Mapping[str, str] = node["metadata"].get("annotations") or {}
    return texts
