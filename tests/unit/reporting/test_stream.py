"""The event stream: whole lines, whatever its reader does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpustate.errors import UsageError
from gpustate.formats.masking import remember
from gpustate.reporting.stream import open_stream


def test_a_file_is_appended_to_and_is_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for number in range(2):
        stream = open_stream(str(path), print)
        stream.write({"number": number, "text": "a\nb\x1b[2J\u2028"})
        stream.close()
    lines = path.read_text("utf-8").split("\n")[:-1]
    assert [json.loads(line)["number"] for line in lines] == [0, 1]
    assert json.loads(lines[0])["text"] == "a\nb\x1b[2J\u2028"
    assert path.stat().st_mode & 0o777 == 0o600


def test_secrets_are_masked(tmp_path: Path) -> None:
    remember('pass"word\u00e4-1')
    stream = open_stream(str(tmp_path / "events"), print)
    stream.write({"text": 'x pass"word\u00e4-1 y', "name": 'pass"word\u00e4-1'})
    stream.close()
    assert json.loads((tmp_path / "events").read_text()) == {
        "text": "x (secret) y",
        "name": "(secret)",
    }


def test_a_reader_that_closes_the_pipe_costs_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    stream = open_stream(str(pipe), warnings.append)
    os.close(reader)
    for number in range(100):
        stream.write({"number": number})
    stream.close()
    assert warnings == [f"events: the reader of {pipe} closed it; the run continues without events"]


def test_a_full_disk_costs_one_warning() -> None:
    warnings: list[str] = []
    stream = open_stream("/dev/full", warnings.append)
    for number in range(100):
        stream.write({"number": number})
    stream.close()
    assert warnings == [
        "events: cannot write /dev/full (No space left on device); the run continues without events"
    ]


def test_a_reader_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    warnings: list[str] = []
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    stream = open_stream(str(pipe), warnings.append)
    for _ in range(200):
        stream.write({"text": "x" * 1000})
    stream.close(patience_s=0.2)
    assert len(warnings) == 1
    assert "does not take the last" in warnings[0]
    os.close(reader)


def test_a_stream_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="nobody reads this pipe"):
        open_stream(str(pipe), print)
    with pytest.raises(UsageError, match="Is a directory"):
        open_stream(str(tmp_path), print)
    with pytest.raises(UsageError, match="No such file"):
        open_stream(str(tmp_path / "no/events"), print)
