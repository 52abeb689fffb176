from __future__ import annotations

import time

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory import executable, load

from .conftest import Write


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such cloud >&2; exit 3", "./x --list: failed with exit code 3: 'no such cloud'"),
        ("exit 1", "./x --list: failed with exit code 1 without output"),
        ("kill -9 $$", "./x --list: was killed by signal 9"),
        ("echo '{'", "./x --list:2: is not JSON: Expecting property name"),
        ("", "./x --list:1: is not JSON: Expecting value (column 1)"),
        ("echo '[]'", "./x --list: printed a list, wanted an object of groups"),
        ("printf '\\377'", "./x --list: printed invalid UTF-8 (offset 0)"),
        ("""echo '{"_meta": {}}'""", "_meta.hostvars is nothing, wanted an object"),
        ("""echo '{"g": {"hosts": "n1"}}'""", "hosts of the group 'g' is a string, wanted a list"),
        ("""echo '{"g": {"vars": []}}'""", "vars of the group 'g' is a list, wanted a mapping"),
        ("""echo '{"g": [1]}'""", "the group 'g' has the node '1', wanted a string"),
        ("""echo '{"g": ["../x"]}'""", "'../x' is not a node name"),
        (
            """echo '{"g": ["n1"], "_meta": {"hostvars": {"n1": 5}}}'""",
            "the variables of n1 are a number, wanted an object",
        ),
        (
            """test $1 = --list && echo '{"g": ["n1"]}' || exit 9""",
            "./x --host n1: failed with exit code 9",
        ),
    ],
)
def test_a_broken_program_is_one_clear_error(write: Write, script: str, message: str) -> None:
    write("x", f"#!/bin/sh\n{script}\n", executable=True)
    with pytest.raises(InventoryError) as caught:
        load("./x")
    assert message in str(caught.value)


def test_a_program_that_cannot_be_started_is_an_error(write: Write) -> None:
    write("x", "#!/nonexistent/interpreter\n", executable=True)
    with pytest.raises(InventoryError, match=r"\./x --list: cannot be run: No such file"):
        load("./x")


def test_a_slow_program_is_stopped_with_its_children(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable, "TIMEOUT_S", 0.3)
    write("x", "#!/bin/sh\nsleep 30 & sleep 30\n", executable=True)
    begun = time.monotonic()
    with pytest.raises(InventoryError, match=r"timed out after 0\.3 s"):
        load("./x")
    assert time.monotonic() - begun < 5


def test_output_without_end_is_stopped(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "LIMIT_MIB", 1)
    write("x", "#!/bin/sh\nexec yes\n", executable=True)
    with pytest.raises(InventoryError, match="printed more than 1 MiB"):
        load("./x")


def test_an_executable_bit_alone_does_not_make_a_program(write: Write) -> None:
    write("hosts", "[gpu]\nn1\n", executable=True)
    assert [node.name for node in load("hosts")] == ["n1"]


def test_a_node_in_no_group_is_noted_and_a_saved_answer_is_read(write: Write) -> None:
    write("x.json", '{"g": ["n1"], "_meta": {"hostvars": {"n1": {"a": 1}, "n2": {}}}}')
    inventory = load("x.json")
    assert [(node.name, dict(node.vars)) for node in inventory] == [("n1", {"a": 1})]
    assert inventory.notes == ("x.json: 'n2' has variables but is in no group; it was not read",)
