"""The file that says which GPUs are out of use."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from gpustate.formats import quarantine
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes.excluded_gpus import drop_excluded

ENTRY = Entry("GPU-a", "0000:1b:00.0", "RMA 4711", 200, 50, "somebody")


def test_what_is_written_is_read_back_and_ends_by_itself() -> None:
    text = quarantine.as_text((ENTRY,))
    held = quarantine.read(text, 199)
    assert (held.active, held.expired, held.problem) == ((ENTRY,), (), "")
    assert held.holds("GPU-a", "")
    assert held.holds("", "0000:1b:00.0")
    assert not held.holds("", "")
    over = quarantine.read(text, 200)
    assert (over.active, over.expired) == ((), (ENTRY,))
    assert not over.holds("GPU-a", "0000:1b:00.0")
    assert ENTRY.text == "GPU-a until 1970-01-01T00:03Z: RMA 4711 (somebody)"


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "1" * 5000,
        "[" * 100000,
        '{"format": "gpustate.quarantine/2", "gpus": []}',
        '{"format": "gpustate.quarantine/1"}',
        '{"format": "gpustate.quarantine/1", "gpus": [1]}',
        json.dumps({"format": quarantine.FORMAT, "gpus": [{"uuid": 1}]}),
        quarantine.as_text((ENTRY,)).replace("200", "true"),
    ],
)
def test_a_file_that_cannot_be_read_holds_nobody_and_says_so(text: str) -> None:
    held = quarantine.read(text, 0)
    assert held.entries == ()
    assert "cannot be read" in held.problem
    assert len(held.problem) < 200


def test_a_time_is_written_as_the_calendar_has_it() -> None:
    day = 86400
    for seconds in (
        0,
        59,
        951782400,
        951868800,
        1767225599,
        4102444800,
        *range(0, 40000 * day, 37 * day + 61),
    ):
        expected = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
        assert quarantine.stamp(seconds) == expected


def test_no_file_is_nothing() -> None:
    assert quarantine.read("", 0) == Quarantine()


def test_what_is_left_of_the_gpus_leaves_out_a_lost_one_too() -> None:
    gpus = (Gpu(0, "GPU-b", "0000:01:00.0"), Gpu(1, error=15))
    held = Quarantine((ENTRY,), 100)
    assert drop_excluded(NvmlFacts(gpus=gpus), held).gpus == gpus[:1]
    assert drop_excluded(NvmlFacts(gpus=(*gpus, Gpu(2, error=15))), held).gpus == (
        *gpus,
        Gpu(2, error=15),
    )
    there = (Gpu(0, "GPU-a", "0000:1b:00.0"), Gpu(1, error=15))
    assert drop_excluded(NvmlFacts(gpus=there), held).gpus == there[1:], "another one is lost"
