"""Machines that a run has reached, to detect two names for one machine.

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
    """Shared by all nodes of one run.

    Args:
        names: name of the first node, by machine.
    """

    names: dict[str, str] = field(default_factory=dict[str, str])
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, machine: str, name: str, apply: bool) -> list[str]:
        """Notes for a plan if the machine has another name already.

        Raises:
            RefusedError: it is to be changed, and has another name already.
        """
        name_before = self.other_name(machine, name)
        if name_before is None:
            return []
        reason = f"it is the same machine as {name_before}"
        if apply:
            raise RefusedError(reason, fix=f"exclude one of the two names: -l '!{name_before}'")
        return [f"{reason}; an apply of both refuses one of them"]

    def other_name(self, machine: str, name: str) -> str | None:
        """Another name of the same machine in this run; ``None`` if there is none.

        Args:
            machine: its identity; empty if unknown.
            name: the node's in the inventory.
        """
        if not machine:
            return None
        with self._taking:
            first = self.names.setdefault(machine, name)
        return None if first == name else first
