"""States that come with those of a policy: a driver is of no use without its repository."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_

from gpustate import registry
from gpustate.core.layering import COMES_WITH
from gpustate.core.policy import Policy, build
from gpustate.core.state import AnyState


def implied(
    states: Iterable[AnyState], without: Collection[str] = ()
) -> dict[str, tuple[AnyState, str]]:
    """The states that others imply and a policy does not list, each with the reason.

    They apply to the nodes of those that imply them. A state that is removed implies nothing, and none comes whose own
    needs the policy leaves to others: it may not manage the driver.

    Args:
        states: that the policy lists.
        without: names of states that it leaves out.
    """
    listed = {state.name: state for state in states}
    result: dict[str, tuple[AnyState, str]] = {}
    while True:
        sources: dict[str, list[AnyState]] = {}
        present = {name: state for name, state in listed.items() if not state.absent}
        for state in present.values():
            for name in state.implies:
                if name in listed or name in without:
                    continue
                if {*registry.get(name).needs} <= {*present, "preflight"}:
                    sources.setdefault(name, []).append(state)
        if not sources:
            return result
        for name, owners in sources.items():
            cls = registry.get(name)
            conditions = [state.only for state in owners if state.only is not None]
            everywhere = len(conditions) < len(owners)
            only = None if everywhere else reduce(or_, conditions).text
            parameters = dict(cls.implied_parameters) | ({} if only is None else {"only": only})
            listed[name] = build(cls, parameters)
            titles = ", ".join(state.name for state in owners)
            result[name] = (listed[name], f"{COMES_WITH}{titles}: {owners[0].implies[name]}")


def with_implied(policy: Policy) -> Policy:
    """The policy with the states that its own ones imply, and their reasons as places."""
    more = implied(policy.states, policy.without)
    if not more:
        return policy
    places = {("states", name): reason for name, (_, reason) in more.items()}
    added = (state for state, _ in more.values())
    return policy.with_states(*policy.states, *added, places=policy.places | places)


def left_out(policy: Policy) -> tuple[str, ...]:
    """Names of the states that a policy does without, for its text, from which others would imply them again."""
    return (*policy.without, *implied(policy.states, policy.without))
