"""The JSON editor changes what it must, and every refusal is one line that names the place."""

from __future__ import annotations

import pytest

from gpustate.errors import ProbeError
from gpustate.formats.jsonedit import drop_key, parse, set_key

PLACE = "/etc/docker/daemon.json"


@pytest.mark.parametrize(
    ("text", "path", "value", "wanted"),
    [
        ('{"a": 1}', ("b",), 2, '{"a": 1, "b": 2}'),
        ('{"a":1}', ("b",), [1], '{"a":1, "b":[1]}'),
        ('{"a":1,"c":3}', ("b",), 2, '{"a":1,"c":3,"b":2}'),
        ('{ "a": 1 }', ("a",), 5, '{ "a": 5 }'),
        ("{}", ("a", "b"), 1, '{"a": {"b": 1}}'),
        ("", ("a",), 1, '{\n    "a": 1\n}\n'),
        ('{\n\t"a": 1\n}\n', ("b",), {"c": 1}, '{\n\t"a": 1,\n\t"b": {\n\t\t"c": 1\n\t}\n}\n'),
        ('{\r\n  "a": {}\r\n}', ("a", "b"), 1, '{\r\n  "a": {\r\n    "b": 1\r\n  }\r\n}'),
        ('{\n  "a" : {"x" : 1}\n}', ("a", "b"), 2, '{\n  "a" : {"x" : 1, "b" : 2}\n}'),
        (
            '{"a": "}\\"{", "b": {"k": "\\u00e9"}}',
            ("b", "n"),
            1,
            '{"a": "}\\"{", "b": {"k": "\\u00e9", "n": 1}}',
        ),
    ],
)
def test_a_key_is_set_in_the_manner_of_its_neighbours(
    text: str, path: tuple[str, ...], value: object, wanted: str
) -> None:
    assert set_key(text, path, value, PLACE) == wanted


@pytest.mark.parametrize(
    ("text", "path", "wanted"),
    [
        ('{"a": 1, "b": 2}', ("a",), '{"b": 2}'),
        ('{"a": 1, "b": 2}', ("b",), '{"a": 1}'),
        ('{"a": 1}', ("a",), "{}"),
        ('{"a": 1}', ("b",), '{"a": 1}'),
        ('{"a": 1}', ("a", "b"), '{"a": 1}'),
        (
            '{\n  "a": 1,\n  "b": {\n    "c": 2\n  },\n  "d": 3\n}\n',
            ("b",),
            '{\n  "a": 1,\n  "d": 3\n}\n',
        ),
    ],
)
def test_a_key_is_taken_out_with_its_comma(text: str, path: tuple[str, ...], wanted: str) -> None:
    assert drop_key(text, path, PLACE) == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ('{"a": 1,}', "not valid JSON"),
        ("// x\n{}", "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[]", "is a list, wanted an object"),
        ("null", "wanted an object"),
        ('{"runtimes": []}', "runtimes is not an object"),
        ('{"runtimes": {}, "runtimes": {}}', "duplicate key runtimes"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        ("\x00", "not valid JSON"),
    ],
)
def test_what_cannot_be_edited_is_one_line_that_names_the_place(text: str, reason: str) -> None:
    with pytest.raises(ProbeError) as caught:
        set_key(text, ("runtimes", "nvidia"), {}, PLACE)
    assert reason in str(caught.value)
    assert PLACE in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_byte_order_mark_stays() -> None:
    assert set_key('\ufeff{"a": 1}', ("b",), 2, PLACE) == '\ufeff{"a": 1, "b": 2}'
    assert parse("\ufeff", PLACE) == {}
