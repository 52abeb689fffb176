"""Which machines a run has met, so that two names for one are told.

Sources:
    machine-id(5); random(4), boot_id. A machine id alone does not tell machines apart that were cloned,
    a boot id not the containers of one kernel; and one machine may hold several state folders.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpustate.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Machines:
    """Shared by the walks of one run.

    Args:
        names: of the node that came first, by machine.
    """

    names: dict[str, str] = field(default_factory=dict[str, str])
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, machine: str, name: str, apply: bool) -> list[str]:
        """What is done to one machine is done, and told, once: a note for a plan.

        Raises:
            RefusedError: it is to be changed, and is walked under another name already.
        """
        other = self.other_name(machine, name)
        if other is None:
            return []
        told = f"it is the same machine as {other}"
        if apply:
            raise RefusedError(told, fix="leave one of the two names out")
        return [f"{told}; an apply of both refuses one of them"]

    def other_name(self, machine: str, name: str) -> str | None:
        """The other name under which a machine is walked already; ``None`` where there is none.

        Args:
            machine: what it is known by; empty where that cannot be told.
            name: the node's in the inventory.
        """
        if not machine:
            return None
        with self._taking:
            first = self.names.setdefault(machine, name)
        return None if first == name else first
