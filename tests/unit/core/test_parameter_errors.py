"""What is said of a parameter that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpustate import registry
from gpustate.core.building import build
from gpustate.core.parameter_errors import describe_expected, pattern
from gpustate.errors import PolicyError


def patterns(schema: Any) -> Iterator[str]:
    """Every pattern in what pydantic has made of a state's parameters."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from patterns(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from patterns(value)


def message(regex: str) -> str | None:
    return describe_expected("string_pattern_mismatch", {"pattern": regex})


def test_every_pattern_of_a_bundled_state_has_words() -> None:
    bundled = [
        cls
        for cls in registry.Registry().states().values()
        if cls.__module__.startswith("gpustate.states.")
    ]
    used = {regex for cls in bundled for regex in patterns(cls.__pydantic_core_schema__)}
    shown = {one for one in used if "of the form" in str(message(one))}
    assert shown == set()


@pytest.mark.parametrize(
    ("state", "values", "said"),
    [
        (
            "dcgm",
            {"version": "banana"},
            "version: wanted a version such as 4.6.0 (given: 'banana')",
        ),
        ("dcgm", {"port": 0}, "port: wanted 1 or more (given: 0)"),
        ("dcgm", {"port": "5555"}, "port: wanted a whole number (given: '5555', which is text; "),
        ("dcgm", {"address": 7}, "address: wanted text (given: 7)"),
        ("preflight", {"gpus": [1]}, "gpus: wanted a whole number or text (given: [1])"),
        ("mps", {"clients": 0}, "clients: wanted 1 or more (given: 0)"),
        ("mps", {"gpus": "GPU-1"}, "gpus: wanted a list (given: 'GPU-1')"),
        ("mps", {"gpus": ["x"]}, "gpus.0: wanted the UUID of a GPU, as nvidia-smi -L has it"),
    ],
)
def test_a_wrong_parameter_is_told_in_words(state: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(registry.get(state), values)
    assert str(caught.value).startswith(f"{state}: {said}")
    assert "nput" not in str(caught.value)


def test_a_pattern_of_a_site_s_own_state_is_shown() -> None:
    assert message("^x$") == "text of the form ^x$"
    assert describe_expected("of another kind", {}) is None


def test_a_state_declares_what_its_own_pattern_stands_for() -> None:
    pattern(r"^rack[0-9]+$", "the name of a rack")
    assert message(r"^rack[0-9]+$") == "the name of a rack"
    assert message("^x$") == "text of the form ^x$"
