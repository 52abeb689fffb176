"""What gpustate offers by name, and that no more is imported than was asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import gpustate
from gpustate import errors, ops, testing


def test_public_names_are_sorted_and_each_exists() -> None:
    assert gpustate.__all__ == sorted(gpustate.__all__)
    for name in gpustate.__all__:
        assert getattr(gpustate, name) is not None
    assert set(dir(gpustate)) == {*gpustate.__all__, "__version__"}


@pytest.mark.parametrize("package", ["gpustate", "gpustate.ops", "gpustate.testing"])
def test_packages_export_no_name_twice(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert len(set(names)) == len(names)
    assert all(getattr(importlib.import_module(package), name) is not None for name in names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        gpustate.Nothing  # noqa: B018


def test_what_is_offered_to_authors_comes_from_one_place() -> None:
    assert gpustate.ops is ops
    assert gpustate.PolicyError is errors.PolicyError
    assert sorted(testing.__all__) == ["FakeNode", "check_contract", "converge"]


def test_importing_gpustate_imports_nothing_else_of_it() -> None:
    code = (
        "import sys, gpustate; print(*sorted(m for m in sys.modules if m.startswith('gpustate')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpustate"]


def test_every_public_function_of_errors_is_in_the_tree_at_its_top() -> None:
    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.GpustateError):
            assert name in errors.__doc__
