"""Commands of facts as queries: output, end and errors come back, and a broken one breaks no other."""

from __future__ import annotations

import subprocess

import pytest

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer
from gpustate.operations.queries import CommandOutput, Output
from gpustate.remote import batch


def run(query: CommandOutput) -> Output:
    done = subprocess.run(["sh", "-c", f"(\n{query.script()}\n)"], capture_output=True)
    return query.parse(Answer(done.returncode, done.stdout))


@pytest.mark.parametrize(
    ("text", "status", "stdout", "stderr"),
    [
        ("echo a; echo b", 0, ("a", "b"), ()),
        ("printf 'a\\n\\n'", 0, ("a", ""), ()),
        ("true", 0, (), ()),
        ("echo a; echo why >&2; exit 3", 3, ("a",), ("why",)),
        ("echo why >&2", 0, (), ()),
        ("exit 0; echo never", 0, (), ()),
    ],
)
def test_a_command_returns_its_output_and_exit_status(
    text: str, status: int, stdout: tuple[str, ...], stderr: tuple[str, ...]
) -> None:
    output = run(CommandOutput(text))
    assert (output.status, output.stdout, output.stderr) == (status, stdout, stderr)


@pytest.mark.parametrize("text", ["if [", "echo 'x", "f() {"])
def test_a_command_that_sh_does_not_accept_fails_alone(text: str) -> None:
    queries = (CommandOutput(text), CommandOutput("echo good"))
    made = batch.make_batch(InventoryNode("n"), queries, "nonce")
    done = subprocess.run(["sh", "-c", made.script], capture_output=True)
    reader = batch.AnswerReader(made)
    reader.feed(done.stdout)
    bad, good = (q.parse(a) for q, a in zip(queries, reader.answers(), strict=True))
    assert bad.status != 0
    assert (good.status, good.stdout) == (0, ("good",))


def test_a_timeout_ends_it() -> None:
    assert run(CommandOutput("sleep 9", timeout_s=1)).status == 124
