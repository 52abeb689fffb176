"""Observations as plain data: JSON takes them, and equal ones hash alike in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.core.encode import fingerprint, plain


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass(frozen=True, slots=True)
class Seen:
    text: str | None
    names: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, None),
        (True, True),
        (7, 7),
        ("x", "x"),
        (b"x\xff", "x\ufffd"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ((1, (2, [3])), [1, [2, [3]]]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({3, 1}), [1, 3]),
        ({2: "b", 1: "a"}, {"1": "a", "2": "b"}),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (Seen("x", ("a",), {"k": {1}}), {"text": "x", "names": ["a"], "more": {"k": [1]}}),
        (
            {Seen("b"), Seen("a")},
            [{"text": "a", "names": [], "more": None}, {"text": "b", "names": [], "more": None}],
        ),
    ],
)
def test_everything_an_observation_may_hold_has_a_plain_form(value: object, told: object) -> None:
    assert plain(value) == told
    assert type(plain(value)) is type(told)


@pytest.mark.parametrize("value", [object(), Seen, lambda: 1, [object()]])
def test_what_is_no_data_is_an_error(value: object) -> None:
    with pytest.raises(TypeError, match="has no plain form"):
        plain(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_plain_data_survives_json_with_its_fingerprint(value: Any) -> None:
    once = plain(value)
    assert plain(once) == once
    assert fingerprint(json.loads(json.dumps(once))) == fingerprint(value)


@given(st.dictionaries(st.text(), st.integers(), max_size=5))
def test_the_order_of_keys_changes_no_fingerprint(value: dict[str, int]) -> None:
    assert fingerprint(dict(reversed(value.items()))) == fingerprint(value)


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "from gpustate.core.encode import fingerprint;"
        "print(fingerprint({'a': frozenset(('x', 'y', 'z')), 'b': ['ü', None, True]}))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {fingerprint({"a": {"z", "y", "x"}, "b": ["ü", None, True]})}
    assert len(told.pop()) == 16


def test_text_that_was_no_utf_8_has_a_fingerprint_too() -> None:
    assert fingerprint("\udcff") != fingerprint("\udcfe")
