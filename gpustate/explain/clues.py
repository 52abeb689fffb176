"""Traces of known problems as data, read from what the fragment of ``script`` printed.

A node may lack any program or file, so a clue that is missing says nothing; only one that is there does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from gpustate.formats import dkms, systemd
from gpustate.formats.numbers import whole
from gpustate.ops.daemon_seen import PATIENCE_S, starting

_COMPILER = re.compile(r"\b(gcc-\d+)\b")


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit, as far as its state tells something."""

    name: str
    exists: bool = False
    active: str = ""
    sub: str = ""
    enabled: str = ""  # the state of its file, as the disk has it
    why: str = ""  # the line of its journal that says why it failed
    skipped: bool = False  # systemd looked at its conditions, and they were not met
    restarts: int = 0  # how often systemd has started it again by itself
    since_s: int = 0  # the second of this boot in which it was last started
    starting_s: int = 0  # for how long it has been starting

    @property
    def failed(self) -> bool:
        """It ended badly, or systemd starts it again and again."""
        again = self.active == "activating" and (self.sub == "auto-restart" or self.restarts > 0)
        return self.active == "failed" or again

    @property
    def hangs(self) -> bool:
        """It has been starting for too long."""
        return self.active == "activating" and not self.failed and self.starting_s >= PATIENCE_S

    @property
    def failure(self) -> str:
        """That it failed, and what it said, or that it hangs; empty when it does neither."""
        if self.hangs:
            return starting(self.name, self.starting_s)
        said = f": {self.why}" if self.why else ""
        return f"{self.name} failed{said}" if self.failed else ""

    @property
    def missed(self) -> bool:
        """It is enabled, nothing kept it from starting, and it neither runs nor has failed."""
        to_run = self.enabled in ("enabled", "enabled-runtime") and not self.skipped
        return self.exists and to_run and self.active == "inactive"

    @property
    def masked(self) -> bool:
        """Its name leads to nothing, so that nothing starts it."""
        return self.enabled.startswith("masked")


@dataclass(frozen=True, slots=True)
class Clues:
    """Every trace; ``one`` and ``all`` give the plain ones by the key the fragment prints.

    Args:
        rows: values by key, in order.
        units: by name, with those that do not exist.
        packages: installed ones, with their upstream version.
        node: the Node object of Kubernetes; ``None`` when it could not be read.
        registered: device ids by resource that the kubelet keeps; ``None``: no checkpoint.
    """

    rows: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    units: dict[str, Unit] = field(default_factory=dict[str, Unit])
    packages: dict[str, str] = field(default_factory=dict[str, str])
    node: dict[str, Any] | None = None
    registered: dict[str, tuple[str, ...]] | None = None

    def all(self, key: str) -> tuple[str, ...]:
        """Every value of a key."""
        return self.rows.get(key, ())

    def one(self, key: str) -> str:
        """The first value of a key; empty when there is none."""
        return self.rows.get(key, ("",))[0]

    def has(self, key: str) -> bool:
        """The fragment printed this key."""
        return key in self.rows

    def fields(self, key: str, count: int) -> list[list[str]]:
        """Values cut at their bars; those with another number of fields are left out."""
        rows = [value.split("|", count - 1) for value in self.all(key)]
        return [row for row in rows if len(row) == count]

    def unit(self, name: str) -> Unit:
        """A unit by its name without ``.service``."""
        return self.units.get(f"{name}.service", Unit(name))

    def said(self, *words: str) -> str:
        """The last line of dmesg with one of some words; empty when there is none."""
        lines = [line for line in self.all("dmesg") if any(word in line for word in words)]
        return lines[-1].strip() if lines else ""

    @property
    def kernel_compiler(self) -> str:
        """The compiler the running kernel names as its own, with its number: gcc-12."""
        match = _COMPILER.search(self.one("kernel_build"))
        return match[1] if match else ""

    @property
    def build_error(self) -> str:
        """Why the last build of the module failed; empty when none is known to have."""
        return dkms.first_error("\n".join(self.all("log"))) or ""

    def labels(self) -> dict[str, str]:
        """Labels of the Kubernetes node."""
        found = self._part("metadata", "labels")
        return {str(key): str(value) for key, value in found.items()}

    def quantity(self, part: str, resource: str) -> int | None:
        """``capacity`` or ``allocatable`` of a resource; ``None`` when the node does not list it."""
        return whole(str(self._part("status", part).get(resource, "")))

    def resources(self) -> tuple[str, ...]:
        """NVIDIA's resources the node lists, also those with nothing left."""
        return tuple(
            sorted(key for key in self._part("status", "capacity") if key.startswith("nvidia.com/"))
        )

    def taints(self) -> list[str]:
        """Taints as ``key=value:effect``."""
        found = self._part("spec").get("taints")
        rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
        return [
            f"{row.get('key')}{'=' + str(row['value']) if row.get('value') else ''}:{row.get('effect')}"
            for row in rows
        ]

    @property
    def cordoned(self) -> bool:
        """Kubernetes puts no new pods here."""
        return self._part("spec").get("unschedulable") is True

    def not_ready(self) -> str:
        """Why the node is not Ready; empty when it is, or when nothing is known."""
        rows = self._part("status").get("conditions")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and row.get("type") == "Ready" and row.get("status") != "True":
                return f"{row.get('reason')}: {row.get('message')}"
        return ""

    def _part(self, *keys: str) -> dict[str, Any]:
        found: Any = self.node or {}
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def parse(text: str) -> Clues:
    """Read the fragment's lines; what is torn or of another shape is left out."""
    rows: dict[str, list[str]] = {}
    units: dict[str, Unit] = {}
    shown: dict[str, str] = {}
    for line in text.split("\n"):  # files have other breaks in them too
        key, equals, value = line.removesuffix("\r").partition("=")
        if not equals:
            continue
        if key == "unit.end":
            if "Id" in shown:
                units[shown["Id"]] = _unit(shown)
            shown = {}
        elif key.startswith("unit."):
            shown[key.removeprefix("unit.")] = value
        else:
            rows.setdefault(key, []).append(value)
    for row in rows.get("why", []):
        name, _, why = row.partition("|")
        if name in units:
            one = units[name]
            units[name] = replace(one, why=why)
    linked = frozenset(rows.get("linked", []))
    for name, one in units.items():
        units[name] = replace(one, enabled=systemd.at_boot(one.enabled, name in linked))
    uptime = whole(rows.get("uptime", [""])[0])
    for name, one in units.items():
        if one.active == "activating" and uptime is not None and one.since_s:
            units[name] = replace(one, starting_s=max(0, uptime - one.since_s))
    packages: dict[str, str] = {}
    for row in rows.get("installed", []):
        parts = row.split("|")
        if len(parts) == 3 and parts[2][1:2] == "i":
            packages[parts[0]] = upstream(parts[1])
    return Clues(
        rows={key: tuple(values) for key, values in rows.items()},
        units=units,
        packages=packages,
        node=_object(rows.get("kube_node", [""])[0]),
        registered=_registered(rows.get("registered", [""])[0]),
    )


def upstream(version: str) -> str:
    """Without Debian's epoch and revision."""
    version = version.partition(":")[2] or version
    return version.rpartition("-")[0] or version


def _unit(shown: dict[str, str]) -> Unit:
    name = shown["Id"]
    return Unit(
        name=name.removesuffix(".service"),
        exists=shown.get("LoadState", "not-found") != "not-found",
        active=shown.get("ActiveState", ""),
        sub=shown.get("SubState", ""),
        enabled=shown.get("UnitFileState", ""),
        restarts=whole(shown.get("NRestarts", "")) or 0,
        since_s=(whole(shown.get("InactiveExitTimestampMonotonic", "")) or 0) // 1_000_000,
        skipped=shown.get("ConditionResult") == "no"
        and shown.get("ConditionTimestampMonotonic", "0") != "0",
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _registered(text: str) -> dict[str, tuple[str, ...]] | None:
    data = _object(text)
    if data is None:
        return None
    return {
        str(key): tuple(str(one) for one in ids) if isinstance(ids, list) else ()
        for key, ids in data.items()
    }
