"""Names in few words, and back again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.plan.ranges import expand, fold


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], []),
        (["gpu1"], ["gpu1"]),
        (["gpu2", "gpu1"], ["gpu[1-2]"]),
        ([f"gpu{n:02}" for n in (*range(1, 17), 20)], ["gpu[01-16,20]"]),
        ([f"rack{r}-gpu{g}.dc1" for r in (1, 2) for g in (1, 2, 3)], ["rack[1-2]-gpu[1-3].dc1"]),
        (["n8", "n9", "n10", "n09"], ["n[8-9,09-10]"]),
        (["a10", "a9", "login", "b1"], ["a[9-10]", "b1", "login"]),
        (["i-0123456789012", "i-0123456789013"], ["i-0123456789012", "i-0123456789013"]),
        (["x[1]", "x[2]", "a,b"], ["a,b", "x[1]", "x[2]"]),
    ],
)
def test_names_in_a_row_become_a_range(names: list[str], folded: list[str]) -> None:
    assert fold(names) == folded


@given(st.lists(st.text(alphabet="ab-0129.[,", min_size=1, max_size=8)))
def test_no_name_is_lost_and_none_is_made_up(names: list[str]) -> None:
    back: list[str] = []
    for text in fold(names):
        back += [text] if text in names and set(text) & set("[,") else expand(text)
    assert sorted(back) == sorted(set(names))


@given(st.permutations([f"gpu{n}" for n in (1, 2, 3, 9, 10, 11)]))
def test_the_order_of_names_makes_no_difference(names: list[str]) -> None:
    assert fold(names) == ["gpu[1-3,9-11]"]
