"""What is kept on a node about runs: the lock, and the newest program with its journal."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpustate import shell
from gpustate.core.file_queries import ODD, refuse_odd
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import NOW
from gpustate.formats.numbers import whole

#: How long a lock holds when nobody renews it, in seconds. A stage may build kernel modules.
LOCK_TTL_S = 3600

#: A file a state, on a node: what a person is told once, and what is in no journal and no document.
ONCE = "/run/gpustate/once"


@dataclass(frozen=True, slots=True)
class Lock:
    """Who holds a node."""

    run: str
    holder: str  # user@host of the controller
    reason: str  # what for: apply, or what a person gave to ``gpustate lock``
    since: int  # seconds since the epoch, by the node's clock or the controller's
    expires: int
    pid: int = 0  # of the controller, on its own host
    plan: str = ""
    born: str = ""  # when that process began: its number may be another's later
    ticket: str = ""  # what the person gave as the reason of a run

    def told(self) -> str:
        """Who, since when and until when, for a person."""

        def clock(at: int) -> str:
            try:
                return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            except (ValueError, OverflowError, OSError):
                return "a time that is none"

        why = f"{self.reason}: {self.ticket}" if self.ticket else self.reason
        return (
            f"held by {self.holder} ({why}) since {clock(self.since)} until {clock(self.expires)}"
        )

    def half_done(self) -> str:
        """What is said of a look at a node that is being worked on."""
        return f"{self.told()}: what this look shows may be half done; look again afterwards"


@dataclass(frozen=True, slots=True)
class Program:
    """The newest program on a node that has not written its last journal entry."""

    run: str
    alive: bool
    last: str  # its last journal line


@dataclass(frozen=True, slots=True)
class Ledger:
    """Lock and unfinished program, where there is one."""

    lock: Lock | None = None
    program: Program | None = None
    now: int = 0
    newest: str = "none"  # run: what is started later is started only if it is still that one
    machine: str = ""  # boot, machine and state folder; empty where one of them is not known
    told: tuple[str, ...] = ()  # states that have a secret for the person at the controller

    @property
    def locked(self) -> bool:
        """There is a lock and it has not expired."""
        return self.lock is not None and self.lock.expires > self.now

    def unfinished(self) -> str:
        """Why what a look shows may be half done, and the next move; empty where nobody is or was at work."""
        if self.program is not None and not self.program.alive:
            return f"run {self.program.run} was broken off in the middle: the next gpustate apply goes on from there"
        if self.locked and self.lock is not None and self.lock.reason == "apply":
            return self.lock.half_done()
        return ""


def read_lock(text: str) -> Lock | None:
    """Read a lock's text; damaged ones hold nobody, for they cannot say whom to ask."""
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
    """Ask for both in one fragment."""

    def script(self) -> str:
        return ODD + shell.load("ledger", "gpustate.engine").replace("@ONCE@", ONCE).replace(
            "@NOW@", NOW
        )

    def parse(self, answer: Answer) -> Ledger:
        lock: Lock | None = None
        program: Program | None = None
        now, newest = 0, "none"
        told: list[str] = []
        machine = ""
        for line in answer.text.splitlines():
            word, _, rest = line.partition(" ")
            if line.startswith("odd="):
                refuse_odd(line.removeprefix("odd="))
            elif word == "now":
                now = whole(rest.strip()) or now
            elif word == "lock":
                lock = read_lock(rest)
            elif word == "machine":
                machine = rest
            elif word == "told" and _RUN.fullmatch(rest):
                told.append(rest)
            elif word == "newest" and _RUN.fullmatch(rest):
                newest = rest
            elif word == "program":
                run, _, rest = rest.partition(" ")
                alive, _, last = rest.partition(" ")
                # It is put into scripts: a folder that is no run of ours is left alone.
                if _RUN.fullmatch(run):
                    program = Program(run, alive == "1", last)
        return Ledger(lock, program, now, newest, machine, tuple(told))

    def placeholder(self) -> Ledger:
        return Ledger()


def lock_script(lock: dict[str, Any], *, force: bool) -> str:
    """sh that takes the lock for a person; prints ``held <info>`` and ends with 8 when it is held."""
    info = shlex.quote(json.dumps(lock, sort_keys=True))
    taken = "false" if force else '[ "$(cat $G/lock/expires)" -gt "$(date +%s)" ]'
    return f"""mkdir -p -m 0700 $G && t=$(mktemp -d $G/lock.XXXXXX) || {{ echo "$G cannot be written"; exit 1; }}
printf %s {info} >$t/info; printf %s {shlex.quote(str(lock["run"]))} >$t/run; printf %s {int(lock["expires"])} >$t/expires || {{ rm -rf $t; echo "the disk of $G is full"; exit 1; }}
if [ -d $G/lock ]; then if {taken}; then rm -rf $t; printf 'held '; cat $G/lock/info; exit 8; fi; rm -rf $G/lock; fi
mv -T $t $G/lock || {{ rm -rf $t; printf 'held '; cat $G/lock/info; exit 8; }}"""


def unlock_script(holder: str, *, force: bool) -> str:
    """sh that lets go of the lock; ends with 8 when somebody else holds it."""
    mine = "true" if force else f"grep -qF {shlex.quote(json.dumps(holder))} $G/lock/info"
    return f"""[ -d $G/lock ] || {{ echo "not locked"; exit 0; }}
if {mine}; then rm -rf $G/lock; echo unlocked; else printf 'held '; cat $G/lock/info; exit 8; fi"""
