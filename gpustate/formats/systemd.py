"""What ``systemctl show`` prints, as data. Sources: systemctl(1), org.freedesktop.systemd1(5)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpustate.formats.modprobe import is_nothing
from gpustate.formats.numbers import whole

#: Where files of units and their drop-ins are, the first before the others: systemd.unit(5).
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
SHOW_KEYS = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "ActiveEnterTimestampMonotonic",
    "ExecMainStatus",
    "Result",
)
_COMMAND = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*(\S.*)$", re.MULTILINE)
_VARIABLE = r"^[ \t]*Environment[ \t]*=(?:.*[ \t\"'])?{}=([^ \t\"'\n]*)"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit as systemd sees it."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    unit_file_state: str
    fragment_path: str
    drop_ins: tuple[str, ...]
    need_daemon_reload: bool
    active_since_us: int
    result: str

    @property
    def exists(self) -> bool:
        """systemd found a unit file."""
        return self.load_state not in ("not-found", "")

    @property
    def active(self) -> bool:
        """Running, or a oneshot that stays active."""
        return self.active_state == "active"

    @property
    def enabled(self) -> bool:
        """Started at boot; static and generated units count, for nothing more can be done."""
        return self.unit_file_state in (
            "enabled",
            "enabled-runtime",
            "static",
            "generated",
            "alias",
        )


def parse_show(text: str) -> dict[str, Unit]:
    """Read blocks of ``Key=value`` separated by empty lines, one block a unit."""
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
        since = keys.get("ActiveEnterTimestampMonotonic", "0")
        units[name] = Unit(
            name=name,
            load_state=keys.get("LoadState", ""),
            active_state=keys.get("ActiveState", ""),
            sub_state=keys.get("SubState", ""),
            unit_file_state=keys.get("UnitFileState", ""),
            fragment_path=keys.get("FragmentPath", ""),
            drop_ins=tuple(keys.get("DropInPaths", "").split()),
            need_daemon_reload=keys.get("NeedDaemonReload") == "yes",
            active_since_us=whole(since) or 0,
            result=keys.get("Result", ""),
        )
    return units


def as_on_disk(units: Mapping[str, Unit], listed: str) -> dict[str, Unit]:
    """Units with the state of their files as ``systemctl list-unit-files --plain`` has it, where it lists them."""
    found = dict(units)
    for line in listed.splitlines():
        name, state, *_ = (*line.split(), "", "")
        if name in found and state not in ("", "alias"):
            found[name] = replace(found[name], unit_file_state=state)
    return found


def at_boot(state: str, linked: bool) -> str:
    """State of a unit's file as the disk has it.

    Args:
        state: ``UnitFileState``, which systemd keeps from when it last read a unit.
        linked: a link in a ``.wants`` or ``.requires`` folder below ``/etc/systemd/system`` has it started.
    """
    if linked:
        return "enabled" if state == "disabled" else state
    return "disabled" if state == "enabled" else state


def last_word(drop_ins: Mapping[str, str], ours: str = "") -> tuple[str, str]:
    """The drop-in that says what a service runs, and its command; empty where none does, or ``ours`` after it.

    Args:
        drop_ins: path to text; ``ours`` may be among them, or not yet be there.
        ours: path of one that says it, too.
    """
    found = ("", "")
    for path in sorted({*drop_ins, ours} - {""}, key=posixpath.basename):
        if path == ours:
            found = ("", "")
        elif commands := _COMMAND.findall(drop_ins[path]):
            found = (path, commands[-1])
    return found


def runs_nothing(drop_ins: Mapping[str, str], unit: str) -> str:
    """That a drop-in has a unit run nothing (``/bin/false``), and the next move; empty where none does.

    Args:
        drop_ins: path to text, of others.
        unit: its name.
    """
    path, command = last_word(drop_ins)
    if not is_nothing(command.lstrip("-@:+!")):
        return ""
    return (
        f"{path} has {unit} run {command}, so that nothing runs: fix that drop-in or remove it, then "
        "systemctl daemon-reload"
    )


def last_variable(drop_ins: Mapping[str, str], name: str) -> tuple[str, str]:
    """The drop-in that says what a variable of a service's environment is, and its value; empty where none does."""
    found = ("", "")
    pattern = re.compile(_VARIABLE.format(re.escape(name)), re.MULTILINE)
    for path in sorted(drop_ins, key=posixpath.basename):
        if values := pattern.findall(drop_ins[path]):
            found = (path, values[-1])
    return found
