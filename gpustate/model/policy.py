"""A policy: which states, with which parameters, on which nodes.

The order of the states means nothing; they say themselves what they need. Parameters of a state
are overridden per group and per node from the inventory::

    gpustate:
      driver: {branch: 570}
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gpustate.errors import PolicyError
from gpustate.model.inventory import InventoryNode
from gpustate.model.state import AnyState, State
from gpustate.text.words import named, printable, shown

#: Mistakes told at once.
_SHOWN = 5


class Policy:
    """States that should hold together.

    Args:
        states: at most one of each name.
        name: shown in plans; the file's name when not given.
        notes: what a reader of another format could not express, shown in the plan.
        allow: rules of the compatibility matrix to go on in spite of, each with the reason.

    Raises:
        PolicyError: one name twice.
    """

    def __init__(
        self,
        *states: AnyState,
        name: str | None = None,
        notes: tuple[str, ...] = (),
        allow: Mapping[str, str] | None = None,
    ) -> None:
        seen: set[str] = set()
        for state in states:
            if not isinstance(state, State):
                raise PolicyError(f"{state!r} is no state", fix="call the state class: Driver(...)")
            if state.name in seen:
                raise PolicyError(
                    f"state {state.name!r} is there twice", fix="keep one and override it per group"
                )
            seen.add(state.name)
        self.states = states
        self.name = name
        self.notes = notes
        self.allow = _reasons(allow or {}, None)

    def __repr__(self) -> str:
        return f"Policy({', '.join(state.name for state in self.states)})"

    def with_ensure(self, ensure: str) -> Policy:
        """The same policy with every state's ``ensure`` set; ``absent`` takes everything away."""
        states = (build(type(s), {**parameters(s), "ensure": ensure}) for s in self.states)
        return Policy(*states, name=self.name, notes=self.notes, allow=self.allow)


def _reasons(allow: object, place: str | None) -> dict[str, str]:
    """Exceptions from rules of the compatibility matrix, each with its reason.

    Raises:
        PolicyError: they are no mapping of ids to text.
    """
    if not isinstance(allow, Mapping):
        raise PolicyError(f"allow: must map rules to reasons, is {_given(allow)}", place=place)
    for name, reason in allow.items():
        if not isinstance(reason, str) or not reason.strip():
            raise PolicyError(f"allow: {named(name)}: wants a reason, as text", place=place)
    return {str(name): str(reason) for name, reason in allow.items()}


def parameters(state: AnyState) -> dict[str, Any]:
    """The parameters that were given, as plain JSON data."""
    data: dict[str, Any] = json.loads(state.model_dump_json(exclude_unset=True))
    return data


def build(cls: type[AnyState], values: Mapping[str, Any], *, place: str | None = None) -> AnyState:
    """Make a state from plain data; raise ``PolicyError`` naming the parameter that is wrong."""
    try:
        text = json.dumps(dict(values))
    except (TypeError, ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise PolicyError(f"{cls.name}: {why}", place=place) from error
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        raise PolicyError(f"{cls.name}: {explain(error, cls)}", place=place) from None
    except PolicyError as error:
        raise PolicyError(f"{cls.name}: {error.message}", place=place, fix=error.fix) from None


def explain(error: ValidationError, cls: type[AnyState]) -> str:
    """Say in one line which parameters are wrong, what was given and what is wanted."""
    parts: list[str] = []
    for item in error.errors(include_url=False)[:_SHOWN]:
        path = ".".join(named(step) for step in item["loc"])
        if item["type"] == "extra_forbidden":
            known = sorted(cls.model_fields)
            near = difflib.get_close_matches(path, known, 1)
            hint = f"did you mean {near[0]!r}" if near else f"it has {', '.join(known)}"
            parts.append(f"no parameter {shown(path)}; {hint}")
        else:
            message = item["msg"][:1].lower() + item["msg"][1:]
            parts.append(
                f"{path or 'it'}: {printable(message[:300])} (given: {_given(item['input'])})"
            )
    more = error.error_count() - _SHOWN
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _given(value: object) -> str:
    """A value as Python writes it, on one line and no longer than that."""
    return shown(value, 80) if isinstance(value, str) else shown(value, 80)[1:-1]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The states of one node with its own parameters."""

    node: InventoryNode
    states: tuple[AnyState, ...]
    notes: tuple[str, ...] = ()
    allow: Mapping[str, str] = field(default_factory=dict[str, str])


def resolve(policy: Policy, node: InventoryNode, known: Collection[str] = ()) -> Resolved:
    """Apply the inventory's ``gpustate:`` overrides of one node to a policy.

    Args:
        policy: for all nodes.
        node: the one.
        known: names of all registered states. An override of one that the policy lacks is meant
            for another policy; one of a name that nobody has is a mistake.

    Raises:
        PolicyError: overrides of a wrong shape or with parameters a state does not have, with the
            place in the inventory they came from.
    """
    overrides = node.vars.get("gpustate")
    if overrides is None:
        return Resolved(node, policy.states, allow=policy.allow)
    place = f"{node.origins.get('gpustate', 'inventory')}: {node.name}: gpustate"
    if not isinstance(overrides, Mapping):
        raise PolicyError(f"must map states to parameters, is {_given(overrides)}", place=place)
    states: list[AnyState] = []
    for state in policy.states:
        mine = overrides.get(state.name)
        if mine is None:
            states.append(state)
            continue
        if not isinstance(mine, Mapping):
            raise PolicyError(
                f"{state.name}: must map parameters to values, is {_given(mine)}", place=place
            )
        states.append(build(type(state), {**parameters(state), **mine}, place=place))
    ours = {state.name for state in policy.states}
    allow = {**policy.allow, **_reasons(overrides.get("allow", {}), place)}
    others = [n for n in sorted(str(key) for key in overrides) if n not in ours and n != "allow"]
    for name in others:
        if known and name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(sorted(known))}"
            raise PolicyError(f"there is no state {shown(name)}", place=place, fix=hint)
    notes = tuple(
        f"{place}.{named(name)}: the policy has no such state; ignored"
        for name in others
        if not known
    )
    return Resolved(node, tuple(states), notes, allow)
