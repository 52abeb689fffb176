"""Executable inventories: a program that prints Ansible's JSON.

It is run with ``--list``. If the output has no ``_meta.hostvars``, it is run again for every
node with ``--host NAME``, like in Ansible, which is slow. The same JSON in a ``.json`` file, the output of
``ansible-inventory --list``, is read too.

Sources:
    Ansible, "Developing dynamic inventory"; ``ansible.builtin.script`` of ansible-core 2.19.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from gpustate.documents import Json
from gpustate.errors import InventoryError
from gpustate.formats.words import kind_of, quote
from gpustate.inventory.documents import parse_json
from gpustate.inventory.files import LIMIT_MIB
from gpustate.inventory.ranges import check_name
from gpustate.inventory.store import Store, Value, variable_name

TIMEOUT_S = 60.0

_GROUP_KEYS = {"hosts", "vars", "children"}


def is_executable(path: str) -> bool:
    """Whether ``path`` is a program: executable, and with the beginning of one.

    The executable bit alone is not enough, because on some file systems every file has it.
    """
    if not os.access(path, os.X_OK) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError:
        return False
    return head.startswith(b"#!") or head == b"\x7fELF"


def fill(store: Store, path: str) -> None:
    """Run ``path`` and read its output into ``store``.

    Raises:
        InventoryError: it fails, takes too long, or prints something else.
    """
    place = f"{path} --list"
    data = parse_json(run(path, "--list"), place)
    fill_from(store, data, path, place, lambda name: _host_vars_of(path, name))


def fill_from(
    store: Store, data: Any, path: str, place: str, query: Callable[[str], Json] | None = None
) -> None:
    """Read ``data``, in the shape of ``--list``, into ``store``."""
    if not isinstance(data, dict):
        raise InventoryError(f"printed {kind_of(data)}, wanted an object of groups", place=place)
    nodes: dict[str, None] = {}
    for name, body in data.items():
        if name != "_meta":
            _group(store, name, body, path, place, nodes)
    host_vars = _host_vars(data, place)
    for name in nodes:
        host_data: Any = {}
        if host_vars is not None:
            host_data = host_vars.get(name, {})
        elif query is not None:
            host_data = query(name)
        if not isinstance(host_data, dict):
            raise InventoryError(
                f"the variables of {name} are {kind_of(host_data)}, wanted an object", place=place
            )
        variables = store.nodes[name].vars
        for key, value in host_data.items():
            variables[variable_name(key, place)] = Value(value, place)
    for name in host_vars or {}:
        if name not in nodes:
            store.note(f"{place}: {quote(name)} has variables but is in no group; it was not read")


def _host_vars(data: Json, place: str) -> Json | None:
    if "_meta" not in data:
        return None
    meta = data["_meta"]
    hosts = meta.get("hostvars") if isinstance(meta, dict) else None
    if not isinstance(hosts, dict):
        raise InventoryError(f"_meta.hostvars is {kind_of(hosts)}, wanted an object", place=place)
    return hosts


def _group(
    store: Store, name: str, body: Any, path: str, place: str, nodes: dict[str, None]
) -> None:
    """Read one group: an object with hosts, vars and children, or only a list of nodes."""
    store.group(name, place)
    if not isinstance(body, dict):
        body = {"hosts": body}
    elif not _GROUP_KEYS & body.keys():
        # The oldest format: a node's name with its variables.
        body = {"hosts": [name], "vars": body}
    for key, type_ in (("hosts", list), ("vars", dict), ("children", list)):
        if key in body and not isinstance(body[key], type_):
            raise InventoryError(
                f"{key} of the group {quote(name)} is {kind_of(body[key])},"
                f" wanted {kind_of(type_())}",
                place=place,
            )
    for node in body.get("hosts", ()):
        if not isinstance(node, str) or not node:
            raise InventoryError(
                f"the group {quote(name)} has the node {quote(node)}, wanted a string", place=place
            )
        nodes[check_name(node, place)] = None
        store.node(node, name, source=path)
    for key, value in body.get("vars", {}).items():
        store.set_group_var(name, key, Value(value, place))
    for child in body.get("children", ()):
        store.add_child(name, store.group(child, place).name, place)


def _host_vars_of(path: str, name: str) -> Json:
    text = run(path, "--host", name)
    variables = parse_json(text, f"{path} --host {name}") if text.strip() else {}
    if isinstance(variables, dict):
        return variables
    raise InventoryError(
        f"printed {kind_of(variables)}, wanted an object", place=f"{path} --host {name}"
    )


def run(path: str, *arguments: str) -> str:
    """Return the output of ``path``, limited in time and size."""
    return _run([os.path.abspath(path), *arguments], " ".join((path, *arguments)))


def shell(command: str) -> str:
    """Return the output of a shell command, with the same limits."""
    return _run(["/bin/sh", "-c", command], f"the command {quote(command)}")


def _run(words: list[str], place: str) -> str:
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InventoryError(
            f"cannot be run: {error.strerror}", place=place, fix="check its first line (#!)"
        ) from error
    with process:
        try:
            output, complaint = _collect(process, place)
        except BaseException:
            # Its children too, which may hold the pipe open.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise InventoryError(_ending(process.returncode, complaint), place=place)
    try:
        return output.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InventoryError(
            f"printed invalid UTF-8 (offset {error.start})", place=place
        ) from error


def _collect(process: subprocess.Popen[bytes], place: str) -> tuple[bytes, bytes]:
    """Read both outputs to the end, and wait for the program."""
    deadline = time.monotonic() + TIMEOUT_S
    if process.stdout is None or process.stderr is None:
        raise InventoryError("its output could not be captured", place=place)
    buffers = {process.stdout: bytearray(), process.stderr: bytearray()}
    late = InventoryError(f"timed out after {TIMEOUT_S:g} s", place=place)
    with selectors.DefaultSelector() as selector:
        for stream in buffers:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise late
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                buffer = buffers[key.fileobj]  # type: ignore[index]
                buffer += chunk
                if len(buffer) > LIMIT_MIB * 1024 * 1024:
                    raise InventoryError(f"printed more than {LIMIT_MIB} MiB", place=place)
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise late from error
    return bytes(buffers[process.stdout]), bytes(buffers[process.stderr])


def _ending(code: int, complaint: bytes) -> str:
    how = f"failed with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    return f"{how}: {quote(lines[-1].strip(), 200)}" if lines else f"{how} without output"
