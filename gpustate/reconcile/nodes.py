"""The Nodes of a cluster on which pods of GPUs may run: those whose machines are as the policy wants them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpustate.cluster.pods import Machine, NodeIndex, Verdict
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Policy
from gpustate.manifests.kinds import NODE
from gpustate.reconcile.planning import Objects

#: States of machines whose GPUs are not for containers.
_FOR_MACHINES = ("vfio", "kata")
_IDS = ("boot_id", "machine_id", "system_uuid")
_WITHOUT_EFFECT = (Outcome.NOT_APPLICABLE, Outcome.NOT_RUN)


def nodes_of(objects: Objects, results: Iterable[NodeResult]) -> dict[str, NodeResult]:
    """The Nodes that are machines of a run, by name: with GPUs, with a kubelet, and without a failure.

    Raises:
        ClusterError: the Nodes cannot be listed.
    """
    fit = [result for result in results if _is_fit(result)]
    if not fit:
        return {}
    index = NodeIndex(objects.list(NODE, ""))
    found: dict[str, NodeResult] = {}
    for result in fit:
        boot, machine, system = (str(result.facts.get(name) or "") for name in _IDS)
        try:
            node = index.match(Machine(boot, machine, system), any_boot=True)
        except Verdict:
            continue  # a machine of another cluster, or one that has not joined
        found[str(node["metadata"]["name"])] = result
    return dict(sorted(found.items()))


def states_of(result: NodeResult, policy: Policy) -> set[str]:
    """States that are present on a node."""
    present = {state.name for state in policy.states if not state.absent}
    return {one.state for one in result.states if one.outcome not in _WITHOUT_EFFECT} & present


def _is_fit(result: NodeResult) -> bool:
    if result.status is not NodeStatus.OK:
        return False
    facts: dict[str, Any] = dict(result.facts)
    gpus = any(
        str(one.get("class_id", "")).startswith(("0300", "0302")) for one in facts.get("pci") or ()
    )
    machines = any(
        one.state in _FOR_MACHINES and one.outcome not in _WITHOUT_EFFECT for one in result.states
    )
    return gpus and not machines
