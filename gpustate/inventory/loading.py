"""Load the value of ``-i`` into an :class:`Inventory`.

The order matters: first all names and groups are read, then the limit is applied, and only the remaining
nodes get their variables and connections resolved. So an inventory may contain nodes that gpustate cannot
manage (Windows, network devices, an encrypted password), as long as they are not selected.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from gpustate.core.inventory import PLAIN_PATH, Inventory, InventoryNode, LaterLayers, VarsLayer
from gpustate.errors import InventoryError
from gpustate.formats.masking import keep_readable, remember_parameters
from gpustate.formats.numbers import parse_uint
from gpustate.formats.words import quote
from gpustate.inventory import (
    connection,
    executable,
    ini,
    kubernetes,
    plain,
    pyinfra_,
    pyinfra_connection,
    slurm,
    yaml_,
)
from gpustate.inventory.documents import parse
from gpustate.inventory.files import below, names_in, read_text
from gpustate.inventory.needs import NotYet, deferring
from gpustate.inventory.patterns import match, restrict
from gpustate.inventory.ranges import is_ipv6
from gpustate.inventory.store import Node, Store
from gpustate.inventory.templates import Scope
from gpustate.inventory.variables import Merger, VarsFiles
from gpustate.inventory.vault import HEADER, Vault

#: Files that Ansible ignores in a directory, and folders that belong to an inventory without being one.
_IGNORED_NAMES = {"group_vars", "host_vars", "vars_plugins", "group_data", "__pycache__"}
_IGNORED_ENDS = (
    *(".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg"),
    ".retry",
)
#: Variables with folders of gpustate on a node.
_FOLDERS = {"gpustate_state_folder", "gpustate_proc_root", "gpustate_sys_root"}
_YAML_ENDS = (".yml", ".yaml", ".json")
#: The beginning of a YAML inventory without an extension, unlike any INI file.
_YAML_HEAD = re.compile(r"---|%YAML|[{?]|(\"[^\"]*\"|'[^']*'|[^\s#:=\[\]]+)\s*:(\s|$)")


def load(
    source: str,
    *,
    limit: str | None = None,
    exclude: str | None = None,
    known_hosts: str | None = None,
    vault: Vault | None = None,
    empty: bool = False,
) -> Inventory:
    """Read an inventory.

    Args:
        source: a file, a directory, a list of nodes with at least one comma, ``kubernetes:KUBECONFIG`` or ``slurm:HOST``.
        limit: a pattern that selects nodes.
        exclude: a pattern that excludes nodes.
        known_hosts: a file of host keys for all nodes, overriding the inventory.
        vault: decrypts values of Ansible Vault on demand.
        empty: clusters without a Node with GPUs are no error.

    Raises:
        InventoryError: an error in the inventory, with file and line if known.
    """
    vault = vault or Vault()
    store = Store()
    base = _read(store, source, vault)
    store.finish()
    clusters = tuple((cluster.path, cluster.context) for cluster in store.clusters)
    if not store.nodes and clusters and empty:
        return Inventory(source, notes=tuple(store.notes), clusters=clusters)
    if not store.nodes and clusters:
        raise kubernetes.no_node(source, store.clusters, store.notes)
    if not store.nodes:
        raise InventoryError(
            "contains no node",
            place=source,
            fix="add one; in YAML, nodes are the keys of hosts: in a group",
        )
    names = list(store.nodes)
    groups = {name: tuple(store.members(name)) for name in store.groups}
    selected_names = frozenset(names) if limit is None else match(limit, names, groups, source)
    if exclude is not None:
        selected = f"{len(selected_names)} nodes in {source}" + (
            f" of --limit {quote(limit)}" if limit else ""
        )
        selected_names -= match(exclude, names, groups, source, "exclude")
        if not selected_names:
            raise InventoryError(
                f"exclude {quote(exclude)} excludes all {selected}", fix="exclude fewer nodes"
            )
    keep_readable((*names, *groups))
    builder = _Builder(store, base, groups, vault)
    file = None if known_hosts is None else os.path.expanduser(known_hosts)

    def built(name: str) -> InventoryNode:
        node = builder.build(store.nodes[name])
        if file is None or node.connection.kind != "ssh":
            return node
        connection = dataclasses.replace(node.connection, known_hosts_file=file)
        return dataclasses.replace(node, connection=connection)

    nodes = tuple(built(name) for name in names if name in selected_names)
    return Inventory(
        source,
        nodes,
        restrict(groups, selected_names),
        tuple(store.notes),
        frozenset(names),
        clusters,
        lambda name: built(name) if name in store.nodes else None,
    )


def _read(store: Store, source: str, vault: Vault) -> str | None:
    """Read ``source`` into ``store``; return the directory of variable files."""
    if not source.strip():
        raise InventoryError("the inventory is empty", fix="pass a file, a directory, or 'node,'")
    if os.path.isdir(source):
        _directory(store, source, vault)
        return source
    if os.path.exists(source):
        _file(store, source, vault)
        # pyinfra has only group_data/, which its reader has read.
        return None if _is_pyinfra(source) else os.path.dirname(source)
    for cluster in (kubernetes, slurm):
        if source == cluster.NAME or source.startswith(cluster.PREFIX):
            cluster.fill_source(store, source)
            return None
    if source.startswith("@"):
        pyinfra_.fill_list(store, source)
        return None
    if "," in source:
        plain.fill(store, source)
        return None
    if source == "localhost":
        plain.fill(store, "localhost,")
        return None
    raise InventoryError(
        "no such file or directory",
        place=source,
        fix=f"if this is a node, write '{source[:60]},' with a comma",
    )


def _directory(store: Store, directory: str, vault: Vault, above: tuple[str, ...] = ()) -> None:
    """Read every inventory in ``directory``, in lexical order."""
    for entry in names_in(directory, above):
        if entry.startswith(".") or entry in _IGNORED_NAMES or entry.endswith(_IGNORED_ENDS):
            continue
        path = os.path.join(directory, entry)
        if os.path.isdir(path):
            _directory(store, path, vault, below(directory, above))
        else:
            _file(store, path, vault, among_others=True)


def _is_pyinfra(path: str) -> bool:
    return path.endswith(".py") and not executable.is_executable(path)


def _file(store: Store, path: str, vault: Vault, *, among_others: bool = False) -> None:
    """Read one file of any format."""
    if executable.is_executable(path):
        executable.fill(store, path)
        return
    if _is_pyinfra(path):
        pyinfra_.fill(store, path)
        return
    text = read_text(path)
    if text.startswith(HEADER):
        text = vault.decrypt(text, path)
    if path.endswith(".toml"):
        raise InventoryError(
            "TOML inventories are unsupported", place=path, fix="convert it to YAML"
        )
    if not text.strip():
        if not among_others:
            raise InventoryError("is empty, wanted nodes", place=path)
    elif path.endswith(_YAML_ENDS) or _begins_as_yaml(path, text):
        document = parse(text, path)
        if isinstance(document.data, dict) and "_meta" in document.data:
            executable.fill_from(store, document.data, path, path)
        elif kubernetes.is_ours(document.data):
            kubernetes.fill(store, document)
        else:
            yaml_.fill(store, document)
    else:
        ini.fill(store, text, path)


def _begins_as_yaml(path: str, text: str) -> bool:
    """Whether a file without extension is YAML, by its first significant line."""
    if os.path.splitext(path)[1]:
        return False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            return _YAML_HEAD.match(stripped) is not None
    return False


def _check_folder(node: str, name: str, value: Any, place: str) -> None:
    """Require a plain absolute path, because scripts that run as root remove files below it."""
    if not isinstance(value, str) or not re.fullmatch(PLAIN_PATH, value) or "/../" in f"{value}/":
        raise InventoryError(
            f"{node}: {name} is {quote(value)}, wanted an absolute path of letters, digits and ._+@:-",
            place=place,
        )


def _check_seconds(node: str, name: str, value: Any, place: str) -> None:
    number = parse_uint(str(value))
    if number is None or not 5 <= number <= 3600:
        raise InventoryError(
            f"{node}: {name} is {quote(str(value))}, wanted seconds from 5 to 3600", place=place
        )


class _Builder:
    """Builds an :class:`InventoryNode` for each node."""

    def __init__(
        self, store: Store, base: str | None, groups: dict[str, tuple[str, ...]], vault: Vault
    ) -> None:
        self.store = store
        self.groups = groups
        self.vault = vault
        self.files = VarsFiles(base, store, vault)
        self.merger = Merger(store, self.files)
        self.plain: set[int] = set()
        self.layers: dict[int, VarsLayer] = {}

    def build(self, node: Node) -> InventoryNode:
        """Return ``node`` with its variables merged and resolved, and its connection."""
        merged = self.merger.of(node)
        groups = tuple(sorted(self.store.closure(node)))
        magic = self._magic(node, groups)
        scope = Scope(node.name, merged, magic, self.files.encrypted, self.plain, self.vault)
        resolved = scope.resolved()
        for name in _FOLDERS.intersection(resolved):
            _check_folder(node.name, name, resolved[name], merged[name].origin)
        if (name := "gpustate_probe_timeout") in resolved:
            _check_seconds(node.name, name, resolved[name], merged[name].origin)
        build = pyinfra_connection.build if node.dialect == "pyinfra" else connection.build
        return InventoryNode(
            name=node.name,
            groups=groups,
            vars=resolved,
            origins={name: value.origin for name, value in merged.items()},
            connection=build(node.name, scope, self.store.note),
            groups_by_strength=self.store.closure(node),
            layers=self._layers_in_time(node, scope) if "gpustate" in merged else (),
        )

    def _layers_in_time(self, node: Node, scope: Scope) -> Sequence[VarsLayer]:
        try:
            with deferring():
                return self._layers(node, scope)
        except NotYet:
            return LaterLayers(lambda: self._layers(node, scope))

    def _layers(self, node: Node, scope: Scope) -> tuple[VarsLayer, ...]:
        """The variable ``gpustate`` of each scope; one object for all nodes with equal values."""
        layers: list[VarsLayer] = []
        for kind, name, raw in self.merger.layers(node):
            value = scope.value_of(raw, "gpustate")
            remember_parameters(value)
            layer = self.layers.get(id(value)) if value is raw.value else None
            if layer is None:
                layer = VarsLayer(kind, name, value, raw.origin, self.store.places(raw.value))
            if value is raw.value:
                self.layers[id(value)] = layer
            layers.append(layer)
        return tuple(layers)

    def _magic(self, node: Node, groups: tuple[str, ...]) -> Callable[[str], Any]:
        """Return Ansible's special variables by name."""

        def of(name: str) -> Any:
            match name:
                case "inventory_hostname":
                    return node.name
                case "inventory_hostname_short":
                    address = is_ipv6(node.name) or node.name.replace(".", "").isdigit()
                    return node.name if address else node.name.split(".")[0]
                case "group_names":
                    return list(groups)
                case "groups":
                    return {group: list(members) for group, members in self.groups.items()}
                case "inventory_file":
                    return None if node.source is None else os.path.abspath(node.source)
                case "inventory_dir":
                    return (
                        None
                        if node.source is None
                        else os.path.dirname(os.path.abspath(node.source))
                    )
                case _:
                    raise KeyError(name)

        return of
