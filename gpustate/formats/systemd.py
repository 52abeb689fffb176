"""Parse the output of ``systemctl show``. Sources: systemctl(1), org.freedesktop.systemd1(5)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpustate.formats.modprobe import is_nothing

#: Folders of unit files and drop-ins in order of precedence: systemd.unit(5).
FOLDERS = (
    *("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system"),
    *("/usr/lib/systemd/system", "/lib/systemd/system"),
)
SHOW_KEYS = ("Id", "LoadState", "ActiveState", "SubState", "UnitFileState")
_COMMAND = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*(\S.*)$", re.MULTILINE)
_VARIABLE = r"^[ \t]*Environment[ \t]*=(?:.*[ \t\"'])?{}=([^ \t\"'\n]*)"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit in systemd."""

    name: str
    load_state: str
    active_state: str
    unit_file_state: str

    @property
    def exists(self) -> bool:
        """Whether systemd found a unit file."""
        return self.load_state not in ("not-found", "")

    @property
    def active(self) -> bool:
        """Whether it is running, or a oneshot that remains active."""
        return self.active_state == "active"

    @property
    def enabled(self) -> bool:
        """Whether it is started at boot; static and generated units count, as they cannot be enabled."""
        return self.unit_file_state in (
            "enabled",
            "enabled-runtime",
            "static",
            "generated",
            "alias",
        )


def parse_show(text: str) -> dict[str, Unit]:
    """Read blocks of ``Key=value`` separated by empty lines, one block per unit."""
    units: dict[str, Unit] = {}
    for block in text.split("\n\n"):
        keys: dict[str, str] = {}
        for line in block.splitlines():
            key, equals, value = line.partition("=")
            if equals:
                keys[key] = value
        name = keys.get("Id")
        if not name:
            continue
        units[name] = Unit(
            name=name,
            load_state=keys.get("LoadState", ""),
            active_state=keys.get("ActiveState", ""),
            unit_file_state=keys.get("UnitFileState", ""),
        )
    return units


def as_on_disk(units: Mapping[str, Unit], listed: str) -> dict[str, Unit]:
    """Units with their file state from ``systemctl list-unit-files --plain``, if listed."""
    states = dict(units)
    for line in listed.splitlines():
        name, state, *_ = (*line.split(), "", "")
        if name in states and state not in ("", "alias"):
            states[name] = replace(states[name], unit_file_state=state)
    return states


def at_boot(state: str, linked: bool) -> str:
    """State of a unit's file on disk.

    Args:
        state: ``UnitFileState``, from the last time systemd loaded the unit.
        linked: a link in a ``.wants`` or ``.requires`` folder below ``/etc/systemd/system`` starts it.
    """
    if linked:
        return "enabled" if state == "disabled" else state
    return "disabled" if state == "enabled" else state


def effective_command(drop_ins: Mapping[str, str], own_path: str = "") -> tuple[str, str]:
    """The drop-in that sets the command of a service, and the command; empty if none does or ``own_path`` overrides it.

    Args:
        drop_ins: text by path; ``own_path`` may be among them.
        own_path: path of our own drop-in, which sets a command too.
    """
    effective = ("", "")
    for path in sorted({*drop_ins, own_path} - {""}, key=posixpath.basename):
        if path == own_path:
            effective = ("", "")
        elif commands := _COMMAND.findall(drop_ins[path]):
            effective = (path, commands[-1])
    return effective


def runs_nothing(drop_ins: Mapping[str, str], unit: str) -> str:
    """The message about a drop-in with which a unit runs nothing (``/bin/false``), with the remedy; empty if none.

    Args:
        drop_ins: text by path of foreign drop-ins.
        unit: its name.
    """
    path, command = effective_command(drop_ins)
    if not is_nothing(command.lstrip("-@:+!")):
        return ""
    return (
        f"{path} sets the command of {unit} to {command}, so it does nothing: fix or remove that drop-in, "
        "then run systemctl daemon-reload"
    )


def effective_variable(drop_ins: Mapping[str, str], name: str) -> tuple[str, str]:
    """The drop-in that sets an environment variable of a service, and its value; empty if none does."""
    effective = ("", "")
    pattern = re.compile(_VARIABLE.format(re.escape(name)), re.MULTILINE)
    for path in sorted(drop_ins, key=posixpath.basename):
        if values := pattern.findall(drop_ins[path]):
            effective = (path, values[-1])
    return effective
