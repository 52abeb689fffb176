"""Limits of YAML, whoever reads it."""

from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.formats.yaml_events import Rules, documents

RULES = Rules(InventoryError, depth=20, values=1000)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_nesting_counts_what_aliases_bring() -> None:
    chain = f"- &a0 {deep(10)}\n" + "".join(f"- &a{n} [[*a{n - 1}]]\n" for n in range(1, 40))
    with pytest.raises(InventoryError, match=r"^f:6: nested deeper than 20 levels$"):
        documents(chain, "f", RULES)
    assert documents("- &a [[1]]\n- [*a]\n", "f", RULES)[0].data == [[[1]], [[[1]]]]


def test_an_alias_of_a_deep_value_is_no_deeper_than_it_is() -> None:
    text = f"- &a {deep(10)}\n" + "- *a\n" * 5 + f"- &b [*a]\n- {deep(15)}\n- [[*b]]\n"
    assert len(documents(text, "f", RULES)[0].data) == 9


def test_values_are_counted_without_aliases_too() -> None:
    with pytest.raises(InventoryError, match=r"f:1: the file contains more than 1000 values"):
        documents(f"[{'1, ' * 2000}]", "f", RULES)


def test_lines_of_keys_and_of_items_are_known() -> None:
    found = documents("a:\n- 1\n-\n  b: 2\n", "f", RULES)[0]
    assert found.lines.of_keys[id(found.data)] == {"a": 1}
    assert found.lines.of_items[id(found.data["a"])] == [2, 4]
    assert found.line == 1


def test_a_number_too_long_for_python_is_one_error() -> None:
    with pytest.raises(InventoryError, match="is too long"):
        documents("a: " + "9" * 5000, "f", RULES)
