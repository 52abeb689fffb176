"""The contract of states as one function, for bundled and custom states."""

from __future__ import annotations

import inspect
import re
import subprocess
from typing import Any

from gpustate.core.policy import build, parameters
from gpustate.core.queries import Query
from gpustate.core.state import AnyState
from gpustate.errors import PolicyError
from gpustate.testing.fake import FakeNode


class Recorder(FakeNode):
    """A node that answers every query with its placeholder and records it."""

    def _answer(self, query: Query[Any]) -> Any:
        return query.placeholder()


def check_contract(state: AnyState, node: FakeNode | None = None) -> None:
    """Check the properties that the engine relies on; raise ``AssertionError`` with the violated one.

    Args:
        state: with valid parameters.
        node: a node that answers all its queries; without it, checks that need an observation are skipped.
    """
    cls = type(state)
    _check(bool(cls.name), f"{cls.__name__} has no name")
    _check(
        re.fullmatch(r"[a-z][a-z0-9-]*", cls.name) is not None,
        f"{cls.name!r}: names are lower case with dashes",
    )
    module = inspect.getmodule(cls)
    _check(bool(module and module.__doc__), f"{cls.name}: its module has no docstring")
    doc = inspect.cleandoc(cls.__doc__ or "")
    _check(bool(doc), f"{cls.name}: its class has no docstring")
    parameter_names = [name for name in cls.model_fields if name not in ("ensure", "only")]
    for name in parameter_names:
        _check(
            re.search(rf"\b{name}\b", doc) is not None,
            f"{cls.name}: parameter {name!r} is not in its docstring",
        )
    _check("Disruption:" in doc, f"{cls.name}: its docstring has no section Disruption:")
    try:
        build(cls, {**parameters(state), "no_such_parameter": 1})
    except PolicyError:
        pass
    else:
        raise AssertionError(f"{cls.name}: accepts an unknown parameter")
    recorder = Recorder()
    try:
        state.probe(recorder)
    except Exception:  # noqa: BLE001  stand-ins need not make sense to a probe
        pass
    for query in recorder.queries:
        _check_fragment(cls.name, query)
    if node is not None:
        _check_plans(state, node)


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _check_fragment(name: str, query: Query[Any]) -> None:
    hash(query)
    completed = subprocess.run(
        ["sh", "-n"], input=f"(\n{query.script()}\n)", text=True, capture_output=True
    )
    _check(
        completed.returncode == 0,
        f"{name}: sh does not accept the fragment of {query!r}: {completed.stderr}",
    )


def _check_plans(state: AnyState, node: FakeNode) -> None:
    cls = type(state)
    before = (dict(node.files), dict(node.installed), set(node.loaded), dict(node.unit_states))
    for ensure in ("present", "absent"):
        variant = build(cls, {**parameters(state), "ensure": ensure})
        observed = variant.probe(node)
        _check(
            variant.probe(node) == observed,
            f"{cls.name}: probing twice gives different observations",
        )
        desired = variant.desired(observed)
        _check(
            variant.desired(desired) == desired,
            f"{cls.name} ({ensure}): desired(desired(x)) is not desired(x)",
        )
        repeat = variant.plan(desired)
        _check(not repeat, f"{cls.name} ({ensure}): plan(desired) is not empty: {repeat.changes}")
        plan = variant.plan(observed)
        for step in variant.apply(observed, plan):
            _check(bool(step.label), f"{cls.name} ({ensure}): a step without a label")
    after = (dict(node.files), dict(node.installed), set(node.loaded), dict(node.unit_states))
    _check(before == after, f"{cls.name}: probing the node changed it")
