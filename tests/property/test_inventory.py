"""Inventories of any shape: what was written is read back, and noise ends in one clear error."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.errors import InventoryError
from gpustate.inventory import load, select
from gpustate.inventory.connection import build
from gpustate.inventory.documents import parse
from gpustate.inventory.ranges import expand
from gpustate.inventory.sshargs import parse as parse_ssh
from gpustate.inventory.store import Value
from gpustate.inventory.templates import Scope

T = TypeVar("T")

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[0-9]{1,2})?", fullmatch=True)
GROUPS = st.sampled_from(["gpu", "rack1", "rack2", "login", "site"])
KEYS = st.sampled_from(["a", "b", "c_1", "gpustate_x", "some"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}\0"), max_size=12)
VALUES = st.one_of(
    TEXTS,
    st.integers(-(10**9), 10**9),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=3),
)
VARS = st.dictionaries(KEYS, VALUES, max_size=3)
#: group: (its variables, its nodes with theirs); groups are not nested.
FLEETS = st.dictionaries(
    GROUPS, st.tuples(VARS, st.dictionaries(NAMES, VARS, max_size=4)), max_size=4
)
Fleet = dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def expected(fleet: Fleet) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Work out, in the plainest way, what every node is in and has."""
    found: dict[str, tuple[list[str], dict[str, Any]]] = {}
    names = {name for _, nodes in fleet.values() for name in nodes}
    for name in names:
        groups = sorted(group for group, (_, nodes) in fleet.items() if name in nodes)
        merged: dict[str, Any] = {}
        for group in groups:
            merged.update(fleet[group][0])
        for _, nodes in fleet.values():
            merged.update(nodes.get(name, {}))
        found[name] = (groups, merged)
    return found


def check(inventory: Inventory, fleet: Fleet) -> None:
    found = {node.name: (list(node.groups), dict(node.vars)) for node in inventory}
    assert found == expected(fleet)
    assert all(node.origins.keys() == node.vars.keys() for node in inventory)
    for node in inventory:
        assert [n.name for n in select(inventory, node.name)] == [node.name]
    for group, (_, nodes) in fleet.items():
        if nodes and group not in found:
            assert {n.name for n in select(inventory, group)} == set(nodes)


@given(FLEETS.filter(lambda fleet: any(nodes for _, nodes in fleet.values())))
def test_a_yaml_inventory_is_read_back(directory: Path, fleet: Fleet) -> None:
    data = {group: {"vars": own, "hosts": nodes} for group, (own, nodes) in fleet.items()}
    for name, text in [
        ("h.yml", yaml.safe_dump(data, sort_keys=False)),
        ("h.json", json.dumps(data)),
    ]:
        (directory / name).write_text(text, encoding="utf-8")
        check(load(str(directory / name)), fleet)


def quoted(value: Any) -> str:
    """Write a value so that a word of the shell, read as a Python literal, is the value."""
    literal = repr(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{literal}"'


@given(FLEETS.filter(lambda fleet: any(nodes for _, nodes in fleet.values())))
def test_an_ini_inventory_is_read_back(directory: Path, fleet: Fleet) -> None:
    lines: list[str] = []
    for group, (own, nodes) in fleet.items():
        lines.append(f"[{group}]")
        for name, variables in nodes.items():
            lines.append(" ".join([name, *(f"{k}={quoted(v)}" for k, v in variables.items())]))
        lines.append(f"[{group}:vars]")
        lines.extend(f"{key} = {value!r}" for key, value in own.items())
    (directory / "h.ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
    check(load(str(directory / "h.ini")), fleet)


NOISE = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab[]:{}&*!|>-?<'\"\\=,#;% \n\t0", max_size=80),
    st.lists(
        st.sampled_from(
            ["[a]", "[a:vars]", "[a:children]", "b", "n1 x=1", "n[1:3]", "all:", "  hosts:", "    n:",
             "  vars: {a: '{{ b }}'}", "- x", "&a *a", "<<: {a: 1}", "ansible_host={{ x }}",
             "n2 ansible_port={{ 1 }}", "n3 ansible_ssh_args='-o a'", "---", "a = [('n', {})]"]
        ),
        max_size=8,
    ).map("\n".join),
)  # fmt: skip


@settings(max_examples=tries(300, 100))
@given(text=NOISE, name=st.sampled_from(["h", "h.ini", "h.yml", "h.json"]))
def test_noise_in_a_file_raises_nothing_but_an_inventory_error(
    directory: Path, text: str, name: str
) -> None:
    (directory / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    attempt(lambda: load(str(directory / name)))
    attempt(lambda: parse(text, "h.yml"))
    attempt(lambda: expand(text, "h"))
    attempt(lambda: parse_ssh(text))


@given(st.binary(max_size=60), st.sampled_from(["h", "h.yml", "h.json"]))
def test_bytes_raise_nothing_but_an_inventory_error(
    directory: Path, data: bytes, name: str
) -> None:
    (directory / name).write_bytes(data)
    attempt(lambda: load(str(directory / name)))


@settings(max_examples=tries(300, 100))
@given(st.one_of(NOISE, st.text(alphabet="gn1,:!&~*?[]()-0@a", max_size=12)))
def test_noise_as_a_limit_or_a_list_raises_nothing_but_an_inventory_error(text: str) -> None:
    nodes = (InventoryNode("gn", ("a",)), InventoryNode("n1", ("a", "g")), InventoryNode("n-1"))
    attempt(lambda: select(Inventory("x", nodes), text.replace("@", "")))
    attempt(lambda: load(f"{text.replace('/', '')},"))


CONNECTION_VARS = st.sampled_from(
    [
        "ansible_host",
        "ansible_port",
        "ansible_user",
        "ansible_password",
        "ansible_become",
        "ansible_become_method",
        "ansible_become_user",
        "ansible_timeout",
        "ansible_connection",
        "ansible_ssh_args",
        "ansible_ssh_common_args",
        "ansible_host_key_checking",
        "ansible_ssh_private_key_file",
        "ansible_become_pass",
        "x",
    ]
)


@given(
    st.dictionaries(
        CONNECTION_VARS,
        st.one_of(
            VALUES,
            st.text(max_size=20),
            st.sampled_from(["{{ x }}", "-o Port={{ x }}", "-J a,b", "-i ~/x", "yes", "{{ x.y }}"]),
            st.floats(),
            st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=1),
        ),
    )
)
def test_any_connection_variables_make_a_valid_connection_or_an_inventory_error(
    variables: dict[str, Any],
) -> None:
    def magic(name: str) -> Any:
        raise KeyError(name)

    notes: list[str] = []
    scope = Scope("n", {k: Value(v, "h:1") for k, v in variables.items()}, magic, [], set())
    attempt(scope.resolved)
    found = attempt(lambda: build("n", scope, notes.append))
    if found is None:
        return
    assert found.kind in {"ssh", "local"}
    assert found.port is None or 1 <= found.port <= 65535
    assert found.strict_host_key in {"yes", "no", "accept-new"}
    assert found.timeout_s > 0
    assert found.kind == "local" or found.host


def attempt(call: Callable[[], T]) -> T | None:
    """Do it; an error of the right kind is fine, and is one line."""
    error: InventoryError | None = None
    try:
        return call()
    except InventoryError as caught:
        error = caught
    assert len(str(error).splitlines()) == 1
    return None
