from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import load

from .conftest import Write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "hosts.yml: contains a list, wanted a mapping of groups"),
        ("# nothing\n", "hosts.yml: is empty, wanted groups"),
        ("all:\n  hosts:\n    - n1\n", "hosts.yml:2: hosts of the group all is a list"),
        (
            "all:\n  hosts:\n    7:\n",
            "hosts.yml:3: a node's name is a number ('7'), wanted a string",
        ),
        ("all:\n  hosts:\n    n1: 5\n", "hosts.yml:3: 'n1' has a number, wanted a mapping"),
        ("all:\n  hosts:\n    n[1:]: {}\n", "hosts.yml:3: invalid range"),
        ("all:\n  hosts:\n    n1: {5: 1}\n", "hosts.yml:3: a variable's name is '5'"),
        ("all:\n  vars:\n    1: 1\n", "hosts.yml:3: a variable's name is '1'"),
        ("5:\n  hosts: n1\n", "hosts.yml:1: a group's name is '5', wanted a string"),
        (
            "plugin: amazon.aws.aws_ec2\nregions: []\n",
            "hosts.yml:1: is the configuration of Ansible's inventory plugin 'amazon.aws.aws_ec2'",
        ),
        ("a:\n  children:\n    b:\n      children:\n        a:\n", "dependency cycle of groups"),
        (
            "all:\n  hosts:\n    n1:\n    n1:\n",
            "hosts.yml:4: the key 'n1' is a duplicate of line 3",
        ),
    ],
)
def test_a_wrong_shape_is_an_error_with_its_line(write: Write, text: str, message: str) -> None:
    source = write("hosts.yml", text)
    with pytest.raises(InventoryError) as caught:
        load(source)
    assert message in str(caught.value)


def test_what_is_skipped_is_noted(write: Write) -> None:
    source = write("hosts.yml", "all:\n  host:\n    n1:\n  hosts:\n    n2:\nx: 5\n")
    inventory = load(source)
    assert [node.name for node in inventory] == ["n2"]
    assert inventory.notes == (
        "hosts.yml:2: 'host' in the group all was not read: a group may have only hosts, vars and children",
        "hosts.yml:6: 'x' is a number, not a group, and was not read",
    )


def test_a_variable_remembers_its_line(write: Write) -> None:
    source = write("hosts.yml", "gpu:\n  vars:\n    a: 1\n  hosts:\n    n1:\n      b: 2\n")
    (node,) = load(source)
    assert node.origins == {"a": "hosts.yml:3", "b": "hosts.yml:6"}
