"""Holds a configuration of the device plugin against what the plugin reads.

The plugin takes unknown keys in silence, among them the ones its own manual has shown under the
wrong parent (``renameByDefault`` below ``flags``).

Sources:
    NVIDIA/k8s-device-plugin v0.20: api/config/v1 (config.go, flags.go, replicas.go, sharing.go).
    NVIDIA/k8s-device-plugin issues 1433, 1548, 1132.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpustate.clusterpolicy import documents
from gpustate.clusterpolicy.documents import Item
from gpustate.text.words import kind_of, shown

_FLAG, _TEXT = "boolean", "string"
_SHARING: Mapping[str, Any] = {
    "renameByDefault": _FLAG,
    "failRequestsGreaterThanOne": _FLAG,
    "resources": [{"name": _TEXT, "rename": _TEXT, "devices": "any", "replicas": "integer"}],
}
_RESOURCES = [{"pattern": _TEXT, "name": _TEXT}]
#: Keys and types; a list holds the type of its elements, a tuple the only values.
SCHEMA: Mapping[str, Any] = {
    "version": ("v1",),
    "flags": {
        "migStrategy": ("none", "single", "mixed"),
        **dict.fromkeys(
            (
                "failOnInitError",
                "gdrcopyEnabled",
                "gdsEnabled",
                "mofedEnabled",
                "useNodeFeatureAPI",
            ),
            _FLAG,
        ),
        **dict.fromkeys(("mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"), _TEXT),
        "deviceDiscoveryStrategy": ("auto", "nvml", "tegra"),
        "plugin": {
            "passDeviceSpecs": _FLAG,
            "deviceListStrategy": "strategies",
            "deviceIDStrategy": ("uuid", "index"),
            **dict.fromkeys(
                (
                    "cdiAnnotationPrefix",
                    "nvidiaCTKPath",
                    "nvidiaCDIHookPath",
                    "containerDriverRoot",
                ),
                _TEXT,
            ),
            "cdiFeatureFlags": "any",
            "sharedDevicesAllocationPolicy": ("distributed", "packed"),
        },
        "gfd": {
            "oneshot": _FLAG,
            "noTimestamp": _FLAG,
            "sleepInterval": _TEXT,
            "outputFile": _TEXT,
            "machineTypeFile": _TEXT,
        },
    },
    "resources": {"gpus": _RESOURCES, "mig": _RESOURCES},
    "sharing": {"timeSlicing": _SHARING, "mps": _SHARING},
    "imex": {"channelIDs": "any", "required": _FLAG},
}
_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
_TYPES = {_FLAG: bool, _TEXT: str, "integer": int}
#: More MPS clients than a GPU takes (from Volta on).
_MOST_MPS = 48


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with a text beside a policy; ``line`` is counted from 1 in that text."""

    line: int
    path: str
    message: str
    fix: str | None = None


def check(text: str, file: str) -> Iterator[Trouble]:
    """Yield what is wrong with one configuration.

    Raises:
        PolicyError: it is no YAML.
    """
    found = documents.read(text, file)
    if not found:
        yield Trouble(1, "", "the configuration of the device plugin is empty")
        return
    yield from _mapping(found[0], SCHEMA, "")
    yield from _sharing(found[0])


def _mapping(item: Item, schema: Mapping[str, Any], path: str) -> Iterator[Trouble]:
    if item.value is None:
        return
    if not isinstance(item.value, dict):
        yield Trouble(item.line, path, f"{path or 'it'} is {kind_of(item.value)}, wanted a mapping")
        return
    for key, child in item.value.items():
        below = f"{path}.{key}" if path else key
        if key not in schema:
            yield Trouble(
                child.line,
                below,
                f"unknown key {shown(below)}, which the device plugin ignores in silence",
                _meant(key, path, schema),
            )
        else:
            yield from _value(child, schema[key], below)


def _value(item: Item, wanted: Any, path: str) -> Iterator[Trouble]:
    if item.value is None or wanted == "any":
        return
    if isinstance(wanted, Mapping):
        yield from _mapping(item, wanted, path)
    elif isinstance(wanted, list):
        if not isinstance(item.value, list):
            yield Trouble(item.line, path, f"{path} is {kind_of(item.value)}, wanted a list")
            return
        for child in item.value:
            yield from _mapping(child, wanted[0], f"{path}[]")
    elif isinstance(wanted, tuple):
        if item.value not in wanted:
            choices = " or ".join(map(repr, wanted))
            yield Trouble(item.line, path, f"{path} is {shown(item.value)}, wanted {choices}")
    elif wanted == "strategies":
        yield from _strategies(item, path)
    elif not isinstance(item.value, _TYPES[wanted]) or (
        wanted == "integer" and isinstance(item.value, bool)
    ):
        what = {"integer": "a whole number"}.get(wanted, f"a {wanted}")
        yield Trouble(item.line, path, f"{path} is {kind_of(item.value)}, wanted {what}")


def _strategies(item: Item, path: str) -> Iterator[Trouble]:
    given = item.value if isinstance(item.value, list) else [item]
    for one in given:
        words = one.value.split(",") if isinstance(one.value, str) else [one.value]
        for word in words:
            if word not in _STRATEGIES:
                choices = ", ".join(_STRATEGIES)
                yield Trouble(one.line, path, f"{path} is {shown(word)}, wanted some of {choices}")


def _sharing(item: Item) -> Iterator[Trouble]:
    slicing, mps = item.get("sharing", "timeSlicing"), item.get("sharing", "mps")
    if slicing is not None and mps is not None:
        yield Trouble(
            slicing.line,
            "sharing.timeSlicing",
            "sharing.timeSlicing does nothing beside sharing.mps, which wins",
            "keep one of them",
        )
    strategy = item.text("flags", "migStrategy")
    if mps is not None and strategy == "mixed":
        yield Trouble(
            mps.line, "sharing.mps", "sharing.mps does not go with flags.migStrategy mixed"
        )
    for name, section in (("timeSlicing", slicing), ("mps", mps)):
        if section is None or not isinstance(section.value, dict):
            continue
        path = f"sharing.{name}.resources"
        resources = section.get("resources")
        if resources is None or not resources.value:
            yield Trouble(section.line, path, f"sharing.{name} has no resources, wanted some")
        elif isinstance(resources.value, list):
            for one in resources.value:
                yield from _resource(one, f"{path}[]", mps=name == "mps")


def _resource(item: Item, path: str, *, mps: bool) -> Iterator[Trouble]:
    replicas = item.get("replicas")
    if not item.text("name"):
        yield Trouble(item.line, path, f"{path} has no name", "write nvidia.com/gpu")
    if replicas is None:
        yield Trouble(item.line, path, f"{path} has no replicas, wanted 2 or more")
    elif isinstance(replicas.value, int) and replicas.value < 2:
        yield Trouble(
            replicas.line,
            f"{path}.replicas",
            f"{path}.replicas is {replicas.value}, wanted 2 or more",
        )
    elif mps and isinstance(replicas.value, int) and replicas.value > _MOST_MPS:
        yield Trouble(
            replicas.line,
            f"{path}.replicas",
            f"{path}.replicas is {replicas.value}, and a GPU takes {_MOST_MPS} MPS clients",
        )
    for key in ("rename", "devices"):
        given = item.get(key)
        if given is not None and given.value != "all":
            yield Trouble(
                given.line, f"{path}.{key}", f"{path}.{key} is not carried out by the device plugin"
            )


def _meant(key: str, path: str, schema: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, schema, 1, 0.75)
    if near:
        return f"did you mean {path}.{near[0]}" if path else f"did you mean {near[0]}"
    elsewhere = list(_places(key, SCHEMA, ""))
    if elsewhere:
        return f"it belongs below {' or '.join(elsewhere)}"
    return f"known here: {', '.join(sorted(schema))}"


def _places(key: str, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, below in schema.items():
        if name == key:
            yield path or "the top"
        inner = below[0] if isinstance(below, list) else below
        if isinstance(inner, Mapping):
            yield from _places(key, inner, f"{path}.{name}" if path else name)
