"""What planning, applying and rolling back share: the nodes of a call, and what their results have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpustate import clock
from gpustate.api.results import ApplyResult
from gpustate.api.sources import load_inventory
from gpustate.core.inventory import Inventory
from gpustate.engine import fleet
from gpustate.errors import UsageError
from gpustate.plan import document as documents
from gpustate.rollout.strategy import MAX_UNAVAILABLE, Strategy

if TYPE_CHECKING:
    from gpustate.api.sources import InventorySource


def never() -> bool:
    """Nothing stops the run."""
    return False


def nodes_of(nodes: InventorySource, limit: str | None, exclude: str | None) -> Inventory:
    """The nodes of an inventory, or of its source."""
    if not isinstance(nodes, Inventory):
        return load_inventory(nodes, limit=limit, exclude=exclude)
    if limit is None and exclude is None:
        return nodes
    raise UsageError(
        "limit and exclude need an inventory source, not an Inventory",
        fix="pass them to load_inventory instead",
    )


def common_fields(result: fleet.FleetResult, notes: tuple[str, ...]) -> dict[str, Any]:
    """Fields of every result."""
    return {
        "run": result.run,
        "nodes": tuple(result.nodes),
        "exit_code": result.exit_code,
        "summary": result.summary(),
        "interrupted": result.interrupted,
        "notes": notes,
    }


def apply_result(
    result: fleet.FleetResult,
    verb: str,
    notes: tuple[str, ...],
    about: Sequence[str],
    context: Mapping[str, Any] | None,
) -> ApplyResult:
    """The result of a run that changed nodes.

    Args:
        result: of the engine.
        verb: of the run.
        notes: on the inventory.
        about: notes on the policy.
        context: origin of the document.
    """
    outcome = documents.result_document(
        result.nodes,
        run=result.run,
        created=clock.now(),
        verb=verb,
        summary=result.summary(),
        exit_code=result.exit_code,
        notes=(*about, *([f"stopped: {result.stopped}"] if result.stopped else ())),
        skipped=result.skipped,
        context=context,
    )
    return ApplyResult(
        **common_fields(result, notes),
        document=outcome,
        skipped=tuple(result.skipped),
        stopped=result.stopped,
    )


def add_rollout(document: dict[str, Any], inventory: Inventory, strategy: Strategy) -> None:
    """Add to a plan the waves in which its nodes would change, if there are several."""
    rollout = strategy.foreseen(inventory, documents.changing(document))
    if rollout.words:
        limit = strategy.max_unavailable or MAX_UNAVAILABLE
        document["rollout"] = {
            "waves": list(rollout.wave_sizes),
            "max_unavailable": limit,
            "text": f"{rollout.words}; at most {limit} of a cluster out of service at a time",
        }
