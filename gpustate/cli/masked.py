"""Masks secrets on standard output and error, in addition to documents, which are masked when created."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast


class _Masked:
    """A stream that masks secrets in all text written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        from gpustate.formats.masking import mask

        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Unread(_Masked):
    """Standard error: what nobody reads any more (``2>&1 | head``) is lost, and ends no run in the middle of a node."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def mask_output() -> None:
    """Mask everything that is printed from now on."""
    sys.stdout = cast("TextIO", _Masked(sys.stdout))
    sys.stderr = cast("TextIO", _Unread(sys.stderr))
