"""The programs that ask a runtime over CRI, and where they lie on a node; for asks that use ``cri_says``."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.core.queries import Shell, ShippedFile
from gpustate.probes import cri_status

_CRI = ShippedFile("cri.py", "gpustate.nodeside", "cri.py")
_ROWS = ShippedFile("cri_rows.py", "gpustate.nodeside", "cri_rows.py")

#: What such an ask ships.
SHIPS = (_CRI, _ROWS)
#: Where they lie, for a fragment that has ``cri_says``.
PLACES = f'CRI_ROWS="{_ROWS.path} {_CRI.path}"; export CRI_ROWS\n'
#: Goes ahead of a fragment that calls ``cri_says SOCKET``.
CRI_SAYS = PLACES + cri_status.FUNCTION


@dataclass(frozen=True, slots=True)
class CriShell(Shell):
    """A fragment that calls ``cri_says``, with :data:`PLACES` ahead of it."""

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """The programs."""
        return SHIPS
