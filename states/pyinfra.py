"""Let any operation or deploy of pyinfra hold as a state of a policy.

pyinfra's facts are answered from the node's one batch, and what the operation yields becomes steps of the
node program: planned, journaled and verified as those of every other state. pyinfra itself connects to
nothing and runs nothing.

Surprising: an operation that pyinfra does not call idempotent (``server.shell``) yields its commands each
time. It is planned on every apply, unless ``unless`` says when there is nothing to do.

Sources:
    pyinfra 3.10, "Operations", "Facts", "Global arguments"; ``pyinfra/api/operation.py``.
"""

from __future__ import annotations

import re
import shlex
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import model_validator

from gpustate import Disruption, Node, Plan, PolicyError, State, Step
from gpustate.core.building import build
from gpustate.core.change import Change
from gpustate.documents import Json

if TYPE_CHECKING:
    from gpustate.operations.steps import PlannedCommand

FAMILY = "pyinfra"
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
#: Where pyinfra keeps a copy of a file that it edits: the minute is not a difference between two plans.
_TIME = re.compile(r"\.\d{10}\b")
#: Arguments of services that pyinfra obeys without looking.
_EACH_TIME = ("restarted", "reloaded", "daemon_reload", "command")
_NO_WAY_BACK = (
    "an operation of pyinfra does not know what was there before, so nothing is removed; "
    "say what is to hold instead (most take present: false), apply, and then drop it from the policy"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the operation would do now.

    Args:
        shown: its commands as people are shown them, without the time of day; empty: it holds.
        commands: the same with their steps.
        notes: what pyinfra warns of.
    """

    shown: tuple[str, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()
    notes: tuple[str, ...] = ()


# A policy names the order of each operation, which other states have as a property of their class.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", 'Field name "\\w+" in .* shadows an attribute')

    class OperationApplied(State[Observed]):
        """An operation or a deploy of pyinfra has nothing left to do.

        Args:
            operation: dotted name: ``apt.packages``, or ``acme.deploys.web`` for one of your own.
            arguments: as the operation takes them; ``{$text: ...}`` is the content of a file,
                ``{$secret: ...}`` a value that is never printed.
            unless: sh that only reads; exit status 0 means that there is nothing to do.
            disruption: what its commands cost; by default what they tell: restart or reload of a
                service, otherwise none.
            needs: states that must hold first.
            after, before: states that come earlier or later, where the policy has them.
            known_after: states that must hold before it can be planned at all.

        Disruption:
            ``RESTART`` or ``RELOAD`` where a command does that to a service, otherwise ``NONE``, or what
            ``disruption`` says.
        """

        family: ClassVar[str] = FAMILY
        stable: ClassVar[tuple[str, ...] | None] = ("shown",)

        operation: str
        arguments: Mapping[str, Any] = {}
        unless: str | None = None
        disruption: Literal["none", "reload", "restart", "drain", "reset", "reboot"] | None = None
        needs: tuple[str, ...] = ()  # type: ignore[misc]
        after: tuple[str, ...] = ()  # type: ignore[misc]
        before: tuple[str, ...] = ()  # type: ignore[misc]
        known_after: tuple[str, ...] = ()  # type: ignore[misc]

        @classmethod
        def member(cls, name: str) -> type[OperationApplied]:
            """The class of the operation that a policy calls ``name``."""
            return _member(name)

        @property
        def worst(self) -> Disruption:  # type: ignore[override]
            """What a plan that is not known yet may cost: nobody says more than ``disruption``."""
            return Disruption.RESTART if self.disruption is None else self._declared

        @property
        def _declared(self) -> Disruption:
            return Disruption.parse(self.disruption or "none")

        @model_validator(mode="after")
        def _names_exist(self) -> OperationApplied:
            from gpustate.operations import names

            names.check(self.operation, self.arguments)
            each_time = [key for key in _EACH_TIME if self.arguments.get(key)]
            if each_time and self.unless is None and self.operation.endswith(".service"):
                raise PolicyError(
                    f"{self.operation}: {each_time[0]} acts on every apply, so that the state would never hold",
                    fix="leave it out, say with `unless` when there is nothing to do, or call it in a deploy with _if",
                )
            return self

        def probe(self, node: Node) -> Observed:
            from gpustate.operations import host

            if self.absent:
                return Observed()
            # A syntax error in it must not be one of the whole batch.
            holds = self.unless is not None and node.shell(f"eval {shlex.quote(self.unless)}").ok
            try:
                planned = host.plan(node, self.operation, self.arguments)
            except Exception:
                if holds:
                    return Observed()
                raise
            if holds:
                return Observed()
            lines = tuple(_TIME.sub(".TIME", command.display) for command in planned.commands)
            return Observed(lines, planned.commands, planned.notes)

        def desired(self, observed: Observed) -> Observed:
            return replace(observed, shown=(), commands=())

        def plan(self, observed: Observed) -> Plan:
            if self.absent:
                return Plan(warnings=(f"{self.name}: {_NO_WAY_BACK}",))
            changes = tuple(
                Change(
                    f"command-{number}",
                    None,
                    command.display,
                    self._cost(command),
                    lines=tuple(f"+ {line}" for line in command.display.splitlines()),
                )
                for number, command in enumerate(observed.commands, 1)
            )
            notes = list(observed.notes)
            if self.unless is None and any(command.repeats for command in observed.commands):
                notes.append(
                    f"{self.operation} does not look whether there is anything to do and runs on every apply; "
                    "`unless` says when not"
                )
            return Plan(changes, tuple(notes))

        def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
            for number, command in enumerate(observed.commands, 1):
                if f"command-{number}" in plan.fields:
                    yield from command.steps

        def first_boot(self, observed: Observed) -> Iterator[Step]:
            """What its commands do to a running system, as far as the image shows that it is missing."""
            steps = (step for command in observed.commands for step in command.steps)
            boot_steps = (step.at_first_boot for step in steps)
            yield from dict.fromkeys(step for step in boot_steps if step is not None)

        def verify(self, observed: Observed) -> Plan:
            if self.unless is not None:
                return self.plan(observed)
            commands = tuple(c for c in observed.commands if not c.repeats)
            return self.plan(
                replace(observed, shown=tuple(c.display for c in commands), commands=commands)
            )

        def _cost(self, command: PlannedCommand) -> Disruption:
            return command.disruption if self.disruption is None else self._declared


@cache
def _member(name: str) -> type[OperationApplied]:
    short = name.removeprefix(f"{FAMILY}-")
    if short == name or not _NAME.fullmatch(short):
        raise PolicyError(
            f"{name!r} is not a name of an operation",
            fix=f"names are {FAMILY}-NAME, in lower case with dashes, as in {FAMILY}-curl",
        )
    # One class for each name: the engine calls states by the name of their class.
    members = {
        "__module__": __name__,
        "__qualname__": OperationApplied.__qualname__,
        "__doc__": OperationApplied.__doc__,
        "__annotations__": {"name": "ClassVar[str]"},
        "name": name,
    }
    new = types.new_class(
        OperationApplied.__name__,
        (OperationApplied,),
        exec_body=lambda namespace: namespace.update(members),
    )
    return cast(type[OperationApplied], new)


def Operation(  # noqa: N802  as a state is made
    operation: str | Callable[..., Any],
    /,
    *,
    name: str | None = None,
    unless: str | None = None,
    disruption: Disruption | str | None = None,
    needs: tuple[str, ...] | list[str] = (),
    after: tuple[str, ...] | list[str] | bool = (),
    before: tuple[str, ...] | list[str] | bool = (),
    known_after: tuple[str, ...] | list[str] = (),
    only: Any = None,
    **arguments: Any,
) -> OperationApplied:
    """A state for an operation or a deploy of pyinfra.

    Args:
        operation: the function, or its dotted name.
        name: what the policy calls it, behind ``pyinfra-``; by default the operation's.
        unless, disruption, needs, after, before, known_after: as in :class:`OperationApplied`.
        only: nodes it applies to.
        arguments: the operation's own. ``after`` and ``before`` are among them where they are true or false
            (``files.block``).

    Raises:
        PolicyError: there is no such operation, or it takes other arguments.
    """
    from gpustate.operations import names

    dotted = names.name_of(operation)
    if isinstance(after, bool):
        arguments, after = {**arguments, "after": after}, ()
    if isinstance(before, bool):
        arguments, before = {**arguments, "before": before}, ()
    short = name if name is not None else re.sub(r"[^a-z0-9]+", "-", dotted.lower()).strip("-")
    values: Json = {
        "operation": dotted,
        "arguments": {key: names.encoded(value, key) for key, value in arguments.items()},
        "unless": unless,
        "disruption": disruption.word if isinstance(disruption, Disruption) else disruption,
        "needs": list(needs),
        "after": list(after),
        "before": list(before),
        "known_after": list(known_after),
        "only": getattr(only, "text", only),
    }
    parameters = {key: value for key, value in values.items() if value not in (None, [], {})}
    cls = _member(f"{FAMILY}-{short.removeprefix(f'{FAMILY}-')}")
    return cast(OperationApplied, build(cls, parameters))
