"""Maintenance windows: hours of the week in which nodes may begin to change. Pure.

``Mon-Fri 22:00-05:00 Europe/Berlin``: the days are those on which a window opens, so this one is open until
Saturday morning. Without a time zone the hours are UTC. A window is compared with the clock of the wall, so it keeps
its hours when the clocks change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpustate.errors import UsageError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
#: An hour of a week repeats after so many days; one more covers a night in which clocks change.
_AHEAD_DAYS = 8
_DAY_S = 86400
_WINDOW = re.compile(
    r"(?:(?P<days>[A-Za-z,-]+)\s+)?(?P<open>\d\d:\d\d)-(?P<close>\d\d:\d\d)(?:\s+(?P<zone>\S+))?"
)
_FIX = "write for example 'Mon-Fri 22:00-05:00 Europe/Berlin'; several are separated by ;"


def _zone(name: str) -> tzinfo:
    """A time zone by name; UTC needs no database of them."""
    return UTC if name == "UTC" else ZoneInfo(name)


@dataclass(frozen=True, slots=True)
class Window:
    """One window of every week.

    Args:
        days: on which it opens, Monday is 0.
        opens, closes: minutes since midnight; one that closes before it opens does so on the next day.
        zone: name of its time zone.
    """

    days: frozenset[int]
    opens: int
    closes: int
    zone: str = "UTC"

    @property
    def length_s(self) -> int:
        """How long it is open, in seconds."""
        return ((self.closes - self.opens) % 1440 or 1440) * 60

    def _openings(self, now: datetime) -> list[tuple[datetime, datetime]]:
        """When it opens and closes, from yesterday on."""
        local = now.astimezone(_zone(self.zone))
        openings: list[tuple[datetime, datetime]] = []
        for ahead in range(-1, _AHEAD_DAYS + 1):
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            day = midnight + timedelta(days=ahead)
            if day.weekday() not in self.days:
                continue
            opens = day + timedelta(minutes=self.opens)
            closes = day + timedelta(minutes=self.opens, seconds=self.length_s)
            openings.append((opens.astimezone(UTC), closes.astimezone(UTC)))
        return openings

    def wait_s(self, now: datetime) -> float:
        """Seconds until it is open; 0: it is."""
        waits = [
            max(0.0, (opens - now).total_seconds())
            for opens, closes in self._openings(now.astimezone(UTC))
            if closes > now
        ]
        return min(waits)


def wait_s(windows: Sequence[Window], at: float) -> float:
    """Seconds until one of some windows is open; 0: one is, or there are none.

    Args:
        windows: of a node.
        at: the present, in seconds since the epoch.
    """
    now = datetime.fromtimestamp(at, UTC)
    return min((window.wait_s(now) for window in windows), default=0.0)


def parse(text: str, place: str | None = None) -> tuple[Window, ...]:
    """Windows from a text, separated by ``;``.

    Raises:
        UsageError: a part of it is no window, or there is none between the separators.
    """
    parsed = tuple(_parse(part.strip(), place) for part in text.split(";") if part.strip())
    if text.strip() and not parsed:
        raise UsageError(f"no maintenance window in {text!r}", place=place, fix=_FIX)
    return parsed


def _parse(text: str, place: str | None) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise UsageError(f"invalid maintenance window {text!r}", place=place, fix=_FIX)
    zone = match["zone"] or "UTC"
    try:
        _zone(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"unknown time zone {zone!r} in the maintenance window {text!r}", place=place, fix=_FIX
        ) from None
    days = _days(match["days"] or "Mon-Sun", text, place)
    opens, closes = (_minutes(match[key], text, place) for key in ("open", "close"))
    if opens == closes:
        raise UsageError(
            f"the maintenance window {text!r} is never open",
            place=place,
            fix="00:00-24:00 is the whole day",
        )
    return Window(days, opens, closes, zone)


def _minutes(text: str, window: str, place: str | None) -> int:
    hour, minute = (int(part) for part in text.split(":"))
    if minute > 59 or hour * 60 + minute > 1440:
        raise UsageError(
            f"invalid time {text} in the maintenance window {window!r}", place=place, fix=_FIX
        )
    return hour * 60 + minute


def _days(text: str, window: str, place: str | None) -> frozenset[int]:
    names = {name.lower(): number for number, name in enumerate(DAYS)}
    days: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        if first not in names or (last or first) not in names:
            raise UsageError(
                f"invalid days {text!r} in the maintenance window {window!r}", place=place, fix=_FIX
            )
        day, end = names[first], names[last or first]
        days.add(day)
        while day != end:
            day = (day + 1) % 7
            days.add(day)
    return frozenset(days)


def both(first: Sequence[Window], second: Sequence[Window], start: float) -> bool:
    """Some minute of a week is in a window of both; none means no restriction.

    Args:
        first, second: two sets of windows.
        start: seconds since the epoch at which the week begins.
    """
    if not first or not second:
        return True
    return any(
        not wait_s(first, at) and not wait_s(second, at)
        for at in range(int(start), int(start) + 7 * _DAY_S, 300)
    )
