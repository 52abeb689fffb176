"""No probe and no answer without an end: what hangs is ended on the node and named, and a node that prints on is left."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filestates import here

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Shell
from gpustate.errors import ConnectionFailed, ProbeError
from gpustate.remote import batch, session
from gpustate.remote.channel import LocalChannel
from gpustate.remote.session import Session, Silence


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InventoryNode:
    """This machine, with programs that do not end in front of all others."""
    for name, text in {
        "hangs": "exec tail -f /dev/null",
        "hangs-on": "trap '' TERM HUP\nexec tail -f /dev/null",
        "prints-on": "exec yes",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ENDLESS", str(tmp_path))
    return replace(
        here(tmp_path / "state"),
        vars={"gpustate_state_folder": str(tmp_path / "state"), "gpustate_probe_timeout": 2},
    )


def left(tmp_path: Path) -> list[str]:
    """Processes of the test's commands that are still there."""
    names = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            if f"ENDLESS={tmp_path}\0".encode() in environment and int(folder.name) != os.getpid():
                names.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return names


def ends(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
    return condition()


@pytest.mark.parametrize(
    "script", ["hangs", "x=$(hangs-on)", "x=$(prints-on)", "timeout 60 hangs", "hangs | cat"]
)
def test_a_probe_that_hangs_is_ended_on_the_node_and_names_the_program(
    node: InventoryNode, tmp_path: Path, script: str
) -> None:
    queries = [
        Shell("echo first"),
        *(Shell(f"echo {number}") for number in range(9)),
        Shell(script),
    ]
    name = "yes" if "prints" in script else "tail"
    with pytest.raises(
        ProbeError, match=rf"did not end within 2 s and was ended; still running: .*{name}"
    ):
        Session(node).answer(queries)
    assert ends(lambda: not left(tmp_path)), left(tmp_path)


def test_a_probe_that_nobody_waits_for_ends_as_well(node: InventoryNode, tmp_path: Path) -> None:
    made = batch.make_batch(node, [Shell("hangs")], "nonce")
    channel = Session(node)._open(batch.command_line(len(made.packed), limit_s=2))
    channel.write(made.packed, time.monotonic() + 5)
    assert ends(lambda: any("/dev/null" in words for words in left(tmp_path)))
    channel.close_stdin()
    assert ends(lambda: not left(tmp_path)), left(tmp_path)
    channel.close()


def test_a_command_that_hangs_is_ended_on_the_node(node: InventoryNode, tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="timed out"):
        Session(node).shell("hangs-on", timeout_s=1)
    assert ends(lambda: not left(tmp_path), 30), left(tmp_path)


@pytest.mark.parametrize("limit", ["time", "size"])
def test_a_command_that_prints_on_is_left(
    node: InventoryNode, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(session, "_OUTPUT_BYTES", 1 << 16 if limit == "size" else 1 << 40)
    start = time.monotonic()
    with pytest.raises((ProbeError, ConnectionFailed), match=r"timed out|printed more"):
        Session(node).shell(
            "while :; do echo line; sleep 0.01; done" if limit == "time" else "yes", timeout_s=1
        )
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("yes | tr -d '\\n'", ProbeError, "a line without end"),
        ("while :; do echo junk; sleep 0.1; done", Silence, "the program reported nothing for"),
    ],
)
def test_what_follows_a_program_and_prints_on_is_left(
    node: InventoryNode, script: str, error: type[Exception], message: str
) -> None:
    channel = LocalChannel(["sh", "-c", f"echo nonce begin; {script}"])
    try:
        with pytest.raises(error, match=message):
            list(Session(node)._journal(channel, "nonce", lambda: False, quiet_s=1))
    finally:
        channel.close()


def test_an_answer_that_goes_on_is_left(
    node: InventoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch.make_batch(node, [Shell("echo x")], "nonce")
    reader = batch.AnswerReader(made)
    reader.feed(b"nonce begin\nnonce answer\n" + gzip.compress(b"\nnonce 0\n"))
    assert reader.cut
    reader.feed(b"x" * 100_000)
    assert reader.hung() == ""
