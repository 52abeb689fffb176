"""Reports that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nvmljson import to_json

from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts, parse, sysfs_address

GOOD = NvmlFacts(
    "nvml", True, "", "580.65.06", gpus=(Gpu(0, "GPU-a", mig_devices=(MigDevice("MIG-a", 1, 0),)),)
)


def test_a_report_is_read_back() -> None:
    assert parse(json.dumps(to_json(GOOD))) == GOOD


@pytest.mark.parametrize(
    "change",
    [
        {"error": "x"},
        {"driver_loaded": 1},
        {"driver_version": None},
        {"gpus": [{"index": "0"}]},
        {"gpus": [{"index": True}]},
        {"gpus": [{"index": 0, "uuid": ["x"]}]},
        {"gpus": [{"index": 0, "mig_devices": [{"uuid": 1}]}]},
        {"gpus": [7]},
        {"gpus": 7},
        {"unknown": 1},
    ],
)
def test_a_value_of_another_type_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="report is invalid"):
        parse(json.dumps({**to_json(GOOD), **change}))


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{", "nan", "[]"])
def test_what_is_no_json_object_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not (a )?JSON"):
        parse(text)


def test_an_address_that_is_none_stays_what_it_is() -> None:
    assert sysfs_address("00000000:1B:00.0") == "0000:1b:00.0"
    assert sysfs_address("zz:1B:00.0") == "zz:1b:00.0"
    assert len(sysfs_address("f" * 5000 + ":1B:00.0")) < 20
