"""Puts what a lock file says on an inventory: the strongest word about the driver, but the command line's.

A lock is for the policy it was solved for: where the policy wants something else by now, or a node is
not in it, nothing is done until somebody solves again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpustate.core.inventory import Inventory, InventoryNode, VarsLayer
from gpustate.core.policy import Policy, resolve
from gpustate.errors import PolicyError
from gpustate.files import TextFiles
from gpustate.formats import driverset
from gpustate.resolver.driver_sets import driver_of
from gpustate.solve import lock as locks
from gpustate.solve.lock import Lock, LockedSet, without_node_parts
from gpustate.solve.request import SolvedState

_FILES = TextFiles("lock file", PolicyError, 64)
_SOLVE = "solve again: gpustate solve"


def beside(source: str) -> str:
    """Where the lock of a policy is: beside its file; here, for the name of a state."""
    folder = os.path.dirname(source) if os.path.exists(source) else ""
    return os.path.join(folder, locks.NAME)


def load(path: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it cannot be read, or is none.
    """
    return locks.from_text(_FILES.text(path), path)


def load_if_there(path: str) -> Lock:
    """Read a lock file; an empty lock where there is no file."""
    return load(path) if os.path.lexists(path) else Lock()


def save(lock: Lock, path: str) -> None:
    """Write a lock file whole or not at all.

    Raises:
        PolicyError: it cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.new")
    try:
        temporary.write_text(locks.to_text(lock), encoding="ascii")
        temporary.replace(target)
    except OSError as error:
        raise PolicyError(f"cannot be written ({error.strerror})", place=path) from error


def onto(
    inventory: Inventory, policy: Policy, lock: Lock, path: str, known: Collection[str] = ()
) -> Inventory:
    """The inventory with each node's locked set as the last word about its driver.

    Args:
        inventory: nodes that are to be looked at.
        policy: for them.
        lock: what is locked.
        path: of the lock file, for messages.
        known: names of all registered states.

    Raises:
        PolicyError: a node is not in the lock, or the policy has moved on.
    """
    by_node = lock.by_node()
    layers: dict[LockedSet, VarsLayer] = {}
    nodes: list[InventoryNode] = []
    for node in inventory.nodes:
        driver = _driver(policy, node, known)
        if driver is None:
            nodes.append(node)
            continue
        one = by_node.get(node.name)
        if one is None:
            if driver.only is None:
                raise PolicyError(f"has no set for node {node.name}", place=path, fix=_SOLVE)
            nodes.append(node)
            continue
        _check(one, driver, node.name, path)
        layer = layers.setdefault(one, _layer(one, driver, path))
        nodes.append(replace(node, layers=(*_own_layers(node), layer)))
    return replace(inventory, nodes=tuple(nodes))


def onto_image(
    node: InventoryNode, policy: Policy, lock: Lock, path: str, known: Collection[str] = ()
) -> InventoryNode:
    """An image that is no node's in particular, with the one set that the lock has for its policy.

    Args:
        node: stands for the machines that will boot the image.
        policy, lock, path, known: as for :func:`onto`.

    Raises:
        PolicyError: the lock has no set for the policy, or several.
    """
    driver = _driver(policy, node, known)
    if driver is None:
        return node
    wanted = driver.request()
    fitting = {
        (one.driver, one.module_type, *sorted(one.versions.items())): one
        for one in lock.sets
        if one.matches(wanted)
    }
    if len(fitting) > 1:
        told = ", ".join(sorted(f"{one.driver} {one.module_type}" for one in fitting.values()))
        raise PolicyError(
            f"has {len(fitting)} sets for {wanted.text} ({told}), and an image gets one",
            place=path,
            fix="say whose: -i INVENTORY --as NODE",
        )
    for one in fitting.values():
        return replace(node, layers=(*_own_layers(node), _layer(one, driver, path)))
    if driver.only is None:
        raise PolicyError(f"has no set for {wanted.text}", place=path, fix=_SOLVE)
    return node


def _driver(policy: Policy, node: InventoryNode, known: Collection[str]) -> SolvedState[Any] | None:
    """The state of the driver as a node has it; ``None`` where it is not to be there."""
    driver = driver_of(resolve(policy, node, known).states)
    return None if driver is None or driver.absent else driver


def _own_layers(node: InventoryNode) -> Sequence[VarsLayer]:
    said = node.vars.get("gpustate")
    if node.layers or said is None:
        return node.layers
    origin = node.origins.get("gpustate", "inventory")
    return (VarsLayer("node", node.name, said, origin),)


def _check(one: LockedSet, driver: SolvedState[Any], node: str, path: str) -> None:
    now = driver.request()
    if one.matches(now):
        return
    before = without_node_parts(one.wanted)
    what = f"for {before.text}, and the policy wants {now.text} now"
    if before.text == now.text:
        what = "for other modules or packages than the policy wants now"
    raise PolicyError(f"locks node {node} {what}", place=path, fix=_SOLVE)


def _layer(one: LockedSet, driver: SolvedState[Any], path: str) -> VarsLayer:
    mine = {n: v for n, v in one.versions.items() if driverset.is_member(n, v)}
    parameters = driver.locked_parameters(one.driver, one.module_type, mine)
    return VarsLayer("node", "", {driver.name: parameters}, path)
