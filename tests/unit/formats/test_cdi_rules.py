"""The library that runtimes read CDI specifications with, and ours, by recorded answers of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate.errors import ProbeError
from gpustate.formats import cdi

DATA = Path(__file__).parents[2] / "data"
ANSWERS = json.loads((DATA / "cdi/spec-answers.json").read_text())


def test_what_runtimes_refuse_is_refused() -> None:
    refused = 0
    for answer in ANSWERS["answers"]:
        try:
            why = cdi.parse(answer["text"]).refused
        except ProbeError as error:
            why = (str(error),)
        # One document and whole numbers are wanted here; a node that is nothing is a slip.
        stricter = ("a second document", "wanted a number", "has no path")
        assert bool(why) == answer["refused"] or any(s in why[0] for s in stricter), answer
        refused += answer["refused"]
    assert 40 < refused < len(ANSWERS["answers"]) - 30


@pytest.mark.parametrize("path", sorted((DATA / "nvidia").glob("cdi-*.json")), ids=lambda p: p.name)
def test_what_nvidia_ctk_writes_is_not(path: Path) -> None:
    assert cdi.parse(path.read_text("utf-8")).refused == ()


def test_a_refused_specification_is_stale() -> None:
    spec = cdi.parse("cdiVersion: 0.9.0\nkind: nvidia.com/gpu\ndevices: [{name: a}]\n")
    first = cdi.judge(spec, cdi.World("580.95.05", ()))[0]
    assert first == (
        "container runtimes ignore it: its cdiVersion is '0.9.0', wanted one up to 1.1.0; the device a has no edits"
    )
