"""Name in a validation's result what ``explain`` names on the same node.

A validation runs tests on the node; ``explain`` looks for causes from here. Both judge one observation: the checks of
:mod:`gpustate.diagnosis.chain`, with the results of the validation that has just ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpustate.core.encode import plain
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.queries import Answer, Query
from gpustate.diagnosis import chain
from gpustate.engine import fleet
from gpustate.explain import walk
from gpustate.explain.walk import Diagnosis

#: The condition of the last validation, which this one replaces once its causes are known.
_REPLACED = "gpu-healthy-false"


def run(
    results: Sequence[NodeResult],
    nodes: Sequence[InventoryNode],
    forks: int,
    states: Collection[str],
    answers: Mapping[str, Mapping[Query[Any], Answer]],
) -> None:
    """Diagnose every node that was validated just now, and add that to its result.

    Args:
        results: of the validation.
        nodes: of the inventory.
        forks: nodes queried in parallel.
        states: names of the policy's states.
        answers: those that the validation has brought, by node.
    """
    validated = {
        result.name: result
        for result in results
        if result.status is NodeStatus.OK
        or any(check["outcome"] == chain.FAILED for check in result.checks)
    }
    chosen = [node for node in nodes if node.name in validated]
    for node, view, error in fleet.question(chosen, forks, walk.query, answers):
        if view is None:
            validated[node.name].notes.append(f"its causes were not looked for: {error}")
        else:
            add(validated[node.name], walk.diagnose(replace(view, states=states)))


def add(result: NodeResult, diagnosis: Diagnosis) -> None:
    """Add a diagnosis: a cause at one of the validation's checks fails that check, anything else is a note."""
    broken = diagnosis.broken
    if broken is not None and broken.name in chain.LINKS:
        row = plain(broken)
        result.checks = [row if check["name"] == broken.name else check for check in result.checks]
        fail(result, broken)
    elif broken is not None and diagnosis.name != _REPLACED:
        words = f"{broken.name} ({diagnosis.name}): {broken.evidence}; {broken.remedy}"
        result.notes.append(words)
    result.notes += diagnosis.warnings
    result.mask()


def fail(result: NodeResult, check: chain.Check) -> None:
    """Fail a node's validator by a check."""
    reason = f"{check.name}: {check.evidence}; {check.remedy}"
    result.status, result.reason = NodeStatus.FAILED, reason
    result.states = [
        replace(state, outcome=Outcome.FAILED, reason=reason) if state.validating else state
        for state in result.states
    ]
