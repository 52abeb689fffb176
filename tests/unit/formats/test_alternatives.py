"""Debian's alternatives as update-alternatives prints them."""

from __future__ import annotations

import pytest

from gpustate.formats.alternatives import Group, parse_query

AUTO = """Name: cuda
Link: /usr/local/cuda
Status: auto
Best: /usr/local/cuda-13.0
Value: /usr/local/cuda-13.0

Alternative: /usr/local/cuda-12.9
Priority: 129

Alternative: /usr/local/cuda-13.0
Priority: 130
"""


def test_a_group_is_read() -> None:
    choices = ("/usr/local/cuda-12.9", "/usr/local/cuda-13.0")
    assert parse_query(AUTO) == Group("/usr/local/cuda", "/usr/local/cuda-13.0", choices)


def test_a_link_that_leads_nowhere_has_no_value() -> None:
    found = parse_query("Name: cuda\nLink: /usr/local/cuda\nStatus: manual\nValue: none\n")
    assert found == Group("/usr/local/cuda", None, ())


@pytest.mark.parametrize(
    "text", ["", "update-alternatives: error: no alternatives for cuda\n", "Status: auto\n", "\0"]
)
def test_what_is_no_group_is_none(text: str) -> None:
    assert parse_query(text) is None
