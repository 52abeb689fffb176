"""Apply a lock file to a policy: it overrides all driver settings except those of the command line.

A lock is valid only for the policy it was solved for. If the policy's request has changed, or a node is not in the
lock, nothing is done until ``gpustate driver solve`` runs again.
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
from gpustate.package_sets.driver_sets import driver_of
from gpustate.solve import lock as locks
from gpustate.solve.lock import Lock, LockedSet
from gpustate.solve.request import SolvedState

_FILES = TextFiles("lock file", PolicyError, 64)
_SOLVE = "update the lock file: gpustate driver solve"
#: Parameters by state.
_Parameters = dict[str, dict[str, object]]


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
    policy: Policy,
    nodes: Iterable[InventoryNode],
    lock: Lock,
    path: str,
    state_names: Collection[str] = (),
) -> Policy:
    """The policy with the driver of each node overridden by its locked set.

    Args:
        policy: of the nodes.
        nodes: the nodes.
        lock: the lock.
        path: of the lock file, for messages.
        state_names: names of all registered states.

    Raises:
        PolicyError: a node is not in the lock, or the policy's request has changed.
    """
    unlocked, by_node = policy.with_locks({}, path), lock.by_node()
    shared: dict[LockedSet, _Parameters] = {}
    locks: dict[str, _Parameters] = {}
    for node in nodes:
        driver = _driver(unlocked, node, state_names)
        if driver is None:
            continue
        locked = by_node.get(node.name)
        if locked is None:
            if driver.only is None:
                raise PolicyError(f"has no set for node {node.name}", place=path, fix=_SOLVE)
            continue
        _check(locked, driver, node.name, path)
        locks[node.name] = shared.setdefault(locked, _parameters(locked, driver))
    return policy.with_locks(locks, path)


def onto_image(
    policy: Policy, node: InventoryNode, lock: Lock, path: str, state_names: Collection[str] = ()
) -> Policy:
    """The policy for a generic image, with the only locked set for it.

    Args:
        node: represents the machines that will boot the image.
        policy, lock, path, known: as for :func:`onto`.
        node: stands for the machines that will boot the image.

    Raises:
        PolicyError: the lock has no set or several sets for the policy.
    """
    driver = _driver(policy.with_locks({}, path), node, state_names)
    if driver is None:
        return policy
    request = driver.request()
    fitting = {
        (locked_set.driver, locked_set.module_type, locked_set.packages): locked_set
        for locked_set in lock.sets
        if locked_set.request == request
    }
    if len(fitting) > 1:
        drivers = ", ".join(sorted(f"{s.driver} {s.module_type}" for s in fitting.values()))
        raise PolicyError(
            f"has {len(fitting)} sets for {request.text} ({drivers}), but an image needs one",
            place=path,
            fix="select a node: -i INVENTORY --node NODE",
        )
    for locked_set in fitting.values():
        return policy.with_locks({node.name: _parameters(locked_set, driver)}, path)
    if driver.only is None:
        raise PolicyError(f"has no set for {request.text}", place=path, fix=_SOLVE)
    return policy


def _driver(
    policy: Policy, node: InventoryNode, state_names: Collection[str]
) -> SolvedState[Any] | None:
    """The driver state of a node; ``None`` if it has none."""
    driver = driver_of(resolve(policy, node, state_names).states)
    return None if driver is None or driver.absent else driver


def _check(locked: LockedSet, driver: SolvedState[Any], node: str, path: str) -> None:
    request = driver.request()
    before = locked.request
    if before == request:
        return
    mismatch = f"for {before.text}, but the policy now requests {request.text}"
    if before.text == request.text:
        mismatch = "for other modules or packages than the policy now requests"
    raise PolicyError(f"locks node {node} {mismatch}", place=path, fix=_SOLVE)


def _parameters(locked: LockedSet, driver: SolvedState[Any]) -> _Parameters:
    packages = dict(locked.packages)
    return {driver.name: driver.locked_parameters(locked.driver, locked.module_type, packages)}
