"""GPUs that are out of use on a node for a while, each with a reason and an end: the file that says so.

Every look at the node reads it, so the others can go on and nobody takes the quarantined one for well.
It ends by itself: an entry whose end has passed counts no more, and is shown as ended until the file is
written again.

This module also runs on the nodes themselves: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

FORMAT = "gpustate.quarantine/1"
FILE = "quarantine.json"  # below the state folder

#: Prints the file on one line and the node's time where there is one.
SCRIPT = r"""
[ -s "$G/quarantine.json" ] && { printf 'quarantine='; tr '\n' ' ' <"$G/quarantine.json"; echo; printf 'now=%s\n' "$(date +%s)"; }
"""


@dataclass(frozen=True)
class Entry:
    """One GPU, out of use until a time."""

    uuid: str
    pci: str  # as sysfs has it; a GPU off the bus has no UUID any more
    reason: str
    until: int  # seconds since 1970, by the node's clock
    since: int
    by: str  # inventory, or who gave the command

    @property
    def text(self) -> str:
        """One line: which GPU, until when, why, by whom."""
        name = self.uuid or self.pci
        return f"{name} until {stamp(self.until)}: {self.reason} ({self.by})"


@dataclass(frozen=True)
class Quarantine:
    """All entries, and the node's time when they were read."""

    entries: tuple[Entry, ...] = ()
    now: int = 0
    problem: str = ""  # why the file cannot be read

    @property
    def active(self) -> tuple[Entry, ...]:
        """Those whose end is still to come."""
        return tuple(one for one in self.entries if one.until > self.now)

    @property
    def ended(self) -> tuple[Entry, ...]:
        """Those that are over."""
        return tuple(one for one in self.entries if one.until <= self.now)

    def holds(self, uuid: str, pci: str) -> bool:
        """A GPU is in quarantine now."""
        return any((uuid and one.uuid == uuid) or (pci and one.pci == pci) for one in self.active)


def stamp(seconds: int) -> str:
    """A time as people read and write it, in UTC, by the Gregorian calendar."""
    days, rest = divmod(seconds, 86400)
    era, day = divmod(days + 719468, 146097)  # of 400 years that begin with March
    years = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * years + years // 4 - years // 100
    month = (5 * day + 2) // 153
    date = day - (153 * month + 2) // 5 + 1
    year = 400 * era + years + (month >= 10)
    number = month + 3 if month < 10 else month - 9
    return f"{year:04d}-{number:02d}-{date:02d}T{rest // 3600:02d}:{rest % 3600 // 60:02d}Z"


def read(text: str, now: int) -> Quarantine:
    """Read the file's text; one that cannot be read holds nobody and says so."""
    if not text.strip():
        return Quarantine(now=now)
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError("another format")
        entries = tuple(_entry(one) for one in data["gpus"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Quarantine(now=now, problem=f"{FILE} cannot be read ({str(error)[:80]})")
    return Quarantine(entries, now)


def _entry(data: dict[str, object]) -> Entry:
    texts = [data[key] for key in ("uuid", "pci", "reason", "by")]
    numbers = [data[key] for key in ("until", "since")]
    if not all(isinstance(one, str) for one in texts) or not all(type(n) is int for n in numbers):
        raise ValueError("an entry has other fields")
    uuid, pci, reason, by = (str(one) for one in texts)
    until, since = (n for n in numbers if isinstance(n, int))
    return Entry(uuid, pci, reason, until, since, by)


def as_text(entries: tuple[Entry, ...]) -> str:
    """The file's text."""
    return json.dumps({"format": FORMAT, "gpus": [asdict(one) for one in entries]}, indent=1) + "\n"
