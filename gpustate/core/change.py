"""What would change on a node, and what that costs the node."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any


class Disruption(IntEnum):
    """What a change costs a node, worst last.

    Kubernetes and Slurm take a node out of service from ``DRAIN`` on: programs with GPUs leave for ``DRAIN`` and
    ``RESET``, all work for ``REBOOT`` (``rollout.maintenance.scope_of``).
    """

    NONE = 0
    RELOAD = 1  # a service rereads its configuration
    RESTART = 2  # a service restarts, workloads go on
    DRAIN = 3  # GPU workloads must leave, as for a reload of the driver
    RESET = 4  # a GPU reset
    REBOOT = 5

    @property
    def word(self) -> str:
        """Lower-case name, as on the command line and in JSON."""
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Disruption:
        """Read a word such as ``restart``; raise ``ValueError`` naming the choices."""
        try:
            return cls[word.upper()]
        except KeyError:
            choices = ", ".join(level.word for level in cls)
            raise ValueError(f"{word!r} is not a disruption level (one of {choices})") from None


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one state that differs.

    Args:
        field: name of the field of the state's ``Observed``.
        before: as it is; plain JSON data, ``None`` for "does not exist".
        after: as it will be.
        disruption: what this change costs the node.
        label: the field in the user's words; ends in ``version`` where that is its value.
        why: half a sentence on what asks for it or why it costs that; may be empty.
        path: the file whose content this is, so that it can be shown as a diff.
        condition: it costs that only if this is so: half a sentence; empty: surely.
        secret: never print ``before`` and ``after``.
        lines: what people are shown instead of them, where they alone say little; ``+``, ``-`` and ``~`` are coloured.
    """

    field: str
    before: Any
    after: Any
    disruption: Disruption = Disruption.NONE
    why: str = ""
    path: str | None = None
    condition: str = ""
    label: str = ""
    secret: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of one state on one node; falsy when there are none.

    Args:
        changes: in the order they are shown.
        notes: things a person should know that change nothing.
        refusal: why this state must not be applied here, with the next move; ``None`` when it may. It is certain before the
            states ahead have run, as where no repository offers a package; :meth:`State.refuse` has all others.
        warnings: as notes, but shown of the node, and also where there is nothing to do.
        gpu_users: programs that have a GPU open and must have ended, as ``pid 7 (python3, user alice, pod trainer-0)``.
        restarted: units that are stopped for it and started again.
        spared_pods: UIDs of pods with GPUs that a change which costs ``DRAIN`` or ``RESET`` leaves alone.
        facts: what the plan has chosen, as facts of the compatibility matrix.
        installs: packages that come and are in no field of the changes, with versions.
        blocked: what only a person at the node's console can do, once nothing is left to change; states
            that need this one wait until then.
    """

    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: str | None = None
    warnings: tuple[str, ...] = ()
    gpu_users: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    spared_pods: frozenset[str] = frozenset()
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    installs: tuple[tuple[str, str], ...] = ()
    blocked: str | None = None

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that change."""
        return frozenset(change.field for change in self.changes)

    def predicted(self, fields: Collection[str]) -> Plan:
        """The same for a state that waits for others: with changes of some fields, whose cost its worst case has."""
        changes = (change for change in self.changes if change.field in fields)
        free = (replace(change, disruption=Disruption.NONE, condition="") for change in changes)
        return replace(self, changes=tuple(free))

    @property
    def disruption(self) -> Disruption:
        """The worst any of the changes costs."""
        return max((change.disruption for change in self.changes), default=Disruption.NONE)

    @property
    def condition(self) -> str:
        """On which condition they cost that; empty: surely."""
        worst = [
            change.condition for change in self.changes if change.disruption is self.disruption
        ]
        return "" if "" in worst else " or ".join(dict.fromkeys(worst))
