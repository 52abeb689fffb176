"""Journal lines that are none."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import ops
from gpustate.core.inventory import InventoryNode
from gpustate.engine.journal import Record, cause
from gpustate.remote.session import Session, read_entry

PROGRAM = ops.compile_program((ops.Block("a", (), (ops.Run("x", "do x"),)),))


@pytest.mark.parametrize(
    "line", ["[" * 100_000, "{", "[]", "1", '{"e":"result","i":1,"out":7}', ""]
)
def test_a_line_that_is_no_entry_is_torn_or_taken_as_it_is(line: str) -> None:
    Record().take(read_entry(line), PROGRAM)


@pytest.mark.parametrize("status", ["[1]", '"x"', "1e999", "{}", "true"])
def test_a_status_that_is_no_number_is_a_failure(status: str) -> None:
    record = Record()
    record.take(read_entry('{"e":"result","i":1,"rc":' + status + "}"), PROGRAM)
    assert record.states["a"].failed_step == "do x"
    assert record.states["a"].status == 1


class Node:
    """A channel that says these bytes, as a node does."""

    def __init__(self, said: bytes) -> None:
        self.said = said

    def readable(self, seconds: float) -> bool:
        return True

    def read(self, deadline: float) -> bytes:
        said, self.said = self.said[:7], self.said[7:]
        return said


@pytest.mark.parametrize(
    "line", [b'{"e":"skip","state":"\xff\xfe","because":"\xc3"}', b'{"e":"int', b'{"bytes":"9"}']
)
def test_a_program_is_followed_further_from_the_byte_after_the_last_line(line: bytes) -> None:
    """Whatever the line is: one that is no UTF-8 has more bytes than it has when it is read."""
    session = Session(InventoryNode("gpu1"))
    channel: Any = Node(b"N begin\n" + line + b"\nN died\n")
    record = Record()
    for entry in session._journal(channel, "N", lambda: False):
        record.take(entry, PROGRAM)
    assert record.died
    assert record.offset == len(line) + 1


def test_a_broken_program_is_told_by_the_last_line_of_its_traceback() -> None:
    said = (
        "Traceback (most recent call last):\n"
        '  File "/x.py", line 1, in <module>\n    from x import error_name\n'
        "ModuleNotFoundError: No module named 'x'\n"
    )
    assert cause(said) == "ModuleNotFoundError: No module named 'x'"


def test_a_line_that_only_announces_is_joined_and_what_is_always_printed_is_passed_over() -> None:
    output = (
        "Detection of Platform Module failed: No valid Platform ID detected\n"
        "Error: \n Problem: something nobody has seen yet\nChoose from above solutions by number or cancel: c\n"
    )
    assert cause(output) == "Error: Problem: something nobody has seen yet"
    assert cause("Reading package lists...E: something new\n") == "E: something new"
