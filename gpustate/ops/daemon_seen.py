"""What a probe finds of a container runtime's daemon: rows and whole files of one ask, and how they are judged.

The daemon's own program and its unit are asked in one fragment, so that a look stays at one exec. Files are told
whole, with their sizes ahead, for they may hold any byte.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpustate import shell
from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.file_queries import ODD, behind_link, refuse_odd
from gpustate.core.shared_probes import ORIGINALS, show_unit
from gpustate.errors import ProbeError
from gpustate.formats.containerd import Edit
from gpustate.formats.numbers import parse_uint
from gpustate.ops.library import original_path

_q = shlex.quote

#: States of a unit in which it has to read what changes: a reload or a restart on its way, and a service
#: that systemd tries to start again and again, among them.
RUNNING = ("active", "reloading", "activating", "failed")


class Service(Protocol):
    """What an ask has found of a daemon's program and unit."""

    @property
    def program(self) -> str: ...
    @property
    def active(self) -> str: ...
    @property
    def enabled(self) -> str: ...
    @property
    def starting_s(self) -> int: ...


def stopped(service: Service, restart: str, *, needed: bool) -> bool:
    """Whether a service is meant to run and does not.

    Args:
        service: its program, ``ActiveState`` and ``UnitFileState``. A masked one is missed: its state says that
            it is to serve.
        restart: the state's parameter; whoever restarts a service is also the one to start it.
        needed: it is missed where it is disabled, too.
    """
    if restart != "systemd" or not service.program:
        return False
    to_run = service.enabled in ("enabled", "enabled-runtime") or (needed and disabled(service))
    return service.enabled == "masked" or (service.active in ("inactive", "failed") and to_run)


def disabled(service: Service) -> bool:
    """Whether nothing starts a service at the next boot."""
    return service.enabled == "disabled"


#: ``UnitFileState`` of a service that systemd does not know.
NOT_FOUND = "not-found"


def no_service(service: Service, unit: str, usual: str) -> str | None:
    """Refuse a service that a policy names and systemd does not know, where the daemon is installed.

    Args:
        service: what is there.
        unit: as the policy has it.
        usual: what it is called where the policy does not say; a daemon may do without that one.
    """
    if unit == usual or not service.program or service.enabled != NOT_FOUND:
        return None
    return (
        f"unit {unit} not found; set the parameter unit to the service that runs {service.program}"
    )


def starting(unit: str, seconds: int) -> str:
    """What is wrong with a service that hangs in its start."""
    return f"{unit} has been starting for {seconds} s without becoming active"


def silent(service: Service, unit: str, restart: str) -> str | None:
    """Refuse a daemon that systemd calls active and that nobody gets an answer from.

    Args:
        service: what is there.
        unit: its service.
        restart: the state's parameter; whoever restarts a service is also the one to look after it.
    """
    if restart != "systemd" or not service.program or not service.starting_s:
        return None
    return f"{starting(unit, service.starting_s)}; journalctl -u {unit} may show what it waits for; fix that, or wait"


#: Seconds after which a start hangs.
PATIENCE_S = 60


def digest(files: Mapping[str, str]) -> str:
    """Of paths and texts: what a saved plan has of files that may hold passwords."""
    return hashlib.sha256(json.dumps(dict(sorted(files.items()))).encode()).hexdigest()[:16]


def or_refusal(plan: Plan, reason: str | None) -> Plan:
    """What a look after the steps finds: with nothing left to do, a refusal is what they did not solve."""
    if reason is None or plan:
        return plan
    return Plan((Change("problem", reason, "", Disruption.NONE),))


def plain_files(edit: Edit, links: Mapping[str, str]) -> Edit:
    """The edit, where it writes plain files.

    Raises:
        RefusedError: one of them is a symbolic link.
    """
    for path in edit.files:
        if path in links:
            raise behind_link(path, links[path])
    return edit


def and_kept(problem: str, originals: Mapping[str, str | None]) -> str:
    """Say of a file that a problem names where its bytes are kept from before gpustate."""
    path = max((path for path in originals if path in problem), key=len, default="")
    if not path:
        return problem
    if originals[path] is None:
        return f"{problem} ({path} did not exist before gpustate)"
    return f"{problem} (the original is kept in {original_path(path)})"


def owed(name: str) -> str:
    """What a daemon ran with before a change it has yet to read; on tmpfs, because a boot reads it."""
    return f"/run/gpustate/{name}"


def served(name: str) -> str:
    """The note that gpustate has had this node's daemon read the handler, which it names; below ``$G``."""
    return f"{name}.served"


def unit_command(unit: str) -> str:
    """Sh that prints ``unit=1``, ``active=`` and ``enabled=`` and sets ``x``, the unit's command line, and ``t``.

    One that systemd starts again and again counts as failed. ``hl`` is set where nobody is to be asked for an
    answer; a start that hangs is told with ``starting=``.
    ``t`` is when the service started, empty when it does not run; ``m`` its process.
    In an image, ``x`` is what systemd will run when it boots: the last of the unit's command lines.
    """
    return shell.fill(_UNIT_COMMAND, UNIT=_q(unit), SHOWN=show_unit(unit), PATIENCE=str(PATIENCE_S))


#: Defines ``odd``; ``blob KIND PATH FILE``, which puts a file among those that ``print_blobs`` prints; and ``known FOLDER...``,
#: which does so with kept originals.
BLOBS = ODD + shell.fill(shell.load("blobs", "gpustate.ops"), ORIGINALS=ORIGINALS)


@dataclass(frozen=True, slots=True)
class Rows:
    """What an ask printed: rows of ``key=value``, and whole files.

    A file stands behind its row ``kind=SIZE PATH``. Those that ``print_blobs`` printed have rows ``several=KIND PATH``, and
    stand, after a line with the size of each, all behind ``contents=``.
    """

    keys: Mapping[str, tuple[str, ...]]
    blobs: Mapping[str, Mapping[str, str]]

    def last(self, key: str) -> str:
        """The value of the last row of a key; empty where there is none."""
        return self.keys.get(key, ("",))[-1]

    @property
    def starting_s(self) -> int:
        """For how long the unit has been starting, where that is too long; else 0."""
        return parse_uint(self.last("starting")) or 0

    @property
    def service(self) -> tuple[str, str]:
        """``ActiveState``, empty where no unit is loaded, and ``UnitFileState``, ``not-found`` where there is none."""
        active = self.last("active") if "unit" in self.keys else ""
        return active, NOT_FOUND if "no_unit" in self.keys else self.last("enabled")

    def pairs(self, key: str) -> dict[str, str]:
        """The rows of a key, their first word to the rest."""
        split = (row.partition(" ") for row in self.keys.get(key, ()))
        return {word: value for word, _, value in split}

    def only_files(self) -> None:
        """Refuse what ``odd`` has found.

        Raises:
            RefusedError: something else is where a file belongs that is read or written here.
        """
        for row in self.keys.get("odd", ()):
            refuse_odd(row)

    @property
    def links(self) -> dict[str, str]:
        """Files that are symbolic links, to what they lead to."""
        rows = (row.rpartition("|") for row in self.keys.get("link", ()))
        return {path: target for path, _, target in rows}

    @property
    def originals(self) -> dict[str, str | None]:
        """Path to text as it was before gpustate; ``None`` for a file that was not there."""
        return {**dict.fromkeys(self.keys.get("missing", ())), **self.blobs["original"]}


def read_rows(out: bytes, title: str, kinds: tuple[str, ...]) -> Rows:
    """Read the answer of an ask.

    Args:
        out: what it printed.
        title: whose files they are, for the message.
        kinds: the rows that files follow.

    Raises:
        ProbeError: a file is shorter than its row says.
    """
    keys: dict[str, list[str]] = {}
    blobs: dict[str, dict[str, str]] = {kind: {} for kind in (*kinds, "original")}
    waiting: list[tuple[str, str]] = []
    remaining = out
    while remaining:
        row, _, remaining = remaining.partition(b"\n")
        key, _, value = row.decode("utf-8", "replace").partition("=")
        if key in blobs:
            size, _, path = value.partition(" ")
            current, sizes = [(key, path)], [size.encode()]
        elif key == "contents":
            *sizes, remaining = remaining.split(b"\n", len(waiting))
            current, waiting = waiting, []
        else:
            if key == "several":
                kind, _, path = value.partition(" ")
                waiting.append((kind, path))
            else:
                keys.setdefault(key, []).append(value)
            continue
        for (kind, path), length_text in zip(current, sizes, strict=False):
            length = parse_uint(length_text.decode("ascii", "replace"))
            if length is None or length > len(remaining) or kind not in blobs:
                raise ProbeError(f"the listing of {title} is truncated at {path[:80]!r}")
            blobs[kind][path] = remaining[:length].decode("utf-8", "replace")
            remaining = remaining[length:]
        if len(sizes) != len(current) or remaining[:1] not in (b"", b"\n"):
            raise ProbeError(
                f"the listing of {title} is inconsistent: a file changed while it was read"
            )
        remaining = remaining[1:]
    if waiting:
        raise ProbeError(f"the listing of {title} is truncated at {waiting[0][1][:80]!r}")
    return Rows({key: tuple(values) for key, values in keys.items()}, blobs)


_UNIT_COMMAND = shell.load("unit_command", "gpustate.ops")
