"""Precedence of a node's variables.

From lowest to highest: ``all`` in the inventory, its groups in the inventory, ``group_vars/all``,
``group_vars/`` of its groups, the node in the inventory, ``host_vars/``. Among groups the deeper one takes
precedence over its parents, then the higher ``ansible_group_priority``, then the later name. A variable is
replaced as a whole; mappings are not merged. The exception is ``gpustate``, of which the values of all scopes are
kept and merged (:mod:`gpustate.core.layers`).

``group_vars/NAME`` is a directory, or a file without extension, ``.yml``, ``.yaml`` or ``.json``. Only the first
of these is read, with a note on the others. A file that is encrypted as a whole with Ansible Vault is read if
there is a password; otherwise there is a note.

Sources:
    Ansible, "Using variables: understanding variable precedence", 3 to 10 (without playbooks).
"""

from __future__ import annotations

import os
from typing import Any

from gpustate.errors import InventoryError
from gpustate.formats.masking import is_secret_name, remember
from gpustate.formats.words import kind_of
from gpustate.inventory.documents import parse
from gpustate.inventory.files import below, names_in, read_text
from gpustate.inventory.store import Node, Store, Value, variable_name
from gpustate.inventory.vault import HEADER, HINT, Vault

_EXTENSIONS = ("", ".yml", ".yaml", ".json")


class VarsFiles:
    """``group_vars/`` and ``host_vars/`` next to an inventory; each file is read once.

    Args:
        base: their directory; None if the inventory is not a file.
        store: receives the notes.
        vault: decrypts files that are encrypted as a whole.
    """

    def __init__(self, base: str | None, store: Store, vault: Vault | None = None) -> None:
        self.store = store
        self.vault = vault or Vault()
        self.encrypted: list[str] = []
        self._listings: dict[str, tuple[str, frozenset[str]]] = {}
        for kind in ("group_vars", "host_vars"):
            directory = None if base is None else os.path.join(base, kind)
            if directory is not None and os.path.isdir(directory):
                self._listings[kind] = (directory, frozenset(names_in(directory)))
        self._groups: dict[str, dict[str, Value]] = {}

    def group(self, name: str) -> dict[str, Value]:
        """Return the variables of a group in the files."""
        variables = self._groups.get(name)
        if variables is None:
            variables = self._groups[name] = self._read("group_vars", name)
            if "ansible_group_priority" in variables:
                self.store.note(
                    f"{variables['ansible_group_priority'].origin}: ansible_group_priority is used only"
                    " in the inventory itself"
                )
        return variables

    def node(self, name: str) -> dict[str, Value]:
        """Return the variables of a node in the files."""
        return self._read("host_vars", name)

    def _read(self, kind: str, name: str) -> dict[str, Value]:
        if kind not in self._listings:
            return {}
        directory, entries = self._listings[kind]
        names = [name + extension for extension in _EXTENSIONS if name + extension in entries]
        if not names:
            return {}
        for ignored in names[1:]:
            self.store.note(
                f"{os.path.join(directory, ignored)} is not read: {names[0]} takes precedence"
            )
        variables: dict[str, Value] = {}
        path = os.path.join(directory, names[0])
        for file in _files_below(path) if os.path.isdir(path) else [path]:
            variables.update(self._load(file))
        return variables

    def _load(self, path: str) -> dict[str, Value]:
        text = read_text(path)
        secret = text.startswith(HEADER)
        if secret and not self.vault.usable:
            self.encrypted.append(path)
            self.store.note(f"{path} is encrypted with Ansible Vault and was not read; {HINT}")
            return {}
        document = parse(self.vault.decrypt(text, path) if secret else text, path)
        data: Any = document.data
        if data is None:
            return {}
        if not isinstance(data, dict):
            raise InventoryError(
                f"contains {kind_of(data)}, wanted a mapping of variables", place=path
            )
        variables: dict[str, Value] = {}
        for key, value in data.items():
            place = document.place(data, key)
            variables[variable_name(key, place)] = Value(value, place)
            if secret and (is_secret_name(str(key)) or not str(key).startswith("ansible_")):
                remember(value)
            self.store.keep_places(key, value, document)
        return variables


def _files_below(directory: str, above: tuple[str, ...] = ()) -> list[str]:
    """Return the files of a directory of variables, in the order they are read."""
    paths: list[str] = []
    for entry in names_in(directory, above):
        if entry.startswith(".") or entry.endswith("~"):
            continue
        path = os.path.join(directory, entry)
        extension = os.path.splitext(entry)[1]
        if os.path.isdir(path):
            if not extension:
                paths.extend(_files_below(path, below(directory, above)))
        elif extension in _EXTENSIONS:
            paths.append(path)
    return paths


class Merger:
    """Merges a node's variables; those of groups are merged once per set of groups."""

    def __init__(self, store: Store, files: VarsFiles) -> None:
        self.store = store
        self.files = files
        self._by_groups: dict[tuple[str, ...], dict[str, Value]] = {}

    def of(self, node: Node) -> dict[str, Value]:
        """Return the variables of ``node``, the narrowest scope taking precedence."""
        groups = self.store.closure(node)
        shared = self._by_groups.get(groups)
        if shared is None:
            shared = {}
            for name in ("all", *groups):
                shared.update(self.store.groups[name].vars)
            for name in ("all", *groups):
                shared.update(self.files.group(name))
            self._by_groups[groups] = shared
        return {**shared, **node.vars, **self.files.node(node.name)}

    def layers(self, node: Node, name: str = "gpustate") -> list[tuple[str, str, Value]]:
        """Return one variable in every scope: scope, name of group or node, value."""
        groups = self.store.closure(node)
        sources = [
            *(("fleet", "", vars_.get(name)) for vars_ in (self.store.groups["all"].vars,)),
            *(("group", group, self.store.groups[group].vars.get(name)) for group in groups),
            ("fleet", "", self.files.group("all").get(name)),
            *(("group", group, self.files.group(group).get(name)) for group in groups),
            ("node", node.name, node.vars.get(name)),
            ("node", node.name, self.files.node(node.name).get(name)),
        ]
        return [(scope, title, value) for scope, title, value in sources if value is not None]
