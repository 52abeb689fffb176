"""What dpkg and apt print, and what only looks like it."""

from __future__ import annotations

import pytest

from gpustate.formats.dpkg import compare_versions, parse_madison, parse_query


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("1:0", "0:9", 1),
        ("1.0~rc1", "1.0", -1),
        ("1.0-1", "1.0-1", 0),
        ("1.10", "1.9", 1),
        ("1.010", "1.10", 0),
        ("9" * 5000, "1" + "0" * 5000, -1),
        ("²:1", "0:1", 0),
        ("1.²", "1.٣", -1),
    ],
)
def test_versions_compare_whatever_they_are(left: str, right: str, order: int) -> None:
    assert compare_versions(left, right) == order
    assert compare_versions(right, left) == -order


def test_a_name_or_version_that_is_none_is_left_out() -> None:
    """They become words of commands."""
    rows = "a|amd64|1.0|ii \n-oDPkg::Pre-Invoke::=x|amd64|1.0|ii \nb|all|$(x)|ii \nc d|all|1|ii \n"
    assert set(parse_query(rows)) == {"a"}
    offers = "a | 1.0 | http://x y\n$(x) | 1.0 | http://x y\nb | -o=1 | http://x y\n"
    assert set(parse_madison(offers)) == {"a"}
