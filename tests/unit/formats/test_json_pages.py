"""JSON on many lines, against the standard library's own writer."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.formats.json_pages import dumps

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats()
_DATA = st.recursive(
    _SCALARS,
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.dictionaries(_KEYS, below, max_size=4)
    ),
    max_leaves=20,
)


@given(_DATA)
def test_it_writes_what_the_standard_library_writes(value: Any) -> None:
    assert dumps(value) == json.dumps(value, indent=2, ensure_ascii=False)


def test_classes_derived_from_those_of_json_are_written_as_these() -> None:
    word = enum.Enum("word", {"A": "a"}, type=str)
    number = enum.IntEnum("number", {"ONE": 1})

    class Named(dict[str, Any]):
        """A mapping of its own kind."""

    value = {"a": [word["A"], number["ONE"], Named(b=Named(c=[1.5]))]}
    assert dumps(value) == json.dumps(value, indent=2, ensure_ascii=False)


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(TypeError):
        dumps({"a": {1}})
