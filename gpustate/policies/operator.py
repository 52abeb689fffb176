"""A policy that is a file of the GPU Operator: its states built from what the reader found."""

from __future__ import annotations

from gpustate import clusterpolicy, registry
from gpustate.clusterpolicy import Wanted
from gpustate.errors import PolicyError
from gpustate.model.policy import Policy, build
from gpustate.model.state import AnyState


def read(text: str, path: str, *, strict: bool = True) -> Policy:
    """Turn the text of an Operator file into a policy.

    Raises:
        PolicyError: with the line the trouble goes back to.
    """
    reading = clusterpolicy.read(text, path, strict=strict)
    states = (_state(wanted, path) for wanted in reading.wanted)
    return Policy(*states, name=reading.name or None, notes=reading.notes)


def _state(wanted: Wanted, path: str) -> AnyState:
    cls = registry.get(wanted.state)
    try:
        return build(cls, wanted.parameters, place=path)
    except PolicyError:
        # Once more, one by one: the error is to name the line its parameter stands on.
        for name, place in wanted.places.items():
            build(cls, {name: wanted.parameters[name]}, place=place)
        raise
