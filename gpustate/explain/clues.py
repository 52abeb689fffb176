"""Traces of known problems, parsed from the output of the fragment in ``script``.

A node may lack any program or file, so only a trace that is present means something.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from gpustate.documents import Json
from gpustate.formats import dkms, dpkg, systemd
from gpustate.formats.numbers import parse_uint
from gpustate.ops.daemon_seen import PATIENCE_S, starting

_COMPILER = re.compile(r"\b(gcc-\d+)\b")
#: Of a PCI device, without its function.
_ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\b")
#: What the driver logs after it has logged why.
_CONSEQUENCE = re.compile(
    r"rm_init_adapter failed|RmInitAdapter failed|probe (of .*|routine) failed|None of the NVIDIA devices"
    r"|No NVIDIA GPU found|Unregistered|may need to be reset\)|Cannot initialize GSP firmware"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """State of a systemd unit."""

    name: str
    exists: bool = False
    active: str = ""
    sub: str = ""
    enabled: str = ""  # the state of its file on disk
    why: str = ""  # the line of its journal with the reason of the failure
    skipped: bool = False  # its conditions were not met
    restarts: int = 0  # automatic restarts by systemd
    since_s: int = 0  # last start, in seconds since the boot
    starting_s: int = 0  # duration of the start so far

    @property
    def failed(self) -> bool:
        """It failed, or systemd keeps restarting it."""
        again = self.active == "activating" and (self.sub == "auto-restart" or self.restarts > 0)
        return self.active == "failed" or again

    @property
    def hangs(self) -> bool:
        """Its start takes too long."""
        return self.active == "activating" and not self.failed and self.starting_s >= PATIENCE_S

    @property
    def failure(self) -> str:
        """That it failed, with the reason, or that it hangs; empty if neither."""
        if self.hangs:
            return starting(self.name, self.starting_s)
        reason = f": {self.why}" if self.why else ""
        return f"{self.name} failed{reason}" if self.failed else ""

    @property
    def missed(self) -> bool:
        """It is enabled, its conditions are met, and it neither runs nor has failed."""
        to_run = self.enabled in ("enabled", "enabled-runtime") and not self.skipped
        return self.exists and to_run and self.active == "inactive"

    @property
    def masked(self) -> bool:
        """It is linked to /dev/null, so nothing can start it."""
        return self.enabled.startswith("masked")


@dataclass(frozen=True, slots=True)
class Clues:
    """All traces; ``first`` and ``all`` return plain values by the key that the fragment prints.

    Args:
        rows: values by key, in order.
        units: by name, including those that do not exist.
        packages: installed packages with their upstream version.
        node: the Node object of Kubernetes; ``None`` if it could not be read.
        registered: device ids by resource in the kubelet's checkpoint; ``None``: no checkpoint.
    """

    rows: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    units: dict[str, Unit] = field(default_factory=dict[str, Unit])
    packages: dict[str, str] = field(default_factory=dict[str, str])
    node: Json | None = None
    registered: dict[str, tuple[str, ...]] | None = None

    def all(self, key: str) -> tuple[str, ...]:
        """Every value of a key."""
        return self.rows.get(key, ())

    def first(self, key: str) -> str:
        """The first value of a key; empty if there is none."""
        return self.rows.get(key, ("",))[0]

    def has(self, key: str) -> bool:
        """The fragment printed this key."""
        return key in self.rows

    def fields(self, key: str, count: int) -> list[list[str]]:
        """Values split at ``|``; those with another number of fields are left out."""
        rows = [value.split("|", count - 1) for value in self.all(key)]
        return [row for row in rows if len(row) == count]

    def unit(self, name: str) -> Unit:
        """A unit by its name without ``.service``."""
        return self.units.get(f"{name}.service", Unit(name))

    def kernel_message(self, *words: str, of: str = "") -> str:
        """The last line of dmesg with one of some words, if possible one with a reason; empty if there is none.

        Args:
            words: any of them.
            of: a text that names GPUs by address: a line about other ones does not count.
        """
        named = set(_ADDRESS.findall(of))
        lines = [
            line
            for line in self.all("dmesg")
            if any(word in line for word in words)
            and not (named and named.isdisjoint(_ADDRESS.findall(line) or named))
        ]
        telling = [line for line in lines if not _CONSEQUENCE.search(line)]
        return (telling or lines)[-1].strip() if lines else ""

    @property
    def kernel_compiler(self) -> str:
        """The compiler that built the running kernel, with its version: gcc-12."""
        match = _COMPILER.search(self.first("kernel_build"))
        return match[1] if match else ""

    @property
    def build_error(self) -> str:
        """Why the last build of the module failed; empty if no failure is known."""
        return dkms.first_error("\n".join(self.all("log"))) or ""

    def labels(self) -> dict[str, str]:
        """Labels of the Kubernetes node."""
        labels = self._part("metadata", "labels")
        return {str(key): str(value) for key, value in labels.items()}

    def quantity(self, part: str, resource: str) -> int | None:
        """``capacity`` or ``allocatable`` of a resource; ``None`` if the node does not list it."""
        return parse_uint(str(self._part("status", part).get(resource, "")))

    def resources(self) -> tuple[str, ...]:
        """NVIDIA's resources that the node lists, including those with capacity 0."""
        return tuple(
            sorted(key for key in self._part("status", "capacity") if key.startswith("nvidia.com/"))
        )

    def taints(self) -> list[str]:
        """Taints as ``key=value:effect``."""
        taints = self._part("spec").get("taints")
        rows = [row for row in taints if isinstance(row, dict)] if isinstance(taints, list) else []
        return [
            f"{row.get('key')}{'=' + str(row['value']) if row.get('value') else ''}:{row.get('effect')}"
            for row in rows
        ]

    @property
    def cordoned(self) -> bool:
        """Kubernetes puts no new pods here."""
        return self._part("spec").get("unschedulable") is True

    def not_ready(self) -> str:
        """Why the node is not Ready; empty if it is, or if nothing is known."""
        row = self._condition("Ready")
        if not row or row.get("status") == "True":
            return ""
        return f"{row.get('reason')}: {row.get('message')}"

    def unhealthy(self) -> str:
        """What the node's condition ``GPUHealthy`` says, if that is False."""
        row = self._condition("GPUHealthy")
        if row.get("status") != "False":
            return ""
        return f"{row.get('reason')}: {row.get('message')}, at {row.get('lastHeartbeatTime')}"

    def _condition(self, kind: str) -> Json:
        """A condition of the node; empty if it has none of that type."""
        rows = self._part("status").get("conditions")
        entries = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
        return next((row for row in entries if row.get("type") == kind), {})

    def _part(self, *keys: str) -> Json:
        part: Any = self.node or {}
        for key in keys:
            part = part.get(key) if isinstance(part, dict) else None
        return part if isinstance(part, dict) else {}


def parse(text: str) -> Clues:
    """Parse the fragment's lines; malformed ones are left out."""
    rows: dict[str, list[str]] = {}
    units: dict[str, Unit] = {}
    fields: dict[str, str] = {}
    for line in text.split("\n"):  # splitlines() splits at more than line feeds
        key, equals, value = line.removesuffix("\r").partition("=")
        if not equals:
            continue
        if key == "unit.end":
            if "Id" in fields:
                units[fields["Id"]] = _unit(fields)
            fields = {}
        elif key.startswith("unit."):
            fields[key.removeprefix("unit.")] = value
        else:
            rows.setdefault(key, []).append(value)
    for row in rows.get("why", []):
        name, _, why = row.partition("|")
        if name in units:
            unit = units[name]
            units[name] = replace(unit, why=why)
    for name in rows.get("removed", []):
        if name in units and units[name].sub != "running":
            units[name] = Unit(units[name].name)
    linked = frozenset(rows.get("linked", []))
    for name, unit in units.items():
        units[name] = replace(unit, enabled=systemd.at_boot(unit.enabled, name in linked))
    uptime = parse_uint(rows.get("uptime", [""])[0])
    for name, unit in units.items():
        if unit.active == "activating" and uptime is not None and unit.since_s:
            units[name] = replace(unit, starting_s=max(0, uptime - unit.since_s))
    packages: dict[str, str] = {}
    for row in rows.get("installed", []):
        parts = row.split("|")
        if len(parts) == 3 and parts[2][1:2] == "i":
            packages[parts[0]] = dpkg.upstream_version(parts[1])
    return Clues(
        rows={key: tuple(values) for key, values in rows.items()},
        units=units,
        packages=packages,
        node=_object(rows.get("kube_node", [""])[0]),
        registered=_registered(rows.get("registered", [""])[0]),
    )


def _unit(fields: dict[str, str]) -> Unit:
    name = fields["Id"]
    return Unit(
        name=name.removesuffix(".service"),
        exists=fields.get("LoadState", "not-found") != "not-found",
        active=fields.get("ActiveState", ""),
        sub=fields.get("SubState", ""),
        enabled=fields.get("UnitFileState", ""),
        restarts=parse_uint(fields.get("NRestarts", "")) or 0,
        since_s=(parse_uint(fields.get("InactiveExitTimestampMonotonic", "")) or 0) // 1_000_000,
        skipped=fields.get("ConditionResult") == "no"
        and fields.get("ConditionTimestampMonotonic", "0") != "0",
    )


def _object(text: str) -> Json | None:
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
        str(key): tuple(str(device) for device in ids) if isinstance(ids, list) else ()
        for key, ids in data.items()
    }
