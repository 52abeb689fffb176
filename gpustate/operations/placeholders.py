"""What a fact is taken to say while its answer is on its way.

An operation reads more where something is there than where it is not: the hash of a file comes after
the file. So it is tried against placeholders of several worlds, from one where nothing is there to one where all
is, and the queries of all leave together. None of these decides anything: that is for the answers.
"""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pyinfra.api.facts import FactBase, ShortFactBase
from pyinfra.facts import files, server, systemd


class World(Enum):
    """What is taken to be there."""

    NOTHING = "nothing"
    FILES = "files, and nothing else"
    EVERYTHING = "everything"


_THEN = datetime(2000, 1, 1)
_THERE = {
    **{"user": "root", "group": "root", "mode": 644, "size": 1, "link_target": "/"},
    **{"atime": _THEN, "mtime": _THEN, "ctime": _THEN},
}


class _Users(dict[Any, Any]):
    """Every user is there, with the home that most have."""

    def get(self, key: object, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: object) -> Any:
        home = "/root" if key == "root" else f"/home/{key}"
        return {"home": home, "shell": "", "group": key, "groups": [], "password": ""}


#: Taken to be so in either case.
_ALWAYS: dict[type[Any], Any] = {
    server.Os: "Linux",
    server.Kernel: "Linux",
    server.Home: "/root",
    server.Date: _THEN.replace(tzinfo=UTC),
}
_KNOWN: dict[type[Any], Any] = {
    files.File: _THERE,
    files.Directory: {**_THERE, "mode": 755},
    files.Link: _THERE,
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
    """Stands for a value of any shape: has every key and attribute, and nothing to go through."""

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
    """What a fact is taken to say."""
    if issubclass(fact, ShortFactBase):
        try:
            return fact().process_data(placeholder(fact.fact, world))
        except Exception:  # noqa: BLE001  a placeholder need not make sense to what reads it
            return None
    if fact in _ALWAYS:
        return _ALWAYS[fact]
    if world is not World.NOTHING and fact in _KNOWN:
        # An operation may write into what a fact says.
        return copy(_KNOWN[fact])
    if world is World.EVERYTHING:
        return Anything()
    return fact.default() if issubclass(fact, FactBase) else None
