"""Records of runs on a node: the lock, and the newest program with its journal."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpustate import shell
from gpustate.core.file_queries import ODD, refuse_odd
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import TIME_S
from gpustate.formats.numbers import parse_uint

if TYPE_CHECKING:
    from gpustate.remote.nodeprogram import LockInfo

#: Seconds until a lock expires unless it is renewed. A stage may build kernel modules.
LOCK_TTL_S = 3600

#: How the reason of a lock begins that no run holds.
LOCKED = "locked: "
#: Folder on a node with one file per state: secrets that the user sees once and that no journal or document contains.
ONCE = "/run/gpustate/once"


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock of a node and its holder."""

    run: str
    holder: str  # user@host of the controller
    reason: str  # ``apply``, or the reason given to ``gpustate node lock``
    since: int  # seconds since the epoch, by the clock of the node or of the controller
    expires: int
    pid: int = 0  # of the controller, on its own host
    plan: str = ""
    born: str = ""  # start time of that process, since its id may be reused
    ticket: str = ""  # the user's reason for a run

    def describe(self) -> str:
        """Holder, start and expiry in words."""

        def clock(at: int) -> str:
            try:
                return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            except (ValueError, OverflowError, OSError):
                return "an invalid time"

        why = f"{self.reason}: {self.ticket}" if self.ticket else self.reason
        return (
            f"held by {self.holder} ({why}) since {clock(self.since)} until {clock(self.expires)}"
        )

    def half_done(self) -> str:
        """Warning for observations of a node that another run is changing."""
        return f"{self.describe()}: changes may be half done; run this command again afterwards"


@dataclass(frozen=True, slots=True)
class Program:
    """The newest program on a node whose journal has no end."""

    run: str
    alive: bool
    last: str  # its last journal line


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lock and unfinished program of a node."""

    lock: Lock | None = None
    program: Program | None = None
    now: int = 0
    newest: str = "none"  # the newest run: a program starts only if it is still the newest
    machine: str = ""  # boot, machine and state folder; empty if one of them is unknown
    secrets: tuple[str, ...] = ()  # states with a secret for the user at the controller

    @property
    def locked(self) -> bool:
        """There is a lock and it has not expired."""
        return self.lock is not None and self.lock.expires > self.now

    @property
    def running(self) -> bool:
        """A program is changing the node."""
        return self.program is not None and self.program.alive

    def unfinished(self) -> str:
        """Why observations may be half done, and the next step; empty if no run is in progress or interrupted."""
        if self.program is not None and not self.program.alive:
            return f"run {self.program.run} was interrupted; continue it: gpustate apply POLICY -l NODE"
        if self.locked and self.lock is not None and self.lock.reason == "apply":
            return self.lock.half_done()
        return ""


def read_lock(text: str) -> Lock | None:
    """Parse a lock; a damaged one is ignored, since it names no holder."""
    try:
        data: Any = json.loads(text)
        return Lock(
            run=str(data["run"]),
            holder=str(data["holder"]),
            reason=str(data.get("reason", "")),
            since=int(data["since"]),
            expires=int(data["expires"]),
            pid=int(data.get("pid", 0)),
            plan=str(data.get("plan", "")),
            born=str(data.get("born", "")),
            ticket=str(data.get("ticket", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


_RUN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True, slots=True)
class LedgerQuery(Query[Ledger]):
    """Query both in one fragment."""

    def script(self) -> str:
        return ODD + shell.fill(shell.load("ledger", "gpustate.engine"), ONCE=ONCE, NOW=TIME_S)

    def parse(self, answer: Answer) -> Ledger:
        lock: Lock | None = None
        program: Program | None = None
        clock_s, newest = 0, "none"
        secrets: list[str] = []
        machine = ""
        for line in answer.text.splitlines():
            word, _, text = line.partition(" ")
            if line.startswith("odd="):
                refuse_odd(line.removeprefix("odd="))
            elif word == "now":
                clock_s = parse_uint(text.strip()) or clock_s
            elif word == "lock":
                lock = read_lock(text)
            elif word == "machine":
                machine = text
            elif word == "noted" and _RUN.fullmatch(text):
                secrets.append(text)
            elif word == "newest" and _RUN.fullmatch(text):
                newest = text
            elif word == "program":
                run, _, text = text.partition(" ")
                alive, _, last = text.partition(" ")
                # The name is put into scripts, so only that of a run is accepted.
                if _RUN.fullmatch(run):
                    program = Program(run, alive == "1", last)
        return Ledger(lock, program, clock_s, newest, machine, tuple(secrets))

    def placeholder(self) -> Ledger:
        return Ledger()


def lock_script(lock: LockInfo, *, force: bool) -> str:
    """sh that takes the lock for a person; prints ``held <info>`` and exits with 8 if it is held."""
    return shell.load(
        "lock",
        "gpustate.engine",
        INFO=json.dumps(lock, sort_keys=True),
        RUN=str(lock["run"]),
        EXPIRES=str(int(lock["expires"])),
        FORCE="1" if force else "",
    )


def unlock_script(holder: str, *, force: bool) -> str:
    """sh that releases the lock; exits with 8 if another person holds it, or a run."""
    return shell.load(
        "unlock",
        "gpustate.engine",
        PERSON=json.dumps(holder),
        REASON=f'"reason": "{LOCKED}',
        FORCE="1" if force else "",
    )
