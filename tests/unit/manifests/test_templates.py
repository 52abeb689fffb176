"""Files of objects with values: what takes the place of a value, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpustate.manifests import templates

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> Any:
    def rendered(text: str, **values: Any) -> list[Any]:
        files = {"it.yaml": text, "shared.yaml": "pair: [{name: $name}, {name: b}]"}
        monkeypatch.setattr(templates, "text", files.__getitem__)
        templates._documents.cache_clear()
        return list(templates.objects("it.yaml", values))

    yield rendered
    templates._documents.cache_clear()


def test_values_keep_their_types_and_are_no_yaml(render: Any) -> None:
    text = "a: $a\nb: {c: $b.c}\nargs: [first, $args]\nscript: echo $a $(B) $HOME"
    values = {"a": "x: {y}\n🙂 $b", "b": {"c": 7}, "args": ("-v", "--all")}
    assert render(text, **values) == [
        {
            "a": "x: {y}\n🙂 $b",
            "b": {"c": 7},
            "args": ["first", "-v", "--all"],
            "script": "echo $a $(B) $HOME",
        }
    ]


def test_none_leaves_out_fields_and_items_but_what_is_empty_stays(render: Any) -> None:
    text = "a: $none\nb: [$none, {c: $none}]\nd: $empty\ne: $false\nf: {}"
    values: dict[str, Any] = {"none": None, "empty": {}, "false": False}
    assert render(text, **values) == [{"b": [{}], "d": {}, "e": False, "f": {}}]


def test_conditions_choose_documents_items_and_fields(render: Any) -> None:
    text = (
        "if: here\nitems: [{if: not here, n: 1}, {if: here and not gone, n: 2},"
        " {if: gone, then: [3], else: [4, 5]}]"
    )
    assert render(text, here=True, gone="") == [{"items": [{"n": 2}, 4, 5]}]
    assert render(text, here=[], gone="") == []


def test_fragments_have_the_values_of_the_place_that_names_them(render: Any) -> None:
    text = "items:\n- {with: {name: $other}, then: $pair}\n- $pair"
    assert render(text, other="x", name="y") == [
        {"items": [{"name": "x"}, {"name": "b"}, {"name": "y"}, {"name": "b"}]}
    ]


def test_unknown_names_are_errors(render: Any) -> None:
    with pytest.raises(KeyError, match="unknown"):
        render("a: $unknown")


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_name_of_a_value_is_left_in_an_object(file: Path) -> None:
    scalars = (
        event.value for event in yaml.parse(file.read_text()) if isinstance(event, yaml.ScalarEvent)
    )
    assert not [
        text for text in scalars if text.startswith("$") and " " not in text and "(" not in text
    ]
