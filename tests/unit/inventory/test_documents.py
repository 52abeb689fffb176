from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory.documents import EncryptedText, LiteralText, parse

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGE_BOMB = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "f.yml:2: is not YAML: a tab used for indentation"),
        ("a: 1\nb: 2\na: 3\n", "f.yml:3: the key 'a' is a duplicate of line 1"),
        ("a: 'x\n", "f.yml:2: is not YAML: found unexpected end of stream"),
        ("a: b: c\n", "f.yml:1: is not YAML: mapping values are not allowed"),
        ("a: *nope\n", "f.yml:1: the alias *nope has no anchor before it"),
        ("a: &a\n  - *a\n", "f.yml:2: the alias *a is inside its own value"),
        ("a: 1\n---\nb: 1\n", "f.yml:2: a second document begins, wanted one"),
        ("[" * 50_000, "f.yml:1: nested deeper than 100 levels"),
        ("- " * 50_000, "f.yml:1: nested deeper than 100 levels"),
        (BOMB, "f.yml:7: the aliases expand to more than 2000000 values"),
        ("a: !!python/object:os.system x\n", "f.yml:1: the tag 'python/object:os.system'"),
        ("a: !include x\n", "f.yml:1: the tag '!include' is not supported"),
        ("a: !!int x\n", "f.yml:1: this is not a YAML int"),
        ("? [a]\n: 1\n", "f.yml:1: a key is a list or a mapping, wanted a string"),
        ("a:\n  <<: 5\n", "f.yml:2: '<<' must be a mapping"),
        ("a: 1\nb: \x01\n", "f.yml:2: is not YAML: a control character (0x01)"),
        ("a: !vault [x]\n", "f.yml:1: the tag '!vault' is not supported on a seq"),
    ],
)
def test_bad_yaml_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse(text, "f.yml")
    assert message in str(caught.value)


def test_merged_aliases_are_counted_like_others() -> None:
    with pytest.raises(InventoryError, match="the aliases expand to more than"):
        parse(MERGE_BOMB, "f.yml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "f.json:1: the key a is defined twice"),
        (
            '{"a": "a:",\n "b": {"a": 2,\n "c": 1,\n "c": 2}, "a": 2}',
            "f.json:4: the key c is defined twice",
        ),
        ('{"a": "NaN",\n "b": [NaN]}', "f.json:2: NaN is not a JSON number"),
        ('{"a": 1,\n "b": }', "f.json:2: is not JSON: Expecting value (column 7)"),
        ("[" * 100_000, "f.json: is not JSON: nested too deep"),
    ],
)
def test_bad_json_is_an_error(text: str, message: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse(text, "f.json")
    assert str(caught.value).startswith(message)


def test_ansible_tags_are_kept_apart_from_plain_text() -> None:
    data = parse("a: !unsafe '{{ x }}'\nb: !vault |\n  $ANSIBLE_VAULT;1.1\n  6162\n", "f.yml").data
    assert type(data["a"]) is LiteralText
    assert type(data["b"]) is EncryptedText
    data = parse('{"a": {"__ansible_unsafe": "x"}, "b": {"__ansible_vault": "y"}}', "f.json").data
    assert type(data["a"]) is LiteralText
    assert type(data["b"]) is EncryptedText


def test_a_date_stays_text_and_merge_keys_keep_what_is_written_out() -> None:
    data = parse("a: 2024-01-02\nb: &b {x: 1, y: 2}\nc:\n  x: 3\n  <<: *b\n", "f.yml").data
    assert data == {"a": "2024-01-02", "b": {"x": 1, "y": 2}, "c": {"x": 3, "y": 2}}


def test_keys_know_their_lines() -> None:
    document = parse("# x\na:\n  b: 1\n  c: 2\n", "f.yml")
    assert document.place(document.data, "a") == "f.yml:2"
    assert document.place(document.data["a"], "c") == "f.yml:4"
    assert document.place({}, "c") == "f.yml"
