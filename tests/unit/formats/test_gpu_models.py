"""GPU counts as inventories write them."""

from __future__ import annotations

import pytest

from gpustate.formats import gpu_models


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (8, {"": 8}),
        ("8", {"": 8}),
        ("none", {"": 0}),
        ("8xH100", {"H100": 8}),
        ("8 x NVIDIA H100", {"H100": 8}),
        ("4xA100, 4xL40S", {"A100": 4, "L40S": 4}),
        ("4xA100+2xA100", {"A100": 6}),
        ("rtx-pro-6000", {"RTXPRO6000": 1}),
        ("2x GeForce RTX 4090, NVIDIA GeForce RTX 4080 SUPER", {"RTX4090": 2, "RTX4080": 1}),
    ],
)
def test_counts_are_read(text: str | int, counts: dict[str, int]) -> None:
    assert gpu_models.parse_count(text) == counts


@pytest.mark.parametrize("text", ["", "8x", "x8", "8xH1000", "-1", -1, "8;9"])
def test_anything_else_is_an_error(text: str | int) -> None:
    with pytest.raises(ValueError, match=r"not a number of GPUs|unknown GPU model"):
        gpu_models.parse_count(text)


def test_boards_of_one_model_count_together() -> None:
    assert list(gpu_models.differences(["2330", "2331"], {"H100": 2})) == []
    assert list(gpu_models.differences(["2330", "20b2"], {"H100": 2})) == [
        "2 H100 wanted, 1 there",
        "0 others wanted, 1 there",
    ]
    assert list(gpu_models.differences(["25b6", "25b6"], {"A2": 1, "A16": 1})) == []


def test_what_is_there_is_told_by_name_or_by_id() -> None:
    assert gpu_models.describe(["2330", "2330", "ffff"]) == "1x10de:ffff, 2xH100"
    assert gpu_models.describe([]) == "none"


def test_no_device_id_is_written_wrong() -> None:
    for ids in gpu_models.MODELS.values():
        assert all(len(one) == 4 and one == one.lower() and int(one, 16) for one in ids)
