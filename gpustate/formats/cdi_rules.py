"""Errors that make container runtimes ignore a whole CDI specification.

containerd, CRI-O, docker and podman read specifications with one Go library, which accepts a file as a whole or
not at all. With an unknown key, a duplicate device or a device without edits, no device of the file is available
to containers, and the runtime only logs it.

Sources:
    tags.cncf.io/container-device-interface v1.1.1: pkg/cdi (spec.go, device.go, container-edits.go),
    pkg/parser/parser.go; specs-go v1.1.1: config.go (keys), version.go (minimum version of each feature).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.formats.words import quote, quote_name

VERSIONS = (
    *("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0"),
    *("0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"),
)
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_KIND_PART = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_TEXT, _TEXTS, _MAPPING, _BOOLEAN = "text", "a list of texts", "a mapping", "true or false"
_NUMBER, _UNSIGNED, _UNSIGNEDS = "a number", "a number from 0 on", "a list of numbers from 0 on"

_NODE = {
    **dict.fromkeys(("path", "hostPath", "type", "permissions"), _TEXT),
    **dict.fromkeys(("major", "minor"), _NUMBER),
    **dict.fromkeys(("fileMode", "uid", "gid"), _UNSIGNED),
}
_HOOK = {"hookName": _TEXT, "path": _TEXT, "args": _TEXTS, "env": _TEXTS, "timeout": _NUMBER}
_MOUNT = {"hostPath": _TEXT, "containerPath": _TEXT, "options": _TEXTS, "type": _TEXT}
_RDT = {
    **dict.fromkeys(("closID", "l3CacheSchema", "memBwSchema"), _TEXT),
    **{"schemata": _TEXTS, "enableMonitoring": _BOOLEAN},
}
_NET = {"hostInterfaceName": _TEXT, "name": _TEXT}
#: A list in a kind is a list of mappings with these keys.
_EDITS: JsonView = {
    **{"env": _TEXTS, "deviceNodes": [_NODE], "netDevices": [_NET], "hooks": [_HOOK]},
    **{"mounts": [_MOUNT], "intelRdt": _RDT, "additionalGids": _UNSIGNEDS},
}
_SPEC: JsonView = {
    **{"cdiVersion": _TEXT, "kind": _TEXT, "annotations": _MAPPING},
    "devices": [{"name": _TEXT, "annotations": _MAPPING, "containerEdits": _EDITS}],
    "containerEdits": _EDITS,
}


def refusals(data: JsonView) -> Iterator[str]:
    """Yield the errors for which a whole specification is ignored."""
    shape = list(_shape(data, _SPEC, ""))
    yield from shape
    if shape:
        return  # the following checks rely on it
    devices = [device or {} for device in data.get("devices") or ()]
    edits = [data.get("containerEdits") or {}, *(d.get("containerEdits") or {} for d in devices)]
    yield from _version(data, devices, edits)
    vendor, slash, kind = _text(data.get("kind")).partition("/")
    for part in (vendor, kind if slash else ""):
        if not _KIND_PART.fullmatch(part):
            yield f"its kind is {quote(data.get('kind'))}, wanted vendor/class"
            break
    names = [_text(device.get("name")) for device in devices]
    for name, device in zip(names, devices, strict=True):
        if not _DEVICE.fullmatch(name):
            yield f"{quote(name)} is not a valid device name"
        if not any(_filled(device.get("containerEdits") or {})):
            yield f"the device {quote_name(name)} has no edits"
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"the device {quote_name(name)} is defined twice"
    if not devices:
        yield "it has no devices"
    for edit in edits:
        yield from _edits(edit)


def _shape(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Unknown keys, and values of a wrong kind; ``None`` is always valid."""
    if value is None:
        return
    if isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{place} is not a list"
            return
        for number, item in enumerate(value):
            yield from _shape(item, kind[0], f"{place}[{number}]")
    elif isinstance(kind, Mapping):
        if not isinstance(value, Mapping):
            yield f"{place} is not a mapping"
            return
        for key, entry in value.items():
            path = f"{place}.{key}" if place else str(key)
            if key not in kind:
                yield f"unknown CDI key {quote_name(path)}"
            else:
                yield from _shape(entry, kind[key], path)
    elif not _is(value, kind):
        yield f"{place} is {quote(value, 40)}, wanted {kind}"


def _is(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return not isinstance(value, list | dict)
    if kind == _NUMBER:
        return type(value) is int
    if kind == _UNSIGNED:
        return type(value) is int and 0 <= value < 2**32
    if kind == _BOOLEAN:
        return isinstance(value, bool)
    if kind == _MAPPING:
        return isinstance(value, Mapping)
    of = _TEXT if kind == _TEXTS else _UNSIGNED
    return isinstance(value, list) and all(item is None or _is(item, of) for item in value)


def _version(data: JsonView, devices: list[Json], edits: list[Json]) -> Iterator[str]:
    version = _text(data.get("cdiVersion")).removeprefix("v")
    if version not in VERSIONS:
        yield f"its cdiVersion is {quote(data.get('cdiVersion'))}, wanted one up to {VERSIONS[-1]}"
        return
    needed = "0.3.0"
    if any(mount.get("type") for edit in edits for mount in _each(edit, "mounts")):
        needed = "0.4.0"
    if any(node.get("hostPath") for edit in edits for node in _each(edit, "deviceNodes")) or any(
        _text(device.get("name"))[:1].isdecimal() for device in devices
    ):
        needed = "0.5.0"
    annotated = any(holder.get("annotations") for holder in (data, *devices))
    if annotated or "." in _text(data.get("kind")).partition("/")[2]:
        needed = "0.6.0"
    if any(e.get("intelRdt") is not None or e.get("additionalGids") for e in edits):
        needed = "0.7.0"
    rdt = [e.get("intelRdt") or {} for e in edits]
    newest = any(e.get("netDevices") for e in edits)
    if newest or any(r.get("schemata") is not None or r.get("enableMonitoring") for r in rdt):
        needed = "1.1.0"
    if VERSIONS.index(version) < VERSIONS.index(needed):
        yield f"its cdiVersion is {version}, but its content needs {needed}"


def _edits(edit: JsonView) -> Iterator[str]:
    yield from _environment(edit)
    for node in _each(edit, "deviceNodes"):
        path = _text(node.get("path"))
        if not path:
            yield "a device node has no path"
        if _text(node.get("type")) not in ("", "b", "c", "u", "p"):
            yield f"{path}: {quote(node.get('type'))} is not a device node type"
        permissions = _text(node.get("permissions"))
        if permissions != "none" and permissions.strip("rwm"):
            yield f"{path}: invalid permissions {quote(permissions)}"
    for hook in _each(edit, "hooks"):
        if _text(hook.get("hookName")) not in _HOOKS:
            yield f"{quote(hook.get('hookName'))} is not a hook"
        if not _text(hook.get("path")):
            yield f"the hook {quote(hook.get('hookName'))} has no path"
        yield from _environment(hook)
    for mount in _each(edit, "mounts"):
        if not _text(mount.get("hostPath")) or not _text(mount.get("containerPath")):
            yield "a mount lacks hostPath or containerPath"
    closid = _text((edit.get("intelRdt") or {}).get("closID"))
    if closid != "/" and (closid in (".", "..") or set(closid) & set("/\n") or len(closid) >= 4096):
        yield f"intelRdt.closID is {quote(closid, 40)}, wanted a file's name or /"
    for key in ("hostInterfaceName", "name"):
        net_values = [_text(net.get(key)) for net in _each(edit, "netDevices")]
        if not all(net_values) or len(set(net_values)) < len(net_values):
            yield f"netDevices: {key} is empty or duplicate"


def _environment(holder: JsonView) -> Iterator[str]:
    for variable in holder.get("env") or ():
        if _text(variable).find("=") <= 0:
            yield f"{quote(variable)} is not NAME=VALUE"


def _filled(edit: JsonView) -> Iterator[bool]:
    for key, value in edit.items():
        yield value is not None if key == "intelRdt" else bool(value)


def _each(edit: JsonView, key: str) -> list[Json]:
    return [entry or {} for entry in edit.get(key) or ()]


def _text(value: Any) -> str:
    return "" if value is None else str(value)
