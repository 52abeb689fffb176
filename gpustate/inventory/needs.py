"""What is only looked up when it is needed: decrypted values, and what commands print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DEFERRING: ContextVar[bool] = ContextVar("deferring", default=False)


class NotYet(Exception):
    """A value would have to be decrypted or asked a command for, and nobody needs it yet."""

    @classmethod
    def check(cls) -> None:
        """Raise it inside of :func:`deferring`."""
        if _DEFERRING.get():
            raise cls


@contextmanager
def deferring() -> Iterator[None]:
    """Have everything below raise :class:`NotYet` rather than decrypt something or run a command."""
    before = _DEFERRING.set(True)
    try:
        yield
    finally:
        _DEFERRING.reset(before)
