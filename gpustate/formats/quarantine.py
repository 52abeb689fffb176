"""The file of quarantined GPUs on a node, each with a reason and an end.

Every probe of the node reads it, so that the other GPUs stay in use and the quarantined one is not reported as
healthy. A quarantine expires by itself: an expired entry has no effect, and is shown as ended until the file is
written again.

This module also runs on the nodes themselves: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

FORMAT = "gpustate.quarantine/1"
FILE = "quarantine.json"  # below the state folder

#: Prints the file on one line, and the node's time, if the file exists.
SCRIPT = r"""
[ -s "$G/quarantine.json" ] && { printf 'quarantine='; tr '\n' ' ' <"$G/quarantine.json"; echo; printf 'now=%s\n' "$(date +%s)"; }
"""


@dataclass(frozen=True)
class Entry:
    """One GPU in quarantine until a time."""

    uuid: str
    pci: str  # as sysfs has it; a GPU off the bus has no UUID any more
    reason: str
    until: int  # seconds since 1970, by the node's clock
    since: int
    by: str  # inventory, or who gave the command

    @property
    def text(self) -> str:
        """One line with GPU, end, reason and author."""
        name = self.uuid or self.pci
        return f"{name} until {stamp(self.until)}: {self.reason} ({self.by})"


@dataclass(frozen=True)
class Quarantine:
    """All entries, and the node's time when they were read."""

    entries: tuple[Entry, ...] = ()
    node_time: int = 0
    problem: str = ""  # why the file cannot be read

    @property
    def active(self) -> tuple[Entry, ...]:
        """Entries that have not expired."""
        return tuple(entry for entry in self.entries if entry.until > self.node_time)

    @property
    def expired(self) -> tuple[Entry, ...]:
        """Entries that have expired."""
        return tuple(entry for entry in self.entries if entry.until <= self.node_time)

    def holds(self, uuid: str, pci: str) -> bool:
        """Whether a GPU is in quarantine now."""
        return any((uuid and e.uuid == uuid) or (pci and e.pci == pci) for e in self.active)


def stamp(seconds: int) -> str:
    """A readable time in UTC."""
    days, day_seconds = divmod(seconds, 86400)
    era, day = divmod(days + 719468, 146097)  # of 400 years that begin with March
    years = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * years + years // 4 - years // 100
    month = (5 * day + 2) // 153
    date = day - (153 * month + 2) // 5 + 1
    year = 400 * era + years + (month >= 10)
    number = month + 3 if month < 10 else month - 9
    return f"{year:04d}-{number:02d}-{date:02d}T{day_seconds // 3600:02d}:{day_seconds % 3600 // 60:02d}Z"


def read(text: str, node_time: int) -> Quarantine:
    """Parse the file; an invalid one has no entries and sets ``problem``."""
    if not text.strip():
        return Quarantine(node_time=node_time)
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError("unknown format")
        entries = tuple(_entry(item) for item in data["gpus"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Quarantine(node_time=node_time, problem=f"{FILE} cannot be read ({str(error)[:80]})")
    return Quarantine(entries, node_time)


def _entry(data: dict[str, object]) -> Entry:
    texts = [data[key] for key in ("uuid", "pci", "reason", "by")]
    numbers = [data[key] for key in ("until", "since")]
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in numbers):
        raise ValueError("an entry has unknown or missing fields")
    uuid, pci, reason, by = (str(text) for text in texts)
    until, since = (n for n in numbers if isinstance(n, int))
    return Entry(uuid, pci, reason, until, since, by)


def as_text(entries: tuple[Entry, ...]) -> str:
    """The file's text."""
    return json.dumps({"format": FORMAT, "gpus": [asdict(e) for e in entries]}, indent=1) + "\n"
