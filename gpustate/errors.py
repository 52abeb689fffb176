"""The exception tree.

::

    GpustateError            anything a user can cause; one clear line, no traceback
    ├── UsageError           the command line, or a file it names
    │   ├── PolicyError      the text of a policy, or a parameter of a state
    │   └── InventoryError   the text of an inventory, or a limit pattern
    ├── GraphError           unknown names, cycles, one name with two owners
    ├── RefusedError         stale plan, compatibility, safety gate
    ├── LockHeld             another run holds the node
    ├── ConnectionFailed     the node could not be reached, or the connection broke
    ├── ProbeError           the node answered, and the answer makes no sense
    ├── StepFailed           a step of an apply went wrong on the node
    ├── LabError             a lab of test nodes could not be created
    └── ClusterError         the API server of a cluster failed or refused a request
        └── UnreleasedError  a changed and validated node could not be returned to service

Each carries its exit code; 9 is of nodes only, which wait for a person at their console. Which code wins when several
apply is decided in :func:`worst_exit_code`, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_PENDING = 2
EXIT_VALIDATION = 3
EXIT_UNREACHABLE = 4
EXIT_REFUSED = 5
EXIT_STOPPED = 6
EXIT_ROLLED_BACK = 7
EXIT_LOCKED = 8
EXIT_BLOCKED = 9
EXIT_INTERRUPTED = 130

#: Every exit code and its meaning, in the order in which one outranks another.
EXIT_CODES: Mapping[int, str] = {
    EXIT_INTERRUPTED: "interrupted; safe to run again, `gpustate rollout resume` continues",
    EXIT_ERROR: "an error in the tool or its use, or a state failed",
    EXIT_ROLLED_BACK: "a change was rolled back",
    EXIT_VALIDATION: "validation failed",
    EXIT_STOPPED: "stopped early, by failures, a failed check, a used-up budget or an abort",
    EXIT_UNREACHABLE: "a node could not be reached",
    EXIT_REFUSED: "refused: by a state, compatibility, a stale plan, a safety gate, `lint --strict`",
    EXIT_BLOCKED: "a node waits for a person at its console, then apply again",
    EXIT_LOCKED: "a node is held by another run, or by a person",
    EXIT_PENDING: "changes pending: `drift`, and `plan --detailed-exitcode`",
    EXIT_OK: "done, nothing wrong",
}


def worst_exit_code(codes: Iterable[int]) -> int:
    """Return the code that a run with all of ``codes`` ends with; 0 when there are none.

    An interruption outranks everything: the run is not over, and the resume command says how to go on.
    """
    present_codes = set(codes)
    return next((code for code in EXIT_CODES if code in present_codes), EXIT_OK)


class GpustateError(Exception):
    """Base of all; ``str()`` is the one line a person reads.

    Args:
        message: what was seen and what was wanted.
        place: file and line, or ``node: state``; printed before the message.
        fix: the next move, printed after it.
    """

    exit_code: ClassVar[int] = EXIT_ERROR

    def __init__(self, message: str, *, place: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}; {self.fix}" if self.fix else text


class UsageError(GpustateError):
    """The command line, or a file it names, cannot be used."""


class PolicyError(UsageError):
    """The text of a policy, or a parameter of a state, is wrong."""


class InventoryError(UsageError):
    """The text of an inventory, or a limit pattern, is wrong."""


class GraphError(GpustateError):
    """States that cannot be put in order: an unknown name, a cycle, a name with two owners."""


class RefusedError(GpustateError):
    """Nothing was done, on purpose: stale plan, compatibility, safety gate."""

    exit_code = EXIT_REFUSED


class LockHeld(GpustateError):
    """Another run holds the node."""

    exit_code = EXIT_LOCKED


class ConnectionFailed(GpustateError):
    """The node could not be reached, or the connection broke."""

    exit_code = EXIT_UNREACHABLE


class ProbeError(GpustateError):
    """The node answered, and the answer makes no sense."""


class StepFailed(GpustateError):
    """A step of an apply went wrong on the node."""


class LabError(GpustateError):
    """A lab of test nodes could not be created or removed."""


class ClusterError(GpustateError):
    """The API server of a cluster does not answer, or refuses a request."""


class UnreleasedError(ClusterError):
    """A node was changed and validated, and its scheduler could not be told: that is no reason to take it back."""
