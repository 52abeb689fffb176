"""Where policies, inventories and lock files are read from; little is imported for that."""

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

    #: A policy, or what stands for one on the command line: a file, or the name of a state.
    PolicySource = Policy | str | PathLike[str]
    #: An inventory, or what stands after ``-i``: a file, a folder, a program, or ``node1,node2``.
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
) -> Policy:
    """Read a policy.

    Args:
        source: a Python file, gpustate's YAML, a file of the GPU Operator, or the name of a state.
        changes: what ``--set``, ``--values`` and ``--patch`` change in it.
        bundle: install every package from this bundle.
        strict: refuse an Operator file with keys that do nothing, instead of a note.
        release: read an Operator file as this release of the Operator does.
        origins: find out where the values of a Python file stand.

    Raises:
        PolicyError: with the place, what is wrong there, and the next move.
    """
    from gpustate import policies

    name = str(source)
    if not name:
        raise UsageError("no policy", fix="give a Python file, an Operator file or a state's name")
    policy = policies.load(name, changes=changes, origins=origins, strict=strict, release=release)
    _check_allowed(policy, name)
    if bundle is None and not any(state.brings_bundle for state in policy.states):
        return policy
    from gpustate.resolver import bundle_nodes

    return bundle_nodes.onto(policy, bundle)


def load_inventory(
    source: str | PathLike[str],
    *,
    limit: str | None = None,
    exclude: str | None = None,
    vault: Vault | None = None,
) -> Inventory:
    """Read an inventory.

    Args:
        source: a file, a folder, an executable, or ``node1,node2``.
        limit, exclude: Ansible's host patterns.
        vault: decrypts what is encrypted with Ansible Vault.

    Raises:
        InventoryError: with file and line where there is one.
    """
    from gpustate import inventory

    return inventory.load(str(source), limit=limit, exclude=exclude, vault=vault)


def lock_file(source: str, lock: bool | str | PathLike[str]) -> str | None:
    """The lock file that counts for a policy; ``None`` where there is none, or none is wanted."""
    if not isinstance(lock, bool):
        return str(lock)
    beside = Path(source).parent / LOCK_FILE
    if lock and Path(source).is_file() and (beside.exists() or beside.is_symlink()):
        return str(beside)
    return None


def _check_allowed(policy: Policy, source: str) -> None:
    """Refuse exceptions from rules that do not exist, also for groups and nodes that are not in the run."""
    exceptions: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("allow",), policy.allow)]
    for section, overrides in (("groups", policy.groups), ("nodes", policy.nodes)):
        exceptions += [
            ((section, name, "allow"), body.get("allow") or {}) for name, body in overrides.items()
        ]
    if not any(allow for _, allow in exceptions):
        return
    from gpustate import compat
    from gpustate.core.layers import Layer
    from gpustate.engine import gate

    rules, whole = compat.load(), Layer("fleet", place=source, places=policy.places)
    for path, allow in exceptions:
        for name in allow:
            if name not in rules.rules:
                gate.refuse_unknown_rule(name, whole.place_of((*path, name)), rules)
