"""How a Node is held and released: a cordon, and an annotation with the record of who made it.

Cordon and record are one write, guarded by the Node's resourceVersion, so neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from gpustate import clock
from gpustate.cluster import pods as cluster_pods
from gpustate.cluster.api import RefusedRequest
from gpustate.cluster.scheduling import unmet_selector
from gpustate.core.facts import NodeFacts
from gpustate.documents import Json
from gpustate.manifests.ownership import DEPLOY
from gpustate.schedulers import eviction, node_events
from gpustate.schedulers.base import (
    Emit,
    HeldElsewhereError,
    Hold,
    Member,
    NotRefreshedError,
    Stop,
    Waiting,
    Why,
    discard,
    never,
    refuse_stopped,
    taken_over,
)
from gpustate.schedulers.kubernetes.members import HOLD, Nodes, boot_id_of, read_hold
from gpustate.schedulers.nvidia_pods import patch_node

_POLL_S = 1.0
_REFRESH_S = 180.0
#: A kubelet reports every ten seconds what its Node offers: so long the same may be what it offered before a restart.
_REPORTED_S = 15.0
#: So long a Node that offers its GPUs waits for NVIDIA's other pods, which may be unable to start whatever happens.
_UNREADY_S = 60.0


class Holds:
    """Holds on Nodes, and what has to be so again before they are released.

    Args:
        nodes: those of a cluster.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def hold(self, member: Member, why: Why) -> Member:
        """Cordon it."""
        self._nodes.list_maintenances()

        def change(node: Json, current: Member) -> Json:
            if current.foreign:
                raise HeldElsewhereError(
                    f"{self._nodes.title}: Node {member.name} is out of service: {'; '.join(current.foreign)}",
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
            return _patch(record, cordoned=True)

        held = self._write(member.name, change)
        self._nodes.report(member.name, node_events.HELD, "cordoned")
        return held

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase."""

        def change(node: Json, current: Member) -> Json | None:
            hold = current.hold
            if hold is None or (hold.phase == phase and why in ("", hold.text)):
                return None
            if takeover := taken_over(member, hold):
                raise HeldElsewhereError(f"{self._nodes.title}: Node {member.name}: {takeover}")
            text = why or hold.text
            return _patch(replace(hold, phase=phase, since=clock.now(), text=text))

        noted = self._write(member.name, change)
        if phase == "failed":
            words = "the change failed, the Node stays cordoned"
            self._nodes.report(member.name, node_events.FAILED, f"{words}: {why}" if why else words)
        return noted

    def refresh(self, member: Member, facts: NodeFacts, emit: Emit, stop: Stop) -> str:
        """Delete the pods of NVIDIA's DaemonSets on it, which are created again, and wait for Ready and GPUs."""

        def is_own(node: Json) -> bool:
            hold = read_hold(node)
            return hold is not None and not taken_over(member, hold)

        self._nodes.report(member.name, node_events.CHANGED, "changed and validated")
        self._nodes.nvidia_pods.resume(member.name, is_own)
        operands = filter(eviction.is_operand, self._nodes.api.pods_on(member.name))
        old = {str(pod["metadata"]["uid"]): pod for pod in operands}
        if old:
            emit(f"restarting {eviction.names(old.values())}")
        withdrawn = self._withdraw(member.name, emit)
        before = cluster_pods.allocatable(self._nodes.api.node(member.name)) if old else {}
        for pod in old.values():
            self._nodes.api.delete(pod)
        began = self._nodes.clock()
        waiting = Waiting(emit, self._nodes.clock, f"Node {member.name} to be ready for GPU pods")
        while True:
            node, pods = self._nodes.api.node(member.name), self._nodes.api.pods_on(member.name)
            waits = self._missing(member, facts, node, pods, set(old))
            if (
                not waits
                and withdrawn
                and not any(map(_devices, self._nodes.api.slices(member.name)))
            ):
                waits = "its DRA driver has not published its GPUs again"
            early = self._nodes.clock() < began + _REPORTED_S
            if not waits and early and before and cluster_pods.allocatable(node) == before:
                waits = "its kubelet has not reported since its pods were restarted"
            unready = ", ".join(
                eviction.name(pod)
                for pod in pods
                if eviction.is_operand(pod) and not eviction.is_ready(pod)
            )
            passed = self._nodes.clock() - began
            if not waits and (not unready or passed > _UNREADY_S):
                if unready:
                    emit(
                        f"{unready} is not ready after {_UNREADY_S:g} s; the Node offers its GPUs without it"
                    )
                return self._unoffered(member, node)
            if passed > _REFRESH_S:
                raise NotRefreshedError(
                    f"{self._nodes.title}: Node {member.name} is not ready for GPU pods {_REFRESH_S:g} s after the change: {waits}"
                    f"{f'; not ready: {unready}' * bool(unready)}",
                    fix="on it: journalctl -u kubelet, and the log of NVIDIA's device plugin; then gpustate apply again",
                )
            missing = waits or f"not ready: {unready}"
            refuse_stopped(stop, f"its pods were restarted ({missing})")
            waiting.report(missing)
            self._nodes.sleep(_POLL_S)

    def _missing(
        self, member: Member, facts: NodeFacts, node: Json, pods: Sequence[Json], old: set[str]
    ) -> str:
        """What GPU pods still lack on a Node; empty: nothing."""
        before = member.hold
        boot_id = self._nodes.boot_ids.get(member.name, facts.boot_id)
        if facts.boot_id and facts.boot_id != boot_id == boot_id_of(node):
            return "its kubelet has not reported since the boot"
        if (before is None or before.ready_before) and not eviction.is_ready(node):
            return "the Node is not Ready"
        for pod in pods:
            if str(pod["metadata"]["uid"]) in old:
                return f"{eviction.name(pod)} is terminating"
        gone = old and not any(map(eviction.is_operand, pods))
        if gone and any(map(eviction.uses_nvml, self._templates(node))):
            return _paused(node) or "its DaemonSets have not created their pods again"
        if _is_without_gpus(member, node):
            plugins = filter(eviction.is_device_plugin, (*pods, *self._templates(node)))
            if facts.device_plugin or any(plugins):
                return _paused(node) or "allocatable has none"
        return ""

    def _templates(self, node: Json) -> list[Json]:
        """The pods of the DaemonSets that are for a Node; all where another tool keeps them away for a while."""
        templates = (one["spec"]["template"] for one in self._nodes.api.daemon_sets())
        return [one for one in templates if _paused(node) or not unmet_selector(one, node)]

    def _unoffered(self, member: Member, node: Json) -> str:
        """That nothing offers the GPUs any more that a Node has offered; empty: they are offered."""
        by_claims = any(map(eviction.is_dra_driver, self._nodes.daemon_sets()))
        if by_claims or not _is_without_gpus(member, node):
            return ""
        return f"{self._nodes.title}: nothing offers the GPUs of Node {member.name}: the cluster has no device plugin for it"

    def _withdraw(self, name: str, emit: Emit) -> bool:
        """Offer no GPU of a Node by claims until NVIDIA's DRA driver publishes them again; whether it did.

        What an earlier process of it has published is what the GPUs were, and nothing tells whether a later one has
        agreed. A slice without devices is filled at the start of the driver, or half a minute later; one that is
        deleted is not always.
        """
        if not any(map(eviction.is_dra_driver, self._nodes.daemon_sets())):
            return False
        try:
            published = [
                item["metadata"]["name"] for item in self._nodes.api.slices(name) if _devices(item)
            ]
            for slice_name in published:
                self._nodes.api.empty_slice(slice_name)
        except RefusedRequest as error:
            if error.status != 403:
                raise
            emit(f"the ResourceSlices of Node {name} may be out of date: {error}")
            return False
        return bool(published)

    def release(self, member: Member, emit: Emit = discard, stop: Stop = never) -> str:
        """Uncordon it and let NVIDIA's programs run again, where the cordon is ours and nobody else has a claim on it."""
        reason, result = "", ""

        def change(node: Json, current: Member) -> Json | None:
            nonlocal reason, result
            reason, result = "", ""
            if current.hold is None:
                return None
            if reason := taken_over(member, current.hold):
                return None
            labels = self._nodes.nvidia_pods.resumed(node)
            if current.foreign:
                undo = (f"once that is over: {current.undo}",) if current.undo else ()
                reason = "; ".join((*current.foreign, *undo))
                if current.hold.phase == "left":
                    return None
                result = f"left cordoned: {'; '.join(current.foreign)}"
                return _patch(replace(current.hold, phase="left", text=result), labels=labels)
            stays = not current.hold.schedulable_before
            result = "released, it stays cordoned as it was before" if stays else "uncordoned"
            return _patch(None, cordoned=None if stays else False, labels=labels)

        self._write(member.name, change)
        if result:
            self._nodes.report(member.name, node_events.RELEASED, result)
        return reason

    def _write(self, name: str, change: Callable[[Json, Member], Json | None]) -> Member:
        written = self._nodes.written

        def patch(node: Json) -> Json | None:
            written[name] = node
            return change(node, self._nodes.describe(node))

        written[name] = patch_node(self._nodes.api, name, patch)
        return self._nodes.describe(written[name])


def _patch(
    hold: Hold | None, *, cordoned: bool | None = None, labels: Mapping[str, str] | None = None
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


def _is_without_gpus(member: Member, node: Json) -> bool:
    """A Node does not offer the GPUs that it offered before the hold."""
    offered = member.gpus or (member.hold and member.hold.gpus_before)
    return bool(offered) and not cluster_pods.allocatable(node)


def _paused(node: Json) -> str:
    """Which labels of another tool keep NVIDIA's pods away for a while."""
    labels = node["metadata"].get("labels") or {}
    paused = (
        key for key in sorted(labels) if key.startswith(DEPLOY) and labels[key].startswith("paused")
    )
    words = " ".join(f"{key}=true" for key in paused)
    command = f"kubectl label node {node['metadata']['name']} --overwrite {words}"
    return words and f"another tool left labels that keep NVIDIA's pods away: {command}"


def _devices(resource_slice: Json) -> list[Json]:
    devices: list[Json] = resource_slice["spec"].get("devices") or []
    return devices
