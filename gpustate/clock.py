"""The present time, as documents and records have it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time in UTC, to the second: ``2026-03-01T08:30:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp() -> str:
    """The time in UTC, to the millisecond: ``2026-03-01T08:30:00.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = ["now", "timestamp"]
