"""Loading of the compatibility rules, which verbs do first."""

from __future__ import annotations


def read() -> None:
    """Load the rules that a person names, so that errors in them come before any prompt.

    Raises:
        UsageError, RefusedError: as :func:`gpustate.compat.load`.
    """
    from gpustate import compat

    compat.load_named()
