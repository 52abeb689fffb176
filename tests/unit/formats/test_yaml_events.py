"""Limits of YAML, whoever reads it."""

from __future__ import annotations

import itertools
import re

import pytest
import yaml

from gpustate.errors import InventoryError
from gpustate.formats.yaml_events import Dumper, Rules, documents

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
    with pytest.raises(InventoryError, match="is not a YAML int"):
        documents("a: " + "9" * 5000, "f", RULES)


def is_number_in_go(text: str) -> bool:
    """As go-yaml v2's resolve() has it, and strconv.ParseInt with base 0."""
    plain = text.replace("_", "")
    number = re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", plain)
    whole = re.fullmatch(r"[-+]?0([xX][0-9a-fA-F]+|[bB][01]+|[oO][0-7]+)", plain)
    return text[0] in "+-.0123456789" and bool(number or whole)


def test_texts_that_look_like_other_types_are_quoted() -> None:
    texts = [*"yYnN~=", "yes", "No", "on", "OFF", "true", "False", "null", "NULL", ".inf", "-.Inf"]
    texts += ["1e3", "1E5", "0o17", "1e-3", "7e6", "08", "0B1", "0X1F", "-1.e3", "+.5", "1_0e3"]
    texts += [".NaN", "1:30", "2001-1-1", "2001-01-01", "2001-12-14t21:59:43Z", "<<", "1_000"]
    made = map("".join, (t for n in (1, 2, 3, 4) for t in itertools.product("01_.e+-xo", repeat=n)))
    texts += [one for one in made if is_number_in_go(one)]
    written = yaml.dump(texts, Dumper=Dumper).splitlines()
    assert [line for line in written if line[:3] != "- '"] == []
    assert yaml.safe_load("\n".join(written)) == texts
    keys = yaml.dump({"n": "y", "1e3": 1}, Dumper=Dumper, sort_keys=False)
    assert keys == "'n': 'y'\n'1e3': 1\n"


def test_other_values_are_not_quoted() -> None:
    values = [1, -5, 1.5, 1e20, 1e-7, True, None, "v1", "1.2.3", "580-open", "yy", "-", "a1e3"]
    text = yaml.dump(values, Dumper=Dumper)
    assert "!!" not in text
    assert text.splitlines()[7:] == ["- v1", "- 1.2.3", "- 580-open", "- yy", "- '-'", "- a1e3"]
    assert yaml.safe_load(text) == values
