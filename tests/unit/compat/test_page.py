"""docs/matrix.md says of the facts what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gpustate.compat import reading
from gpustate.compat.conditions import OPERATORS
from gpustate.compat.facts import FACTS, Fact

PAGE = (Path(__file__).parents[3] / "docs/matrix.md").read_text("utf-8")


def row(fact: Fact) -> str:
    """The line of the table that tells of a fact."""
    kinds = {"version": "version", "flag": "yes, no", "number": "number", "words": "word"}
    values = ", ".join(fact.words) or kinds[fact.kind]
    if fact.name == "gpu":
        values = "models, as `H100,L40S`"
    also = f" (also {', '.join(fact.aliases)})" if fact.aliases else ""
    return f"| `{fact.name}` | {values} | {fact.meaning}{also} | {fact.where} |"


def test_the_table_of_facts_is_the_one_of_the_code() -> None:
    told = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    assert told == [row(fact) for fact in FACTS.values()]


def test_every_operator_is_named() -> None:
    for operator in OPERATORS:
        assert f"`{operator}`" in PAGE


def test_the_example_is_a_file_of_rules() -> None:
    texts = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    text = next(one for one in texts if "format:" in one)
    assert [rule.id for rule in reading.read(text, "page")] == [
        yaml.safe_load(text)["rules"][0]["id"]
    ]
