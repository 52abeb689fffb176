from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import load
from gpustate.inventory.ini import parse_literal

from .conftest import Write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu[1:3", "hosts.ini:1: invalid range in 'gpu[1:3': '[' is not closed"),
        ("gpu1]", "hosts.ini:1: invalid range in 'gpu1]': ']' without '['"),
        ("gpu[3:1]", "hosts.ini:1: invalid range in 'gpu[3:1]': 3 comes after 1"),
        ("gpu[01:3]", "hosts.ini:1: invalid range in 'gpu[01:3]': 01 and 3 differ in length"),
        ("gpu[1:3:0]", "the step '0' is not a number above zero"),
        ("gpu[1]", "'[1]' is not begin:end or begin:end:step"),
        ("gpu[1:999999999]", "it expands to 999999999 nodes, more than the limit of 100000"),
        (
            "a[1:1000]b[1:1000]",
            "expands to 1000000 nodes, more than the limit of 100000 per pattern",
        ),
        ("gpu1:0", "hosts.ini:1: '0' in 'gpu1:0' is not a port, wanted a number from 1 to 65535"),
        ("gpu1:70000", "'70000' in 'gpu1:70000' is not a port"),
        ("gpu1:", "'' in 'gpu1:' is not a port"),
        ("a:b:c", "'a:b:c' is neither name:port nor an IPv6 address"),
        ("gpu1 gpu2", "'gpu2' after 'gpu1', wanted key=value; write one node per line"),
        ("gpu1 a='x", "no closing quotation; close the quotes"),
        ("ansible_user=root", "'ansible_user=root' looks like a variable"),
        ("root@gpu1", "'root@gpu1': a node's name cannot include a user"),
        ("../etc", "'../etc' is not a node name"),
        ("-oProxyCommand", "is not a node name"),
        ("---", "'---' begins a YAML file"),
        ("n1\n[gpu vars]", "hosts.ini:2: '[gpu vars]' is not a section"),
        ("n1\n[gpu:host]", "hosts.ini:2: [gpu:host] is not a valid section"),
        (
            "n1\n[gpu:vars]\na=1",
            "hosts.ini:2: [gpu:vars] refers to the group 'gpu', which is not defined",
        ),
        (
            "n1\n[a:children]\nb",
            "hosts.ini:3: [a:children] refers to the group 'b', which is not defined",
        ),
        ("[a]\nn1\n[a:vars]\nfoo", "hosts.ini:4: 'foo' under [a:vars], wanted key=value"),
        ("[a]\nn1\n[a:children]\nb c", "hosts.ini:4: 'b c' is not the name of a group"),
        (
            "[a]\nn1\n[a:vars]\nansible_group_priority=high",
            "hosts.ini:4: ansible_group_priority is 'high', wanted a whole number",
        ),
        ("[a:children]\nb\n[b:children]\na", "dependency cycle of groups: "),
        ("[a:children]\na", "dependency cycle of groups: a > a"),
        ("[a:children]\nall", "dependency cycle of groups: "),
        ("[empty]", "contains no node"),
    ],
)
def test_a_wrong_line_is_an_error_with_its_number(write: Write, text: str, message: str) -> None:
    source = write("hosts.ini", text)
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert message in str(caught.value)
    assert str(caught.value).startswith("hosts.ini")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("08", "08"),
        ("-1", -1),
        ("1.5", 1.5),
        ("true", "true"),
        ("True", True),
        ("None", None),
        ("", ""),
        ("[1, 'a']", [1, "a"]),
        ("(1, (2,))", [1, [2]]),
        ("{'a': (1,)}", {"a": [1]}),
        ("'x y'", "x y"),
        ("b'x'", "x"),
        ("2j", "2j"),
        ("...", "..."),
        ("{[]}", "{[]}"),
        ("(" * 5000, "(" * 5000),
        ("-" * 5000 + "1", "-" * 5000 + "1"),
        (r"\d", r"\d"),
    ],
)
def test_a_value_is_the_python_literal_it_looks_like(text: str, value: object) -> None:
    found = parse_literal(text)
    assert found == value
    assert type(found) is type(value)


def test_a_variable_remembers_its_line(write: Write) -> None:
    source = write("hosts.ini", "[gpu]\nn1 a=1\nn2\n[gpu:vars]\nb=2\na=3\n")
    first, second = load(source)
    assert first.origins == {"a": "hosts.ini:2", "b": "hosts.ini:5"}
    assert second.origins == {"a": "hosts.ini:6", "b": "hosts.ini:5"}


def test_a_node_named_like_a_group_is_noted(write: Write) -> None:
    assert load(write("hosts.ini", "[gpu]\ngpu\n")).notes == (
        "gpu is the name of a node and of a group",
    )
