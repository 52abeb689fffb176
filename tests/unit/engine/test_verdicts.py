"""What is said of a state whose steps did not help."""

from __future__ import annotations

import re

from gpustate.core.change import Change, Disruption
from gpustate.engine.verdicts import differences


def change(before: object, after: object, *, secret: bool = False) -> Change:
    return Change("text", before, after, Disruption.NONE, secret=secret)


def test_long_values_that_begin_alike_are_shown_where_they_part() -> None:
    said = differences([change(f"{'a' * 300}one", f"{'a' * 300}two")])
    assert re.fullmatch(r"text is \.\.\.a+one', expected \.\.\.a+two'", said)
    assert len(said) < 200


def test_short_values_are_whole_and_secrets_stay_hidden() -> None:
    assert differences([change(None, "x")]) == "text is None, expected 'x'"
    said = differences([change("k" * 100 + "1", "k" * 100 + "2", secret=True)])
    assert said == "text is (secret), expected (secret)"


def test_of_a_mapping_the_keys_that_differ_are_told() -> None:
    said = differences([change({"a": 1, "b": True}, {"a": 1, "b": False, "c": "x"})])
    assert said == "text of b is True, expected False; text of c is None, expected 'x'"
