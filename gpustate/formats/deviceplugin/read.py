"""Read and write one configuration of the device plugin.

:func:`read` stops at the first error, :func:`faults` returns all, for a linter. Ignored and duplicate keys are
warnings in a file and errors in a policy (:func:`read_data`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

from gpustate.documents import JsonView
from gpustate.errors import PolicyError
from gpustate.formats import yaml_events
from gpustate.formats.deviceplugin import values
from gpustate.formats.deviceplugin.model import (
    GPU,
    MPS_MOST,
    NO_SHARING,
    PluginConfig,
    Shared,
    Sharing,
)
from gpustate.formats.deviceplugin.schema import SCHEMA, Branch, Leaf, places
from gpustate.formats.words import at, kind_of, quote, quote_name

RULES = yaml_events.Rules(
    PolicyError, depth=20, values=50_000, text_keys=True, last_key_counts=True, quoted_keys=True
)
#: Why no MIG strategy mixed is set beside MPS, and what to do.
NOT_WITH_MIXED = "the device plugin refuses both together"
INSTEAD_OF_MIXED = "use single or none, or sharing.timeSlicing"
_STRATEGIES = {"timeSlicing": "time-slicing", "mps": "mps"}
#: Keys that the GPU Operator sets through the environment, which overrides the file.
_OPERATORS = {
    "flags.migStrategy": "mig.strategy",
    "flags.failOnInitError": "",
    "flags.mpsRoot": "devicePlugin.mps.root",
    "flags.plugin.passDeviceSpecs": "",
    "flags.plugin.deviceListStrategy": "",
}


def read(text: str, path: str) -> PluginConfig:
    """Read the text of a file, YAML or JSON.

    Raises:
        PolicyError: with the line, and a suggestion if there is one.
    """
    parsed = yaml_events.documents(text, path, RULES)
    if not parsed or parsed[0].data is None:
        return PluginConfig(data={"version": "v1"})
    return read_data(parsed[0].data, path, parsed[0].lines)


def faults(text: str, path: str) -> tuple[list[PolicyError], list[PolicyError]]:
    """All errors of a file in its order, and the parts that the plugin ignores."""
    try:
        parsed = yaml_events.documents(text, path, RULES)
    except PolicyError as error:
        return [error], []
    if not parsed or parsed[0].data is None:
        return [], []  # the plugin reads it as one with its defaults
    reader = _Reader(path, parsed[0].lines, lenient=True)
    try:
        reader.config(parsed[0].data)
    except PolicyError as error:
        if error not in reader.faults:
            reader.faults.append(error)
    return reader.faults, reader.passed


def read_data(data: Any, path: str, lines: yaml_events.Lines | None = None) -> PluginConfig:
    """Check plain data; ``path`` is its place, ``lines`` is set for data of a file.

    Raises:
        PolicyError: as :func:`read`.
    """
    lenient = lines is not None
    return _Reader(path, lines or yaml_events.Lines(), lenient=lenient).config(data)


def as_text(config: PluginConfig) -> str:
    """The file as YAML; equal configurations have equal text."""
    import yaml

    data = {"version": "v1", **config.data}
    text: str = yaml.dump(
        data,
        Dumper=yaml_events.Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
    )
    return text


class _Reader:
    def __init__(self, path: str, lines: yaml_events.Lines, *, lenient: bool = False) -> None:
        self.path = path
        self.lines = lines
        self.lenient = lenient
        #: Problems that a lenient reader ignores, like the plugin.
        self.passed: list[PolicyError] = []
        #: The unknown keys among them.
        self.unrecognized: list[PolicyError] = []
        #: Of single keys and values; combinations are checked once these are valid.
        self.faults: list[PolicyError] = []

    def fault(self, where: str, problem: str, fix: str, line: int | None) -> PolicyError:
        message = f"{where}: {problem}" if where else problem
        return PolicyError(message, place=at(self.path, line), fix=fix or None)

    def fail(self, where: str, problem: str, fix: str = "", line: int | None = None) -> NoReturn:
        raise self.fault(where, problem, fix, line)

    def passable(self, where: str, problem: str, fix: str, line: int | None) -> PolicyError:
        error = self.fault(where, problem, fix, line)
        (self.passed if self.lenient else self.faults).append(error)
        return error

    def line(self, holder: Any, key: str) -> int | None:
        return self.lines.of_keys.get(id(holder), {}).get(key)

    def config(self, data: Any) -> PluginConfig:
        if not isinstance(data, Mapping):
            self.fail("", f"wanted a configuration of the device plugin, is {kind_of(data)}")
        self.mapping(data, SCHEMA, "")
        if self.faults:
            raise self.faults[0]
        sharing = self.sharing(data)
        flags = data.get("flags") or {}
        strategy = flags.get("migStrategy", "")
        self.check_combination(data, sharing, strategy)
        notes = tuple(self.notes(data, sharing, strategy))
        return PluginConfig(sharing, strategy, data, notes, tuple(map(str, self.passed)))

    def mapping(self, data: Any, branch: Branch, path: str) -> None:
        before = len(self.unrecognized)
        if self.lenient and not branch.listed:
            self.normalise_case(data, branch)
        for key, value in [*data.items()]:
            try:
                self.key(data, key, value, branch, path)
            except PolicyError as error:
                self.faults.append(error)
        for key, line, _ in self.lines.repeated.get(id(data), ()):
            self.passable(
                path,
                f"the key {quote(key)} is a duplicate of line {line}",
                "the last one takes effect",
                self.line(data, key),
            )
        missing = [key for key in branch.required if key not in data]
        if missing and len(self.unrecognized) > before:
            # Possibly the missing key under another name.
            first_unrecognized = self.unrecognized[before]
            self.passed = [passed for passed in self.passed if passed is not first_unrecognized]
            raise first_unrecognized
        if missing:
            self.fail(path, f"{missing[0]} is missing", line=self.first_line(data))

    def normalise_case(self, data: Any, branch: Branch) -> None:
        """Normalise the case of keys: Go ignores it, except for keys of a resource."""
        folded = {key_name.lower(): key_name for key_name in branch.keys}
        for key in [*data]:
            normal_key = folded.get(str(key).lower(), key)
            if normal_key not in data:
                data[normal_key] = data.pop(key)
                lines = self.lines.of_keys.get(id(data), {})
                lines[normal_key] = lines.get(key, 0)

    def key(self, data: Any, key: object, value: Any, branch: Branch, path: str) -> None:
        below = f"{path}.{key}" if path else str(key)
        line = self.line(data, str(key))
        kind = branch.keys.get(str(key))
        if kind is None:
            self.unknown(key, branch, path, line)
            if self.lenient:
                del data[key]
        elif isinstance(kind, Branch):
            self.branch(value, kind, below, line)
        elif value is not None or kind.kind in ("resource", "count", "name", "devices"):
            self.leaf(value, kind, below, line)
            if kind.ignored and value not in kind.harmless:
                self.passable(below, "has no effect", kind.ignored, line)
                if self.lenient:
                    del data[key]

    def first_line(self, data: Any) -> int | None:
        key_lines = self.lines.of_keys.get(id(data), {})
        return min(key_lines.values(), default=None)

    def leaf(self, value: Any, kind: Leaf, path: str, line: int | None) -> None:
        wrong = values.check(kind, value)
        if wrong is not None:
            self.fail(path, wrong[0], wrong[1], line)

    def branch(self, value: Any, branch: Branch, path: str, line: int | None) -> None:
        if value is None and branch.nullable and not branch.listed:
            return
        if not branch.listed:
            if not isinstance(value, Mapping):
                self.fail(path, f"wanted a mapping, is {kind_of(value)}", line=line)
            self.mapping(value, branch, path)
            return
        if not isinstance(value, list) or not value:
            problem = "is empty" if value == [] else f"wanted a list, is {kind_of(value)}"
            self.fail(path, problem, "name at least one resource", line)
        items = self.lines.of_items.get(id(value), [])
        for number, item in enumerate(value):
            place = f"{path}[{number}]"
            if not isinstance(item, Mapping):
                where = items[number] if number < len(items) else line
                self.fail(place, f"wanted a mapping, is {kind_of(item)}", line=where)
            self.mapping(item, branch, place)

    def unknown(self, key: object, branch: Branch, path: str, line: int | None) -> None:
        """Suggest a key of this mapping, or the mapping to which the key belongs."""
        word = str(key)
        folded = {key_name.lower(): key_name for key_name in branch.keys}
        near = difflib.get_close_matches(word.lower(), folded, 1)
        everywhere = {key_name.lower(): key_name for key_name, _ in places()}
        anywhere = difflib.get_close_matches(word.lower(), everywhere, 1, 0.85)
        if near and (word.lower() == near[0] or not anywhere or anywhere[0] in folded):
            fix = f"did you mean {folded[near[0]]}"
        elif anywhere:
            intended_key = everywhere[anywhere[0]]
            homes = [home or "the top" for key_name, home in places() if key_name == intended_key]
            fix = f"move {intended_key} to {' or '.join(homes)}"
        else:
            fix = f"supported keys: {', '.join(branch.keys)}"
        problem = f"unknown key {quote_name(word)}"
        error = self.passable(path, problem, f"{fix}; the device plugin ignores it", line)
        if self.lenient:
            self.unrecognized.append(error)

    def sharing(self, data: JsonView) -> Sharing:
        strategies = {key: value for key, value in (data.get("sharing") or {}).items() if value}
        if len(strategies) > 1:
            self.fail(
                "sharing",
                "has timeSlicing and mps, and timeSlicing would have no effect",
                "keep one of them",
                self.line(data["sharing"], "timeSlicing"),
            )
        for key, block in strategies.items():
            shared: list[Shared] = []
            for number, item in enumerate(block["resources"]):
                name = values.full_name(item["name"])
                place = f"sharing.{key}.resources[{number}]"
                if any(name == earlier.name for earlier in shared):
                    self.fail(place, f"duplicate resource {name}", line=self.line(item, "name"))
                if block.get("renameByDefault") and len(name + ".shared") > values.LONGEST_NAME:
                    self.fail(place, f"{name}.shared is longer than {values.LONGEST_NAME}")
                if key == "mps":
                    self.mps(item, name, place)
                shared.append(Shared(name, item["replicas"]))
            return Sharing(_STRATEGIES[key], tuple(shared), bool(block.get("renameByDefault")))
        return NO_SHARING

    def mps(self, item: JsonView, name: str, place: str) -> None:
        if name != GPU:
            self.fail(
                place,
                f"{name}: MIG devices cannot be shared with MPS",
                "use timeSlicing for them",
                self.line(item, "name"),
            )
        if item["replicas"] > MPS_MOST:
            self.fail(
                f"{place}.replicas",
                f"is {item['replicas']}, and MPS supports {MPS_MOST} clients",
                line=self.line(item, "replicas"),
            )

    def check_combination(self, data: JsonView, sharing: Sharing, strategy: str) -> None:
        if sharing.strategy == "mps" and strategy == "mixed":
            self.fail(
                "flags.migStrategy",
                "is mixed, which the device plugin refuses together with sharing.mps",
                "use none, or share with timeSlicing",
                self.line(data["flags"], "migStrategy"),
            )
        for shared in sharing.resources:
            if shared.name != GPU and strategy in ("none", "single"):
                alternative = GPU if strategy == "single" else "whole GPUs"
                self.fail(
                    "sharing",
                    f"{shared.name} is advertised only with flags.migStrategy mixed, and it is {strategy}",
                    f"set mixed, or share {alternative}",
                )

    def notes(self, data: JsonView, sharing: Sharing, strategy: str) -> list[str]:
        notes: list[str] = []
        for path, instead in _OPERATORS.items():
            node: Any = data
            for key in path.split("."):
                node = node.get(key) if isinstance(node, Mapping) else None
            if node is not None:
                way = f", from its own {instead}" if instead else ""
                notes.append(
                    f"{path} applies only without the GPU Operator, which overrides it through the "
                    f"environment{way}"
                )
        root = (data.get("flags") or {}).get("mpsRoot")
        if sharing.strategy == "mps" and root == "":
            notes.append(
                "flags.mpsRoot is empty: without the GPU Operator the plugin does not start with MPS and no root; "
                "set a folder such as /run/nvidia/mps, or remove the key"
            )
        mig = [shared.name for shared in sharing.resources if shared.name != GPU]
        if mig and not strategy:
            notes.append(f"{mig[0]} is advertised only with the MIG strategy mixed")
        return notes
