"""Journal lines that are none."""

from __future__ import annotations

import pytest

from gpustate import ops
from gpustate.remote.nodeprogram import _filled
from gpustate.remote.session import read_entry
from gpustate.run.journal import Record

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


def test_what_is_put_into_a_script_is_not_looked_at_again() -> None:
    words = {"@LOCK@": "'@TAKE@'", "@TAKE@": "'x'"}
    assert _filled("a @LOCK@ b @TAKE@ @OTHER@", words) == "a '@TAKE@' b 'x' @OTHER@"
