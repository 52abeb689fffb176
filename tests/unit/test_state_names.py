"""What works with all states alike knows none of them by its name; states declare what others need to know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpustate import presets, registry, support
from gpustate.compat.facts import FACTS
from gpustate.core.state import AnyState, State
from gpustate.explain import services
from gpustate.gpu_operator import runtime
from gpustate.probes import cri_status

TOP = Path(__file__).parents[2]
#: Modules whose literals are facts of the compatibility matrix.
ABOUT_FACTS = ("compat/facts.py", "compat/collect.py", "package_sets/driver_sets.py")
ROOMS = ("core", "engine", "package_sets", "bundle", "solve", "compat", "plan")

KEY = "a key of a document or option"
PROGRAM = "a program that is found on nodes, with or without a state for it"
#: Literals that are a state's name by coincidence: module, literal, and what it is. Facts of the compatibility matrix
#: (``gpustate/compat/facts.py``) have names of their own and need no row.
OTHERWISE = {
    ("core/facts.py", "containerd"): PROGRAM,
    ("core/facts.py", "docker"): PROGRAM,
    ("core/facts.py", "kernel"): "a key of the answer to the query of a node's facts",
    ("engine/records.py", "bundle"): KEY,
    ("solve/document.py", "driver"): KEY,
    ("solve/lock.py", "driver"): KEY,
}


def literals(source: str) -> Iterator[str]:
    """String literals of a module, without those of f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named() -> set[tuple[str, str]]:
    """Modules of the rooms, and states that they name; facts of the matrix are none."""
    folder, names = TOP / "gpustate", set(registry.states())
    return {
        (module, text)
        for room in ROOMS
        for path in sorted((folder / room).rglob("*.py"))
        for module in (path.relative_to(folder).as_posix(),)
        for text in literals(path.read_text("utf-8"))
        if text in names and not (module in ABOUT_FACTS and text in FACTS)
    }


def test_no_room_below_the_states_names_one_of_them() -> None:
    assert {row for row in named() if row not in OTHERWISE} == set(), (
        "let the state declare what is needed of it (see gpustate/core/state.py)"
    )


def test_every_exception_is_needed() -> None:
    assert set(OTHERWISE) - named() == set()


def test_a_name_would_be_found() -> None:
    assert "driver" in literals('x = by_name.get("driver")')


#: Rooms that speak of states by name: stacks, remedies, and what an Operator file becomes.
SPEAKING = (
    "presets.py",
    "explain",
    "diagnosis",
    "gpu_operator",
    "policies",
    "validation",
    "cli",
    "api",
    "runtimes",
)
#: Functions that take names of states: the place of the first, and whether the others follow it.
TAKING = {
    "by_apply": (1, True),
    "DesiredState": (0, False),
    "Cause": (5, False),
    "_cause": (3, False),
    "_start": (1, False),
    "Variable": (0, False),
}
#: Variables that hold states by name.
BY_NAME = {"states", "by_name", "runtimes"}
#: Constants that hold names of states.
CONSTANTS: dict[str, Iterable[str]] = {
    "presets": (*presets._KUBERNETES, *presets._CONTAINERS),
    "gpu_operator.runtime": (
        *(state for states in runtime.RUNTIMES.values() for state in states),
        *runtime.HOMES.values(),
        *runtime._WITH_HANDLER,
    ),
    "probes.cri_status": cri_status.BUNDLED.values(),
    "explain.services": (state for _, _, state in services.EXPORTERS if state),
    "support": support.ids(support.Kind.SCHEDULER),
}


def _strings(node: ast.AST | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for one in node.elts:
            yield from _strings(one)
    elif isinstance(node, ast.IfExp):
        yield from (*_strings(node.body), *_strings(node.orelse))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def spoken_of(source: str) -> Iterator[str]:
    """Strings that stand where a module names a state."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get")) if (
                name in BY_NAME
            ):
                yield from _strings(node.args[0])
            case ast.Call():
                first, more = TAKING.get(_called(node), (None, False))
                if first is not None:
                    for one in node.args[first : None if more else first + 1]:
                        yield from _strings(one)
                for keyword in node.keywords:
                    if keyword.arg == "state":
                        yield from _strings(keyword.value)
            case ast.Subscript(value=ast.Name(id=name), slice=key) if name in BY_NAME:
                yield from _strings(key)
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=name)]
            ) if name in BY_NAME:
                yield from _strings(left)
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id="state"), attr="name")
                | ast.Attribute(attr="state"),
                comparators=[right],
            ):
                yield from _strings(right)
            case _:
                pass


def test_a_state_that_another_room_speaks_of_exists() -> None:
    """A renamed state would otherwise lose its remedy, or be left out of an Operator file, in silence."""
    count = 0
    for room in SPEAKING:
        path = TOP / "gpustate" / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            names = {n for n in spoken_of(file.read_text("utf-8")) if "{" not in n}
            count += len(names)
            assert names <= set(registry.states()), file.relative_to(TOP)
    assert count > 60


@pytest.mark.parametrize("module", CONSTANTS)
def test_a_state_in_a_constant_exists(module: str) -> None:
    names = set(CONSTANTS[module])
    assert names
    assert names <= set(registry.states())


@pytest.mark.parametrize(
    "source",
    [
        "remedies.by_apply('load it', 'driver', 'gone')",
        "DesiredState('gone')",
        "Cause('x', 'cdi', f, r, (), 'gone')",
        "Cause('x', 'cdi', f, r, state='gone')",
        "states.get('gone', {})",
        "states['gone']",
        "'gone' not in states",
        "if state.name == 'gone': pass",
    ],
)
def test_a_state_that_does_not_exist_would_be_found(source: str) -> None:
    assert "gone" in spoken_of(source)


INSTALLS = re.compile(r"\b(ops\.install|AptInstall|owned_packages\.bring)\(")


def source_of(cls: type[AnyState]) -> str:
    """The module of a state, or all modules of its package."""
    name = cls.__module__.removeprefix("gpustate.states.").partition(".")[0]
    folder = TOP / "states" / name
    paths = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return "".join(path.read_text("utf-8") for path in paths)


@pytest.mark.parametrize("name", sorted(registry.states()))
def test_a_state_that_installs_packages_declares_them(name: str) -> None:
    cls = registry.get(name)
    if INSTALLS.search(source_of(cls)):
        assert cls.required_packages is not State.required_packages, (
            "a bundle without its packages would be refused by the package manager, on the node"
        )


@pytest.mark.parametrize("name", sorted(registry.states()))
def test_states_that_a_repository_serves_exist(name: str) -> None:
    for served in getattr(registry.get(name), "serves", ()):
        assert served in registry.states()
