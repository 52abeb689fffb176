"""What every registered state must keep, and that they fit together."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import shares
import statetable
from pydantic import ValidationError

from gpustate import registry
from gpustate.core.policy import Policy, parameters
from gpustate.core.policy import build as build_state
from gpustate.core.state import AnyState
from gpustate.graph.build import build
from gpustate.graph.order import order
from gpustate.testing import check_contract

TOP = Path(__file__).parents[2]
STATES = TOP / "states"


def declared() -> Iterator[str]:
    """Names that the files of states declare, read without importing any; so that none drops out unnoticed."""
    for path in sorted(STATES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.AnnAssign) or node.value is None:
                continue
            named = getattr(node.target, "id", "") == "name"
            if named and ast.unparse(node.annotation) == "ClassVar[str]":
                yield ast.literal_eval(node.value)


NAMES = tuple(sorted(declared()))
SEEN: set[str] = set()
EDGES = ("needs", "after", "before", "known_after")


def made(name: str) -> AnyState:
    """A state with its default parameters."""
    return build_state(registry.get(name), {})


def test_exactly_the_states_that_files_declare_are_registered() -> None:
    assert tuple(registry.Registry().states()) == NAMES
    assert len(NAMES) == len(set(NAMES)) >= 39


def test_every_module_declares_a_state_or_a_family() -> None:
    """A module without one is looked into at each start, for nothing."""
    homes = {cls.__module__ for cls in registry.Registry().states().values()}
    homes |= {cls.__module__ for cls in registry.Registry().families().values()}
    used = {home.removeprefix("gpustate.states.").partition(".")[0] for home in homes}
    modules = (path for path in STATES.iterdir() if path.is_dir() or path.suffix == ".py")
    there = {path.stem for path in modules if not path.stem.startswith(("_", "."))}
    assert there == used


@pytest.mark.parametrize("name", NAMES)
def test_a_state_keeps_the_contract_with_its_defaults(name: str) -> None:
    check_contract(made(name))
    SEEN.add(name)


def test_the_contract_was_kept_by_every_registered_state() -> None:
    """Counted, not assumed; what another process of the same run saw is seen again here."""
    for name in sorted(set(registry.names()) - SEEN):
        check_contract(made(name))
        SEEN.add(name)
    shares.TAKEN["contract of states"] = f"{len(SEEN)} of {len(registry.names())} registered"
    assert set(registry.names()) == SEEN == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_can_be_asked_for_alone(name: str) -> None:
    found = registry.Registry().find(name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_name_a_state_waits_for_exists(name: str) -> None:
    cls = registry.get(name)
    for edge in EDGES:
        for other in getattr(cls, edge):
            assert other in NAMES, f"{name}.{edge}: {other}"
            assert other != name


@pytest.mark.parametrize("name", NAMES)
def test_what_a_state_observes_is_plain_and_hashable_data(name: str) -> None:
    observed: Any = registry.get(name).observation_type()
    assert is_dataclass(observed), f"{name} does not say what it observes: State[Observed]"
    assert getattr(observed, "__dataclass_params__").frozen  # noqa: B009
    assert "__slots__" in vars(observed), f"{name} wants slots=True"
    stable = registry.get(name).stable
    if stable is not None:
        assert set(stable) <= {field.name for field in fields(observed)}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_survive_a_saved_plan(name: str) -> None:
    state = made(name)
    assert build_state(type(state), parameters(state)) == state
    absent = build_state(type(state), {"ensure": "absent"})
    assert build_state(type(state), parameters(absent)) == absent
    with pytest.raises(ValidationError):
        type(state).model_validate({"ensure": "perhaps"})


@pytest.mark.parametrize("name", NAMES)
def test_a_module_says_where_its_knowledge_comes_from(name: str) -> None:
    module = inspect.getmodule(registry.get(name))
    assert module is not None
    package = sys.modules[module.__package__ or module.__name__]
    docs = [module.__doc__ or "", package.__doc__ or ""]
    assert any("Sources:" in doc for doc in docs), f"{module.__name__}: no Sources:"


def test_all_states_together_have_one_order() -> None:
    states = [made(name) for name in NAMES]
    whole = order(build(states, NAMES))
    assert sorted(whole) == sorted(NAMES)
    assert order(build(list(reversed(states)), NAMES)) == whole
    at = {name: number for number, name in enumerate(whole)}
    for state in states:
        for name in (*state.needs, *state.after, *state.known_after):
            assert at[name] < at[state.name]
        for name in state.before:
            assert at[state.name] < at[name]
    assert whole[0] == "preflight"
    assert whole[-1] == "validator"


def test_all_states_together_are_one_policy() -> None:
    policy = Policy(*(made(name) for name in NAMES))
    assert [state.name for state in policy.with_ensure("absent").states] == list(NAMES)


@cache
def documents() -> tuple[str, ...]:
    """The pages, and the table of states that the site is built with."""
    pages = (TOP / "README.md", *sorted((TOP / "docs").glob("*.md")))
    return (*(page.read_text("utf-8") for page in pages), statetable.page(statetable.rows()))


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_name_every_state(name: str) -> None:
    texts = documents()
    assert any(f"`{name}`" in text for text in texts), f"no document names the state `{name}`"
