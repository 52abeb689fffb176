"""Loading of policies, inventories and lock files, with few imports."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.core.policy import Policy
    from gpustate.inventory.vault import Vault
    from gpustate.policies import Changes

    #: A policy, a file, or the name of a state.
    PolicySource = Policy | str | PathLike[str]
    #: An inventory, a file, a directory, a program, or ``node1,node2``.
    InventorySource = Inventory | str | PathLike[str]

LOCK_FILE = "gpustate.lock"


def load_policy(
    source: str | PathLike[str],
    *,
    changes: Changes | None = None,
    bundle: str | None = None,
    strict: bool = False,
    release: str | None = None,
    origins: bool = False,
    driver: str = "",
) -> Policy:
    """Load a policy.

    Args:
        source: a Python file, gpustate's YAML, a file of the GPU Operator, or the name of a state.
        changes: changes by ``--set``, ``--values`` and ``--patch``.
        bundle: install every package from this bundle.
        strict: refuse an Operator file with keys that have no effect, instead of adding notes.
        release: interpret an Operator file as this release of the Operator does.
        origins: find the lines that set the values of a Python file.
        driver: a driver version or branch, instead of what the policy requests.

    Raises:
        PolicyError: the policy is invalid; with place and fix.
        UsageError: it has no driver, and ``driver`` is given.
    """
    from gpustate import policies

    name = str(source)
    if not name:
        raise UsageError("no policy", fix="give a Python file, an Operator file or a state's name")
    policy = policies.load(name, changes=changes, origins=origins, strict=strict, release=release)
    _check_allowed(policy, name)
    if driver:
        from gpustate.package_sets.upgrading import with_driver

        policy = with_driver(policy, driver, name)
    if bundle is None and not any(state.brings_bundle for state in policy.states):
        return policy
    from gpustate.package_sets import bundle_nodes

    return bundle_nodes.onto(policy, bundle)


def load_inventory(
    source: str | PathLike[str],
    *,
    limit: str | None = None,
    exclude: str | None = None,
    vault: Vault | None = None,
    empty: bool = False,
) -> Inventory:
    """Load an inventory.

    Args:
        source: a file, a folder, an executable, or ``node1,node2``.
        limit, exclude: Ansible's host patterns.
        vault: decrypts values of Ansible Vault.
        empty: clusters without a Node with GPUs are no error.

    Raises:
        InventoryError: the inventory is invalid; with file and line.
    """
    from gpustate import inventory

    return inventory.load(str(source), limit=limit, exclude=exclude, vault=vault, empty=empty)


def lock_file(source: str, lock: bool | str | PathLike[str]) -> str | None:
    """The lock file of a policy; ``None`` if there is none or ``lock`` is false."""
    if not isinstance(lock, bool):
        return str(lock)
    beside = Path(source).parent / LOCK_FILE
    if lock and Path(source).is_file() and (beside.exists() or beside.is_symlink()):
        return str(beside)
    return None


def _check_allowed(policy: Policy, source: str) -> None:
    """Refuse exceptions from unknown rules, including those of groups and nodes outside of the run."""
    exceptions: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("allow",), policy.allow)]
    for section, overrides in (("groups", policy.groups), ("nodes", policy.nodes)):
        exceptions += [
            ((section, name, "allow"), body.get("allow") or {}) for name, body in overrides.items()
        ]
    if not any(allow for _, allow in exceptions):
        return
    from gpustate import compat
    from gpustate.core.layers import Layer

    rules, layer = compat.load(), Layer("fleet", place=source, places=policy.places)
    for path, allow in exceptions:
        for name in allow:
            if name not in rules.rules:
                rules.allow(name, layer.place_of((*path, name)))


def nodes_of(nodes: InventorySource, limit: str | None, exclude: str | None) -> Inventory:
    """The nodes of an inventory, or of its source."""
    from gpustate.core.inventory import Inventory

    if not isinstance(nodes, Inventory):
        return load_inventory(nodes, limit=limit, exclude=exclude)
    if limit is None and exclude is None:
        return nodes
    raise UsageError(
        "limit and exclude need an inventory source, not an Inventory",
        fix="pass them to load_inventory instead",
    )
