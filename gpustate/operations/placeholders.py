"""Placeholders for facts whose queries have no answer yet.

An operation reads more if an object exists than if it does not: first the file, then its hash. So it is tried
with placeholders of several worlds, from one where nothing exists to one where everything does, and the
queries of all tries are sent together. Placeholders decide nothing; the plan is made from answers.
"""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pyinfra.api.facts import FactBase, ShortFactBase
from pyinfra.facts import files, server, systemd


class World(Enum):
    """The objects that placeholders assume to exist."""

    NOTHING = "nothing"
    FILES = "files only"
    EVERYTHING = "everything"


_SAMPLE_TIME = datetime(2000, 1, 1)
_EXISTING = {
    **{"user": "root", "group": "root", "mode": 644, "size": 1, "link_target": "/"},
    **{"atime": _SAMPLE_TIME, "mtime": _SAMPLE_TIME, "ctime": _SAMPLE_TIME},
}


class _Users(dict[Any, Any]):
    """Every user exists, with the usual home directory."""

    def get(self, key: object, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: object) -> Any:
        home = "/root" if key == "root" else f"/home/{key}"
        return {"home": home, "shell": "", "group": key, "groups": [], "password": ""}


#: Placeholders of all worlds.
_ALWAYS: dict[type[Any], Any] = {
    server.Os: "Linux",
    server.Kernel: "Linux",
    server.Home: "/root",
    server.Date: _SAMPLE_TIME.replace(tzinfo=UTC),
}
_PLACEHOLDERS: dict[type[Any], Any] = {
    files.File: _EXISTING,
    files.Directory: {**_EXISTING, "mode": 755},
    files.Link: _EXISTING,
    files.Sha1File: "0" * 40,
    files.Sha256File: "0" * 64,
    files.Sha384File: "0" * 96,
    files.Md5File: "0" * 32,
    files.FileContents: [""],
    files.FindInFile: [""],
    files.Block: [""],
    server.Which: "/usr/bin/true",
    server.Command: "0",
    server.Hostname: "node",
    server.Users: _Users(),
    server.LinuxName: "Debian",
    systemd.SystemdStatus: {},
}


class Anything(dict[Any, Any]):
    """A placeholder of any type: it has every key and attribute, and iterates over nothing."""

    def __bool__(self) -> bool:
        return True

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: object) -> Anything:
        return Anything()

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *arguments: Any, **named: Any) -> Anything:
        return Anything()

    def get(self, key: object, default: Any = None) -> Any:
        return Anything()


def placeholder(fact: type[Any], world: World) -> Any:
    """Return the placeholder of a fact."""
    if issubclass(fact, ShortFactBase):
        try:
            return fact().process_data(placeholder(fact.fact, world))
        except Exception:  # noqa: BLE001  a placeholder may be invalid for its reader
            return None
    if fact in _ALWAYS:
        return _ALWAYS[fact]
    if world is not World.NOTHING and fact in _PLACEHOLDERS:
        # An operation may modify the value of a fact.
        return copy(_PLACEHOLDERS[fact])
    if world is World.EVERYTHING:
        return Anything()
    return fact.default() if issubclass(fact, FactBase) else None
