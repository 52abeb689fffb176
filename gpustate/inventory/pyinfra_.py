"""pyinfra's ``inventory.py``: Python, whose top-level lists are groups of nodes.

::

    gpu = ["gpu-01", ("gpu-02", {"ssh_port": 2222})]
    slurm = (["gpu-01"], {"ssh_user": "ubuntu", "_sudo": True})

The file runs in a separate namespace, without pyinfra. As there, a name that begins with ``_``
is private, all nodes are also in a group named like the file, ``group_data/GROUP.py`` next to it adds
variables, later groups win over earlier ones, and a node's own data wins over all.

Sources:
    pyinfra 3.10, "Inventory & Data", "Connectors: SSH" and ``pyinfra_cli/inventory.py``.
"""

from __future__ import annotations

import ast
import os
from typing import Any

from gpustate.documents import Json
from gpustate.errors import InventoryError
from gpustate.formats.words import at, quote
from gpustate.inventory.files import names_in, read_text
from gpustate.inventory.pyinfra_connectors import nodes_of
from gpustate.inventory.store import Store, Value, variable_name

_PLAIN = (str, int, float, bool, type(None), list, tuple, dict)


def fill(store: Store, path: str) -> None:
    """Run ``path`` and read its groups into ``store``.

    Raises:
        InventoryError: the file cannot be run, or a group contains something that is not a node.
    """
    variables, lines, _ = _run(path)
    groups = {
        name: value
        for name, value in variables.items()
        if not name.startswith("_") and isinstance(value, list | tuple)
    }
    before = set(store.nodes)
    for priority, (name, value) in enumerate(groups.items()):
        _group(store, path, name, value, at(path, lines.get(name)), priority)
    file_group = os.path.basename(path).rsplit(".", 1)[0]
    if file_group not in groups:
        store.group(file_group, path).priority = len(groups)
        for name in list(store.nodes):
            if name not in before:
                store.node(name, file_group, source=path)
    _group_data(store, os.path.join(os.path.dirname(path), "group_data"))


def _group(store: Store, path: str, name: str, value: Any, place: str, priority: int) -> None:
    group = store.group(name, place)
    if name != "all":
        group.priority = priority
    hosts: Any = value
    data: dict[Any, Any] = {}
    if isinstance(value, tuple) and value and isinstance(value[0], list | tuple):
        if len(value) != 2 or not isinstance(value[1], dict):
            raise InventoryError(f"the group {name} is a tuple but not (nodes, data)", place=place)
        hosts, data = value
    for host in hosts:
        _node(store, path, name, host, place)
    for key, item in data.items():
        store.set_group_var(name, key, Value(item, place))


def _node(store: Store, path: str, group: str, host: Any, place: str) -> None:
    data: Any = {}
    if isinstance(host, tuple) and len(host) == 2:
        host, data = host
    if not isinstance(host, str) or not isinstance(data, dict):
        raise InventoryError(
            f"the group {group} contains {quote(host)}, wanted a name or (name, data)",
            place=place,
            fix=f"rename it to _{group} if it is not a group",
        )
    for named in nodes_of(host, place):
        node = store.nodes.get(named.name)
        if node is None:
            node = store.node(named.name, group, source=path, dialect="pyinfra")
            for key, item in named.data.items():
                node.vars[key] = Value(item, place)
        else:
            store.node(named.name, group, source=path)
        for group_name in named.groups:
            store.node(named.name, store.group(group_name, place).name, source=path)
        for key, item in data.items():
            node.vars[variable_name(key, place)] = Value(item, place)


def fill_list(store: Store, source: str) -> None:
    """Read a list on the command line with connectors: ``@docker/a,@local``.

    Raises:
        InventoryError: an invalid name, or an unsupported connector.
    """
    place = f"inventory list {quote(source)}"
    for item in filter(None, (item.strip() for item in source.split(","))):
        _node(store, source, "ungrouped", item, place)


def _group_data(store: Store, directory: str) -> None:
    """Read ``group_data/GROUP.py`` for each group there is."""
    if not os.path.isdir(directory):
        return
    for entry in names_in(directory):
        name, extension = os.path.splitext(entry)
        if extension != ".py" or name.startswith("_"):
            continue
        path = os.path.join(directory, entry)
        if name not in store.groups:
            store.note(f"{path}: not read, because there is no group {name}")
            continue
        variables, lines, imported = _run(path)
        chosen = variables.get("__all__")
        for key, value in variables.items():
            listed = key in chosen if isinstance(chosen, list | tuple) else key not in imported
            if listed and not key.startswith("__") and isinstance(value, _PLAIN):
                store.set_group_var(name, key, Value(value, at(path, lines.get(key))))


def _run(path: str) -> tuple[Json, dict[str, int], set[str]]:
    """Run one Python file; return its names, the lines they are set in, and what it imported."""
    text = read_text(path)
    namespace: Json = {"__file__": path, "__name__": "gpustate_inventory"}
    try:
        tree = ast.parse(text, path)
        exec(compile(tree, path, "exec"), namespace)
    except SyntaxError as error:
        raise InventoryError(
            f"is not Python: {error.msg}", place=at(error.filename or path, error.lineno)
        ) from error
    except (Exception, SystemExit) as error:
        raise InventoryError(
            f"{type(error).__name__} while running it: {quote(error, 200)}",
            place=at(path, _line_of(error, path)),
        ) from error
    namespace.pop("__builtins__", None)
    lines: dict[str, int] = {}
    imported: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imported |= {(a.asname or a.name.split(".")[0]) for a in statement.names}
        for child in ast.walk(statement):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                lines.setdefault(child.id, child.lineno)
    return namespace, lines, imported


def _line_of(error: BaseException, path: str) -> int | None:
    """Return the last line of ``path`` that the error came through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
