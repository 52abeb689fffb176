"""Label selectors are read as kubectl reads them."""

from __future__ import annotations

import pytest

from gpustate.errors import UsageError
from gpustate.formats.labels import selectors

LABELS = {"app": "train", "tier": "a", "example.net/team": "x"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("app=train", True),
        ("app==train", True),
        ("app=serve", False),
        ("app!=serve", True),
        ("missing!=x", True),
        ("app", True),
        ("!app", False),
        ("!missing", True),
        ("tier in (a, b)", True),
        ("tier notin (a,b)", False),
        ("missing notin (a)", True),
        ("example.net/team=x,tier in (a,b),!gone", True),
        ("example.net/team=x,tier=b", False),
        ("app=", False),
    ],
)
def test_a_selector_matches(text: str, holds: bool) -> None:
    assert selectors.matches(selectors.parse(text), LABELS) is holds


@pytest.mark.parametrize("text", ["a=b=c", "=x", "app in a,b", "app in (a", "a b", "!", "-a=b"])
def test_what_is_not_a_selector_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a label selector"):
        selectors.parse(text)


def test_objects_select_by_labels_and_expressions() -> None:
    def matches(selector: dict[str, object] | None) -> bool:
        return selectors.matches(selectors.of_object(selector), LABELS)

    assert matches({})
    assert not matches(None)
    assert matches({"matchLabels": {"app": "train"}})
    assert not matches({"matchLabels": {"app": "serve"}})
    assert matches({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]})
    assert not matches({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})
