"""Apply a lock file to an inventory: it overrides all driver settings except those of the command line.

A lock is valid only for the policy it was solved for. If the policy's request has changed, or a node is not in the
lock, nothing is done until ``gpustate solve`` runs again.
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
from gpustate.resolver.driver_sets import wanted_of
from gpustate.solve import lock as locks
from gpustate.solve.lock import Lock, LockedSet, without_node_parts

_FILES = TextFiles("lock file", PolicyError, 64)
_SOLVE = "update the lock file: gpustate solve"


def lock_path(source: str) -> str:
    """The lock file of a policy: next to its file, or in the current folder for a state's name."""
    folder = os.path.dirname(source) if os.path.exists(source) else ""
    return os.path.join(folder, locks.NAME)


def load(path: str) -> Lock:
    """Read a lock file.

    Raises:
        PolicyError: it cannot be read, or is invalid.
    """
    return locks.from_text(_FILES.text(path), path)


def load_if_there(path: str) -> Lock:
    """Read a lock file; an empty lock if there is no file."""
    return load(path) if os.path.lexists(path) else Lock()


def save(lock: Lock, path: str) -> None:
    """Write a lock file atomically.

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
    """The inventory with the driver of each node overridden by its locked set.

    Args:
        inventory: the nodes.
        policy: of the nodes.
        lock: the lock.
        path: of the lock file, for messages.
        known: names of all registered states.

    Raises:
        PolicyError: a node is not in the lock, or the policy's request has changed.
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
        layer = layers.setdefault(one, _layer(one, path))
        nodes.append(replace(node, layers=(*_own_layers(node), layer)))
    return replace(inventory, nodes=tuple(nodes))


def onto_image(
    node: InventoryNode, policy: Policy, lock: Lock, path: str, known: Collection[str] = ()
) -> InventoryNode:
    """A generic image with the only locked set for its policy.

    Args:
        node: represents the machines that will boot the image.
        policy, lock, path, known: as for :func:`onto`.

    Raises:
        PolicyError: the lock has no set or several sets for the policy.
    """
    driver = _driver(policy, node, known)
    if driver is None:
        return node
    wanted = wanted_of(driver)
    fitting = {
        (one.driver, one.module_type, *sorted(one.versions.items())): one
        for one in lock.sets
        if one.matches(wanted)
    }
    if len(fitting) > 1:
        drivers = ", ".join(sorted(f"{one.driver} {one.module_type}" for one in fitting.values()))
        raise PolicyError(
            f"has {len(fitting)} sets for {wanted.text} ({drivers}), but an image needs one",
            place=path,
            fix="select a node: -i INVENTORY --as NODE",
        )
    for one in fitting.values():
        return replace(node, layers=(*_own_layers(node), _layer(one, path)))
    if driver.only is None:
        raise PolicyError(f"has no set for {wanted.text}", place=path, fix=_SOLVE)
    return node


def _driver(policy: Policy, node: InventoryNode, known: Collection[str]) -> Any:
    """The driver state of a node; ``None`` if it has none."""
    for state in resolve(policy, node, known).states:
        if state.name == "driver":
            return None if state.absent else state
    return None


def _own_layers(node: InventoryNode) -> Sequence[VarsLayer]:
    said = node.vars.get("gpustate")
    if node.layers or said is None:
        return node.layers
    origin = node.origins.get("gpustate", "inventory")
    return (VarsLayer("node", node.name, said, origin),)


def _check(one: LockedSet, driver: Any, node: str, path: str) -> None:
    now = wanted_of(driver)
    if one.matches(now):
        return
    before = without_node_parts(one.wanted)
    what = f"for {before.text}, but the policy now requests {now.text}"
    if before.text == now.text:
        what = "for other modules or packages than the policy now requests"
    raise PolicyError(f"locks node {node} {what}", place=path, fix=_SOLVE)


def _layer(one: LockedSet, path: str) -> VarsLayer:
    mine = {n: v for n, v in one.versions.items() if driverset.is_member(n, v)}
    said = {"version": one.driver, "module_type": one.module_type, "locked": mine}
    return VarsLayer("node", "", {"driver": said}, path)
