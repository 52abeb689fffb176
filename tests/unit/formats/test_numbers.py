"""A number, or nothing, and never an error."""

from __future__ import annotations

import pytest

from gpustate.formats.numbers import hexadecimal, parse_uint


@pytest.mark.parametrize(
    "text", ["", " 1", "-1", "+1", "1_0", "²", "٣", "1.0", "x", "9" * 19, "9" * 5000]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert parse_uint(text) is None


def test_numbers_are_read() -> None:
    assert parse_uint("0012") == 12
    assert (hexadecimal("c3"), hexadecimal("0x1B"), hexadecimal("0xg"), hexadecimal("")) == (
        195,
        27,
        None,
        None,
    )
