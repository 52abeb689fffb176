"""Ansible's YAML inventories: groups with ``hosts``, ``vars`` and ``children``, nested.

The keys of the file are groups. Under ``hosts`` a key may be a range. Other keys of a group are ignored with a
note, as Ansible ignores them with a warning.

Sources:
    ``ansible.builtin.yaml`` of ansible-core 2.19.
"""

from __future__ import annotations

from typing import Any

from gpustate.errors import InventoryError
from gpustate.formats.words import kind_of, quote, quote_name
from gpustate.inventory.documents import Document
from gpustate.inventory.ranges import expand
from gpustate.inventory.store import Store, Value, variable_name

_SECTIONS = ("vars", "children", "hosts")


def fill(store: Store, document: Document) -> None:
    """Read the groups of ``document`` into ``store``.

    Raises:
        InventoryError: the document is not an inventory.
    """
    data = document.data
    if data is None:
        raise InventoryError("is empty, wanted groups", place=document.path)
    if not isinstance(data, dict):
        raise InventoryError(
            f"contains {kind_of(data)}, wanted a mapping of groups",
            place=document.path,
            fix="begin with 'all:' and put 'hosts:' under it",
        )
    if "plugin" in data and not isinstance(data["plugin"], dict):
        raise InventoryError(
            f"is the configuration of Ansible's inventory plugin {quote(data['plugin'])},"
            " which is unsupported",
            place=document.place(data, "plugin"),
            fix=f"save its output to a file: ansible-inventory -i {document.path} --list > nodes.json",
        )
    for name, body in data.items():
        _group(store, document, name, body, document.place(data, name))


def _group(store: Store, document: Document, name: Any, body: Any, place: str) -> str | None:
    """Read one group; None if it is not a group."""
    if body is not None and not isinstance(body, dict):
        store.note(f"{place}: {quote(name)} is {kind_of(body)}, not a group, and was not read")
        return None
    group = store.group(name, place)
    for key, section in (body or {}).items():
        key_place = document.place(body, key)
        if key not in _SECTIONS:
            store.note(
                f"{key_place}: {quote(key)} in the group {quote_name(group.name)} was not read: a group may have only"
                " hosts, vars and children"
            )
            continue
        if isinstance(section, str):
            section = {section: None}
            document.lines[id(section)] = {}
        if section is None:
            continue
        if not isinstance(section, dict):
            raise InventoryError(
                f"{key} of the group {quote_name(group.name)} is {kind_of(section)}, wanted a mapping",
                place=key_place,
                fix="write 'name:' under it, with a colon and without '- '",
            )
        _section(store, document, group.name, str(key), section, key_place)
    return group.name


def _section(
    store: Store, document: Document, group: str, key: str, section: dict[Any, Any], origin: str
) -> None:
    has_lines = document.lines.get(id(section))
    for name, body in section.items():
        place = document.place(section, name) if has_lines else origin
        if key == "vars":
            store.keep_places(name, body, document)
            store.set_group_var(group, name, Value(body, place))
        elif key == "children":
            child = _group(store, document, name, body, place)
            if child is not None:
                store.add_child(group, child, place)
        else:
            _nodes(store, document, group, name, body, place)


def _nodes(
    store: Store, document: Document, group: str, pattern: Any, body: Any, place: str
) -> None:
    if not isinstance(pattern, str):
        raise InventoryError(
            f"a node's name is {kind_of(pattern)} ({quote(pattern)}), wanted a string",
            place=place,
            fix="quote it",
        )
    if body is not None and not isinstance(body, dict):
        raise InventoryError(
            f"{quote(pattern)} has {kind_of(body)}, wanted a mapping of variables", place=place
        )
    names, port = expand(pattern, place)
    variables: dict[str, Value] = {}
    for key, value in (body or {}).items():
        key_place = document.place(body, key)
        variables[variable_name(key, key_place)] = Value(value, key_place)
        store.keep_places(key, value, document)
    first = None if port is None else Value(port, place)
    for name in names:
        store.node(name, group, source=document.path, port=first).vars.update(variables)
