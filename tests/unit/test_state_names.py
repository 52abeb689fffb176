"""What works with all states alike knows none of them by its name; states declare what others need to know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpustate import registry
from gpustate.core.state import AnyState, State

TOP = Path(__file__).parents[2]
ROOMS = ("core", "engine", "resolver", "bundle", "solve", "compat", "plan")

FACT = "a fact of the compatibility matrix, whose names are its own"
KEY = "a key of a document or option"
PROGRAM = "a program that is found on nodes, with or without a state for it"
#: Literals that are a state's name by coincidence: module, literal, and what it is.
OTHERWISE = {
    ("compat/collect.py", "kernel"): FACT,
    ("compat/facts.py", "cdi"): FACT,
    ("compat/facts.py", "containerd"): FACT,
    ("compat/facts.py", "crio"): FACT,
    ("compat/facts.py", "dcgm"): FACT,
    ("compat/facts.py", "docker"): FACT,
    ("compat/facts.py", "driver"): FACT,
    ("compat/facts.py", "gdrcopy"): FACT,
    ("compat/facts.py", "gds"): FACT,
    ("compat/facts.py", "imex"): FACT,
    ("compat/facts.py", "k0s"): "a value of the fact kubernetes_distribution",
    ("compat/facts.py", "k3s"): "a value of the fact kubernetes_distribution",
    ("compat/facts.py", "kata"): FACT,
    ("compat/facts.py", "kernel"): FACT,
    ("compat/facts.py", "microk8s"): "a value of the fact kubernetes_distribution",
    ("compat/facts.py", "mig"): FACT,
    ("compat/facts.py", "nouveau"): "another name of the fact nouveau_loaded",
    ("compat/facts.py", "nvlsm"): FACT,
    ("compat/facts.py", "ofed"): FACT,
    ("compat/facts.py", "peermem"): "a value of the fact rdma",
    ("compat/facts.py", "podman"): FACT,
    ("core/facts.py", "containerd"): PROGRAM,
    ("core/facts.py", "crio"): PROGRAM,
    ("core/facts.py", "docker"): PROGRAM,
    ("core/facts.py", "k3s"): PROGRAM,
    ("core/facts.py", "kernel"): "a key of the answer to the query of a node's facts",
    ("core/facts.py", "podman"): PROGRAM,
    ("core/required_programs.py", "kata"): "an OCI runtime that configurations name",
    ("engine/records.py", "bundle"): KEY,
    ("resolver/driver_sets.py", "driver"): FACT,
    ("resolver/driver_sets.py", "imex"): FACT,
    ("solve/document.py", "driver"): KEY,
    ("solve/lock.py", "driver"): KEY,
}


def literals(source: str) -> Iterator[str]:
    """String literals of a module, without those of f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named() -> set[tuple[str, str]]:
    """Modules of the rooms, and states that they name."""
    folder, names = TOP / "gpustate", set(registry.states())
    return {
        (path.relative_to(folder).as_posix(), text)
        for room in ROOMS
        for path in sorted((folder / room).rglob("*.py"))
        for text in literals(path.read_text("utf-8"))
        if text in names
    }


def test_no_room_below_the_states_names_one_of_them() -> None:
    assert {row for row in named() if row not in OTHERWISE} == set(), (
        "let the state declare what is needed of it (see gpustate/core/state.py)"
    )


def test_every_exception_is_needed() -> None:
    assert set(OTHERWISE) - named() == set()


def test_a_name_would_be_found() -> None:
    assert "driver" in literals('x = by_name.get("driver")')


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
