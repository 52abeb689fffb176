"""The lab's exporter takes the counters files that the real one takes, and no others."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gpustate.formats import go_csv
from gpustate_lab.sim.native import PAYLOAD

ANSWERS = json.loads((Path(__file__).parents[3] / "data/dcgm/counters-answers.json").read_text())


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "go_csv", go_csv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = PAYLOAD / "dcgm" / "dcgm_exporter.py"
    spec = importlib.util.spec_from_file_location("lab_dcgm_exporter", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIELDS", resources.files("gpustate.formats.dcgm") / "fields.csv")
    return module


def test_it_starts_with_what_the_real_one_starts_with(exporter: Any, tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    for answer in ANSWERS["answers"]:
        file.write_bytes(answer["text"].encode())
        try:
            exporter.read(str(file), "4.8.2")
            refused = False
        except SystemExit:
            refused = True
        # DCGM_FI_UNKNOWN and the marks of a range are no fields here.
        marks = ("_UNKNOWN", "_FIRST_", "_MAX_FIELDS")
        assert refused == answer["refused"] or any(mark in answer["text"] for mark in marks), answer


def test_an_older_release_does_not_know_newer_names(exporter: Any, tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    file.write_text("DCGM_FI_DEV_GPU_TEMP_CELSIUS,gauge,x\n")
    with pytest.raises(SystemExit):
        exporter.read(str(file), "4.8.2")
    assert exporter.read(str(file), "4.8.3") == [("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "gauge", "x")]
