"""Loading of a saved plan: its policy, its nodes and its lock file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpustate import registry
from gpustate.api.results import PlanResult
from gpustate.core.building import build_in_part
from gpustate.core.inventory import Inventory
from gpustate.core.policy import Policy, build
from gpustate.core.rollout import RolloutPolicy, rollout_policy
from gpustate.core.state import AnyState
from gpustate.errors import PolicyError, UsageError
from gpustate.formats.masking import missing_secrets, with_secrets
from gpustate.manifests import cluster_part
from gpustate.plan.document import policy_parameters, read_plan


class Plan(dict[str, Any]):
    """The document of a plan, checked."""


def read(path: str) -> Plan:
    """Read and check the file of a saved plan.

    Raises:
        PolicyError: it cannot be read, is not a plan, or was altered.
    """
    return Plan(read_plan(read_json(path), place=path))


def document_of(plan: Plan | PlanResult) -> Mapping[str, Any]:
    """The document of a saved or new plan."""
    return plan if isinstance(plan, Plan) else plan.document


def rollout_of(document: Mapping[str, Any]) -> RolloutPolicy:
    """How many nodes change at a time by the policy of a plan."""
    return rollout_policy(document["policy"].get("rollout"), {})


def read_json(path: str) -> Any:
    """Read a file that should be a plan."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            f"cannot be read as a plan ({error})",
            place=path,
            fix="make a new plan: gpustate plan POLICY --out FILE",
        ) from error


def policy_of(
    document: Mapping[str, Any], read_policy: Callable[[str], Policy], place: str
) -> Policy:
    """The policy of a plan, with secrets from the policy's own file.

    Raises:
        PolicyError: the plan is damaged, or a secret cannot be read.
    """
    data = _with_secrets(document["policy"], read_policy, place)
    states: list[AnyState] = []
    unsettled: dict[str, PolicyError] = {}
    for name, values in ((row["state"], row["parameters"]) for row in data["states"]):
        try:
            states.append(build(registry.get(name), values, place=place))
        except PolicyError as error:
            states.append(build_in_part(registry.get(name), values, error))
            unsettled[name] = error
    try:
        return Policy(
            *states,
            name=data.get("name"),
            notes=tuple(document.get("notes", ())),
            allow=data.get("allow"),
            last=data.get("last", ()),
            rollout=data.get("rollout"),
            drain=data.get("drain"),
            groups=data.get("groups") or {},
            nodes=data.get("nodes") or {},
            cluster=cluster_part.read(data["cluster"], {}) if "cluster" in data else None,
            unsettled=unsettled,
        )
    except PolicyError as error:
        raise PolicyError(f"the plan is damaged: {error.message}", place=place) from None


def _with_secrets(
    data: dict[str, Any], read_policy: Callable[[str], Policy], place: str
) -> dict[str, Any]:
    """The policy in a plan, with its secrets.

    Raises:
        PolicyError: one of them is not in the policy's file.
    """
    missing = missing_secrets(data)
    if not missing:
        return data
    source = str(data.get("source", ""))
    fix = "set it in the inventory's variable gpustate instead, which every apply reads"
    name = ".".join(map(str, missing[0]))
    try:
        parameters = policy_parameters(read_policy(source))
    except (PolicyError, UsageError) as error:
        raise PolicyError(
            f"saved plans contain no secrets, and {name} cannot be read from {source} ({error.message})",
            place=place,
            fix=f"apply the plan where {source} can be read, or {fix}",
        ) from error
    filled: dict[str, Any] = with_secrets(data, parameters)
    unset_paths = missing_secrets(filled)
    if unset_paths:
        name = ".".join(map(str, unset_paths[0]))
        raise PolicyError(
            f"saved plans contain no secrets, and {source} has none for {name}",
            place=place,
            fix=fix,
        )
    return filled


def as_locked(
    policy: Policy, inventory: Inventory, document: Mapping[str, Any], source: str
) -> Policy:
    """The policy with the lock file of the plan."""
    if "lock" not in document:
        return policy
    from gpustate.package_sets import lock_layers
    from gpustate.solve import lock

    locked = lock.from_text(json.dumps(document["lock"]), f"{source}: lock")
    return lock_layers.onto(policy, inventory, locked, source, registry.names())


def only_planned(inventory: Inventory, document: Mapping[str, Any], source: str) -> Inventory:
    """The nodes of an inventory that the plan is for.

    Raises:
        UsageError: it has none of them.
    """
    names = {row["name"] for row in document["nodes"]}
    nodes = tuple(node for node in inventory.nodes if node.name in names)
    if not nodes:
        raise UsageError(
            "none of the plan's nodes are in the inventory",
            place=source,
            fix="use the inventory that the plan was made with",
        )
    return replace(inventory, nodes=nodes)
