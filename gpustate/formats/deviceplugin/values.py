"""Checks of single values of the device plugin's configuration.

Each returns the problem with a value and the remedy, or ``None``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from gpustate.formats.deviceplugin.model import GPU
from gpustate.formats.deviceplugin.schema import Leaf
from gpustate.formats.words import kind_of, quote

PREFIX = "nvidia.com/"
LONGEST_NAME = 63
#: More replicas are useless, and the kubelet keeps a list of them all.
MOST_REPLICAS = 10_000

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
#: Go stores a duration as nanoseconds in 63 bits: 292 years.
_LONGEST_S = 2**63 / 1e9
_MIG = re.compile(r"mig-[1-9]\d?g\.[1-9]\d{0,4}gb(?:\.[a-z]+(?:\.[a-z]+)?|-me)?")

_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
#: 0, 0:1 (a MIG device), GPU-..., MIG-..., and MIG devices of drivers before R470.
_DEVICE = re.compile(
    rf"[0-9]{{1,18}}(?::[0-9]{{1,18}})?|(?:GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]{{1,18}}/[0-9]{{1,18}}"
)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")

Wrong = tuple[str, str]  # problem, remedy


def check(leaf: Leaf, value: Any) -> Wrong | None:
    """Return the problem with a value."""
    match leaf.kind:
        case "boolean":
            fine = isinstance(value, bool)
            return None if fine else (f"wanted true or false, is {_describe(value)}", "")
        case "text":
            fine = _is_text(value) and value.isprintable()
            return None if fine else (f"wanted text, is {_describe(value)}", "put it in quotes")
        case "choice":
            return _choice(leaf, value)
        case "choices":
            values = value if isinstance(value, list) else [value]
            return next((wrong for item in values if (wrong := _choice(leaf, item))), None)
        case "duration":
            return _duration(value)
        case "count":
            return _count(value)
        case "channels":
            fine = isinstance(value, list) and all(type(c) is int and c == 0 for c in value)
            fine = fine and len(value) <= 1
            return None if fine else (f"wanted [] or [0], is {_describe(value)}", "")
        case "resource":
            return _resource(value)
        case "devices":
            return _devices(value)
        case "name":
            return _name(value)
        case _:
            return _patterns(value)


def full_name(name: str) -> str:
    """``nvidia.com/gpu`` for ``gpu``, as the plugin accepts both."""
    return name if name.startswith(PREFIX) else PREFIX + name


def _describe(value: Any) -> str:
    return quote(value) if isinstance(value, str) else f"{kind_of(value)} ({quote(value, 30)})"


def _choice(leaf: Leaf, value: Any) -> Wrong | None:
    if isinstance(value, str) and value in leaf.words:
        return None
    near = difflib.get_close_matches(str(value).lower(), leaf.words, 1)
    if isinstance(value, str) and leaf.words == ("v1",) and near:
        return f"is {_describe(value)}, wanted v1", ""
    hint = f"did you mean {near[0]}" if near else ""
    return f"is {_describe(value)}, wanted {_or(leaf.words)}", hint


def _or(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _duration(value: Any) -> Wrong | None:
    if type(value) in (int, float):
        return (
            f"is the number {quote(value, 30)}, which the plugin reads as nanoseconds",
            'write "60s" for seconds',
        )
    if value in ("0", "infinite"):
        return None
    if isinstance(value, str) and re.fullmatch(f"(?:{_DURATION.pattern})+", value):
        seconds = sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(value))
        if seconds < _LONGEST_S:
            return None
    return f"is {_describe(value)}, wanted a duration", "write 60s, 5m or infinite"


def _devices(value: Any) -> Wrong | None:
    """Check a selection of devices: ``all``, a count, or a list of indices and UUIDs."""
    if isinstance(value, list):
        return next((wrong for device in value if (wrong := _device(device))), None)
    is_count = _is_whole(value)
    if value == "all" or (is_count and value > 0):
        return None
    return f"is {_describe(value)}, wanted all, a count or a list of devices", "write all"


def _device(value: Any) -> Wrong | None:
    if value is None or (_is_whole(value) and value >= 0):
        return None
    if isinstance(value, str) and _DEVICE.fullmatch(value):
        return None
    return f"has {_describe(value)}, wanted a device index or UUID", "write all"


def _is_text(value: Any) -> bool:
    """Whether the plugin reads a YAML text as text: an unquoted y or n is true or false there."""
    return isinstance(value, str) and value not in ("y", "Y", "n", "N")


def _is_whole(value: Any) -> bool:
    """Whether the plugin reads a YAML number as a whole number, such as 2.0."""
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def _name(value: Any) -> Wrong | None:
    """Check the name of a resource, NVIDIA's or another one."""
    if not _is_text(value):
        return f"wanted the name of a resource, is {_describe(value)}", "put it in quotes"
    full = full_name(value)
    if len(full) > LONGEST_NAME:
        return f"is {_describe(value)}, longer than {LONGEST_NAME} characters", ""
    if not _SUBDOMAIN.fullmatch(full.removeprefix(PREFIX)):
        return f"is {_describe(value)}, wanted lower-case letters, digits, dots and dashes", ""
    return None


def _patterns(value: Any) -> Wrong | None:
    """Check resource names for GPU models that match a pattern."""
    if value is None:
        return None
    if not isinstance(value, list):
        return f"wanted a list, is {kind_of(value)}", ""
    for entry in value:
        if not isinstance(entry, Mapping):
            return f"wanted mappings with pattern and name, has {kind_of(entry)}", ""
        missing = [key for key in ("pattern", "name") if key not in entry]
        if missing:
            return f"has an entry without {missing[0]}", "set pattern and name"
        if entry["pattern"] is not None and not _is_text(entry["pattern"]):
            return f"has the pattern {_describe(entry['pattern'])}, wanted text", "put it in quotes"
        wrong = _name(entry["name"])
        if wrong is not None:
            return f"has a name that {wrong[0]}", wrong[1]
    return None


def _count(value: Any) -> Wrong | None:
    if type(value) is not int:
        return f"wanted a whole number, is {_describe(value)}", "write replicas: 4"
    if value < 2:
        return f"is {value}, wanted 2 or more", "remove the resource to disable sharing"
    if value > MOST_REPLICAS:
        return f"is {quote(value, 30)}, wanted at most {MOST_REPLICAS}", ""
    return None


def _resource(value: Any) -> Wrong | None:
    if not isinstance(value, str):
        return f"wanted the name of a resource, is {_describe(value)}", f"write {GPU}"
    name = full_name(value).removeprefix(PREFIX)
    if name == "gpu" or _MIG.fullmatch(name):
        return None
    dotted = name.replace("+", ".")
    if dotted != name and _MIG.fullmatch(dotted):
        return f"is {_describe(value)}", f"the resource is named {PREFIX}{dotted}"
    if re.fullmatch(_MIG.pattern.removeprefix("mig-"), dotted):
        return f"is {_describe(value)}", f"the resource is named {PREFIX}mig-{dotted}"
    advertised = f"the device plugin advertises only {GPU} and {PREFIX}mig-<profile>"
    near = difflib.get_close_matches(name.lower(), ("gpu", "mig"), 1, 0.5)
    if "mig" in name.lower():
        return f"is {_describe(value)}", f"{advertised}; write {PREFIX}mig-1g.10gb"
    return f"is {_describe(value)}", f"did you mean {GPU}" if near else advertised
