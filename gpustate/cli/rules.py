"""What verbs do with the rules of the matrix before anything else: read them."""

from __future__ import annotations


def read() -> None:
    """Read the rules of the matrix first of all: what is wrong with them is told before anything is asked.

    Raises:
        UsageError, RefusedError: as :func:`gpustate.compat.load`.
    """
    from gpustate import compat

    compat.load()
