"""Spans of statements in a TOML text."""

from __future__ import annotations

import pytest

from gpustate.errors import ProbeError
from gpustate.formats.toml_scan import (
    array_items,
    inline_entries,
    parse,
    render_key,
    render_value,
    scan,
)

TEXT = '''# head
a."b.c" = """x
# no comment
[no.header]""" # tail
\t[t . 'u']  # why
  list = [ "1", # ]
    "2" ]
[[many]]
n = 'a#b'
'''


def test_statements_have_their_path_section_and_comment() -> None:
    found = scan(TEXT)
    observed = [(s.kind, s.section, s.path, s.comment) for s in found.statements]
    assert observed == [
        ("key", (), ("a", "b.c"), "# tail"),
        ("table", ("t", "u"), ("t", "u"), "# why"),
        ("key", ("t", "u"), ("t", "u", "list"), ""),
        ("array", ("many",), ("many",), ""),
        ("key", ("many",), ("many", "n"), ""),
    ]
    assert [c.text for c in found.comments] == ["# head"]
    assert "".join([TEXT[:7], *(TEXT[s.start : s.end] for s in found.statements)]) == TEXT


def test_values_are_found_to_the_byte() -> None:
    values = [TEXT[s.value_start : s.value_end] for s in scan(TEXT).statements if s.kind == "key"]
    assert values[1:] == ['[ "1", # ]\n    "2" ]', "'a#b'"]
    assert values[0].endswith('[no.header]"""')


def test_items_of_arrays_and_inline_tables_are_found() -> None:
    array = '[ "a,]", # c, ]\n  [1, 2],\n "c" , ]'
    assert [array[a:b] for a, b in array_items(array, 0)] == ['"a,]"', "[1, 2]", '"c"']
    table = '{ a = 1, b . "c" = { d = [] } , e = true }'
    assert [(k, table[a:b]) for k, a, b in inline_entries(table, 0)] == [
        (("a",), "1"),
        (("b", "c"), "{ d = [] }"),
        (("e",), "true"),
    ]


def test_quotes_at_the_end_of_a_multi_line_string_belong_to_it() -> None:
    text = 'a = """x"""""\nb = 1\n'
    assert [s.path for s in scan(text).statements] == [("a",), ("b",)]


def test_rendered_values_read_back() -> None:
    value = {"s": 'a"\\\n\x7f', "b": True, "i": -3, "f": 1.5, "l": ["x", ["y"]], "t": {"k.k": {}}}
    assert parse(f"v = {render_value(value)}", "x")["v"] == value
    assert (
        render_key(("plugins", "io.containerd.grpc.v1.cri"))
        == 'plugins."io.containerd.grpc.v1.cri"'
    )


def test_a_date_cannot_be_copied() -> None:
    with pytest.raises(ProbeError, match="cannot be copied"):
        render_value(parse("d = 1979-05-27", "x")["d"])


def test_a_table_that_is_there_twice_is_named_as_toml_writes_it() -> None:
    with pytest.raises(ProbeError) as caught:
        parse('[plugins."x.y"]\n[plugins."x.y"]\n', "f")
    assert caught.value.message == 'not valid TOML: Cannot declare [plugins."x.y"] twice'
