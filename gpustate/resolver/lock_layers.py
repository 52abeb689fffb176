"""Puts what a lock file says into a policy: the strongest word about the driver, but the command line's.

A lock is for the policy it was solved for: where the policy wants something else by now, or a node is
not in it, nothing is done until somebody solves again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from gpustate.core.inventory import InventoryNode
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
#: Parameters by state.
_Parameters = dict[str, dict[str, object]]


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
    policy: Policy,
    nodes: Iterable[InventoryNode],
    lock: Lock,
    path: str,
    known: Collection[str] = (),
) -> Policy:
    """The policy with each node's locked set as the last word about its driver.

    Args:
        policy: for the nodes.
        nodes: nodes that it is resolved for.
        lock: what is locked.
        path: of the lock file, for messages.
        known: names of all registered states.

    Raises:
        PolicyError: a node is not in the lock, or the policy has moved on.
    """
    bare, by_node = policy.with_locks({}, path), lock.by_node()
    shared: dict[LockedSet, _Parameters] = {}
    locks: dict[str, _Parameters] = {}
    for node in nodes:
        driver = _driver(bare, node, known)
        if driver is None:
            continue
        one = by_node.get(node.name)
        if one is None:
            if driver.only is None:
                raise PolicyError(f"has no set for node {node.name}", place=path, fix=_SOLVE)
            continue
        _check(one, driver, node.name, path)
        locks[node.name] = shared.setdefault(one, _parameters(one, driver))
    return policy.with_locks(locks, path)


def onto_image(
    policy: Policy, node: InventoryNode, lock: Lock, path: str, known: Collection[str] = ()
) -> Policy:
    """The policy for an image that is no node's in particular, with the one set that the lock has for it.

    Args:
        policy, lock, path, known: as for :func:`onto`.
        node: stands for the machines that will boot the image.

    Raises:
        PolicyError: the lock has no set for the policy, or several.
    """
    driver = _driver(policy.with_locks({}, path), node, known)
    if driver is None:
        return policy
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
        return policy.with_locks({node.name: _parameters(one, driver)}, path)
    if driver.only is None:
        raise PolicyError(f"has no set for {wanted.text}", place=path, fix=_SOLVE)
    return policy


def _driver(policy: Policy, node: InventoryNode, known: Collection[str]) -> SolvedState[Any] | None:
    """The state of the driver as a node has it; ``None`` where it is not to be there."""
    driver = driver_of(resolve(policy, node, known).states)
    return None if driver is None or driver.absent else driver


def _check(one: LockedSet, driver: SolvedState[Any], node: str, path: str) -> None:
    now = driver.request()
    if one.matches(now):
        return
    before = without_node_parts(one.wanted)
    what = f"for {before.text}, and the policy wants {now.text} now"
    if before.text == now.text:
        what = "for other modules or packages than the policy wants now"
    raise PolicyError(f"locks node {node} {what}", place=path, fix=_SOLVE)


def _parameters(one: LockedSet, driver: SolvedState[Any]) -> _Parameters:
    mine = {n: v for n, v in one.versions.items() if driverset.is_member(n, v)}
    return {driver.name: driver.locked_parameters(one.driver, one.module_type, mine)}
