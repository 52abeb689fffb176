"""Lazy values: decryption and output of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEFERRING: ContextVar[bool] = ContextVar("deferring", default=False)


class NotYet(Exception):
    """A value would need decryption or a command, and is not needed yet."""

    @classmethod
    def check(cls) -> None:
        """Raise it inside of :func:`deferring`."""
        if _DEFERRING.get():
            raise cls


@contextmanager
def deferring() -> Iterator[None]:
    """Make everything below raise :class:`NotYet` instead of decrypting or running a command."""
    before = _DEFERRING.set(True)
    try:
        yield
    finally:
        _DEFERRING.reset(before)
