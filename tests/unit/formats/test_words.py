"""What messages are made of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.formats.masking import forget_all, remember
from gpustate.formats.words import (
    cut,
    distinguish,
    json_text,
    kind_of,
    listed,
    printable,
    printable_lines,
    quote,
    quote_name,
    shorten,
)

ACTED_ON = (
    "\x1b[2J",
    "\x9b31m",
    "\r",
    "\n",
    "\x07",
    "\x7f",
    "\u202e",
    "\u2028",
    "\ud800",
    "\ufeff",
)


@pytest.mark.parametrize("text", ACTED_ON)
def test_what_a_terminal_acts_on_is_written_out(text: str) -> None:
    for made in (printable(f"a{text}b"), quote(f"a{text}b"), quote_name(f"a{text}b")):
        assert text not in made
        assert made.isprintable()
        made.encode()


def test_other_text_stays_as_it_is() -> None:
    text = "GPU 0: 80 °C, 日本語\tok \\x1b"
    assert printable(text) == text
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


@given(st.text(st.characters(exclude_categories=())))
def test_a_json_document_says_what_it_said_and_has_nothing_to_act_on(text: str) -> None:
    made = json_text(json.dumps({text: [text]}, indent=1, ensure_ascii=False))
    assert json.loads(made) == {text: [text]}
    assert printable_lines(made) == made


def test_a_number_of_thousands_of_digits_is_shown_as_that() -> None:
    assert quote(10**5000) == "'a number of thousands of digits'"
    assert len(quote("x" * 1000)) == 62


@pytest.mark.parametrize(
    ("value", "name"),
    [({}, "a mapping"), ([], "a list"), (True, "a boolean"), (1, "a number"), (None, "nothing"), ((), "a tuple")],
)  # fmt: skip
def test_kinds_are_named_as_yaml_has_them(value: object, name: str) -> None:
    assert kind_of(value) == name


@given(st.text(max_size=400), st.text(max_size=200), st.text(max_size=200))
def test_two_texts_that_differ_are_cut_to_where_they_do(same: str, one: str, other: str) -> None:
    if one == other:
        return
    first, second = distinguish(same + one, same + other)
    assert first != second
    assert max(len(first), len(second)) <= 160 + len("...")


def test_short_texts_are_told_whole() -> None:
    assert distinguish("8", "7") == ("8", "7")
    assert distinguish("a" * 300, "a" * 300 + "b")[1].endswith("ab")


def test_a_text_is_cut_after_its_secrets_are_masked() -> None:
    remember("SECRETabcdefghij")
    try:
        assert cut("x" * 10 + "SECRETabcdefghij", 20) == "xxxxxxxxxx(secret)"
        assert cut("https://me:password@host/" + "x" * 40, 20) == "https://(secret)@..."
        assert cut("short", 5) == "short"
    finally:
        forget_all()


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("short", 5, "short"),
        ("the driver failed; see \"nvidia-smi -q | grep -A4 Fabric\"", 44, "the driver failed; see ..."),
        ("the driver failed; see `nvidia-smi -q | grep -A4 Fabric`", 44, "the driver failed; see ..."),
        ("the driver failed; see 'nvidia-smi -q'; and Slurm's log of gpu1", 56, "the driver failed; see 'nvidia-smi -q' ..."),
        ("the driver failed; show the GPU: nvidia-smi -q | grep Fabric", 34, "the driver failed ..."),
        ("one two three four five", 18, "one two three ..."),
        ("x" * 30, 10, "xxxxxxx..."),
        ("a \"" + "x" * 30, 20, "a \"xxxxxxxxxxxxxx..."),
    ],
)  # fmt: skip
def test_a_message_is_cut_between_words_and_not_inside_of_a_command(
    text: str, limit: int, short: str
) -> None:
    assert shorten(text, limit) == short
    assert len(short) <= limit


@given(st.text(max_size=60), st.integers(12, 50))
def test_a_message_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shorten(text, limit)) <= limit


@pytest.mark.parametrize(
    ("names", "words"),
    [("", ""), ("ab", "a, b"), ("abc", "a, b, c"), ("abcd", "a, b and 2 more pods")],
)
def test_no_single_name_is_counted_where_others_are_named(names: str, words: str) -> None:
    assert listed(names, 2, kind="pods") == words
