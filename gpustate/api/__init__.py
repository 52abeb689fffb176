"""The Python API: plan, apply and detect drift from a program, as the command line does.

::

    from gpustate import api

    planned = api.plan("policy.py", "inventory.yml", limit="canary")
    if planned.pending and planned.disruption <= api.Disruption.RESTART:
        applied = api.apply(planned, "inventory.yml", limit="canary", events=print)
        raise SystemExit(applied.exit_code)

Functions load policies and inventories from the same sources as the command line, or take a
:class:`~gpustate.Policy` and an :class:`Inventory`. They print nothing, prompt for nothing, install no signal
handler, and raise :class:`~gpustate.GpustateError` for errors before the first node is reached. Later errors are
in the result: a node that fails does not stop the others.

The exports of this module stay compatible within a major version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpustate.api.clusters import Clusters, cluster_objects
    from gpustate.api.functions import apply, drift, plan, rollback
    from gpustate.api.results import ApplyResult, DriftResult, PlanResult, Result
    from gpustate.api.rollbacks import RollbackPlan, plan_rollback
    from gpustate.api.sources import load_inventory, load_policy
    from gpustate.core.change import Change, Disruption
    from gpustate.core.drain import DrainOverrides, DrainPolicy, EvictionRules
    from gpustate.core.inventory import Inventory, InventoryNode
    from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
    from gpustate.core.policy import Policy
    from gpustate.engine.events import Event
    from gpustate.rollout.options import Schedulers
    from gpustate.rollout.strategy import Strategy

__all__ = [
    "ApplyResult",
    "Change",
    "Clusters",
    "Disruption",
    "DrainOverrides",
    "DrainPolicy",
    "DriftResult",
    "Event",
    "EvictionRules",
    "Inventory",
    "InventoryNode",
    "NodeResult",
    "NodeStatus",
    "Outcome",
    "PlanResult",
    "Policy",
    "Result",
    "RollbackPlan",
    "Schedulers",
    "StateResult",
    "Strategy",
    "apply",
    "cluster_objects",
    "drift",
    "load_inventory",
    "load_policy",
    "plan",
    "plan_rollback",
    "rollback",
]

_HOME = {
    name: f"gpustate.{module}"
    for module, names in {
        "api.clusters": ("Clusters", "cluster_objects"),
        "api.functions": ("apply", "drift", "plan", "rollback"),
        "api.results": ("ApplyResult", "DriftResult", "PlanResult", "Result"),
        "api.rollbacks": ("RollbackPlan", "plan_rollback"),
        "api.sources": ("load_inventory", "load_policy"),
        "core.change": ("Change", "Disruption"),
        "core.drain": ("DrainOverrides", "DrainPolicy", "EvictionRules"),
        "core.inventory": ("Inventory", "InventoryNode"),
        "core.outcome": ("NodeResult", "NodeStatus", "Outcome", "StateResult"),
        "core.policy": ("Policy",),
        "engine.events": ("Event",),
        "rollout.options": ("Schedulers",),
        "rollout.strategy": ("Strategy",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gpustate.api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
