from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import LabError
from gpustate_lab.sim import models


def test_gpus_come_in_the_order_they_are_written() -> None:
    found = models.parse_gpus("4xA100, 1xT4,h100")
    assert [gpu.key for gpu in found] == ["A100"] * 4 + ["T4", "H100"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a number of GPUs of a model"),
        ("8x", "unknown GPU model '8x'"),
        ("8xH100,", "is not a number of GPUs of a model"),
        ("0xT4", "the count is 0"),
        ("2xH900", "unknown GPU model 'H900'.*choose one of A100, H100"),
        ("17xT4", "too many GPUs on one node: 17.*the maximum is 16"),
        ("-1xT4", "is not a number of GPUs of a model"),
    ],
)
def test_wrong_gpu_text_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(LabError, match=message) as caught:
        models.parse_gpus(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = models.parse_gpus(text)
    except LabError:
        return
    assert 1 <= len(found) <= models.MAX_GPUS_PER_NODE


def test_only_eight_gpus_of_one_sxm_model_make_a_board() -> None:
    assert models.board_of(models.parse_gpus("7xH100")) is None
    assert models.board_of(models.parse_gpus("4xH100,4xH200")) is None
    assert models.board_of(models.parse_gpus("8xL40S")) is None
    board = models.board_of(models.parse_gpus("8xH100,1xT4"))
    assert board is not None
    assert (board.nvswitches, board.nvswitch_device_id) == (4, "22a3")


def test_the_switches_of_b200_are_not_on_pci() -> None:
    board = models.board_of(models.parse_gpus("8xB200"))
    assert board is not None
    assert (board.nvswitches, board.nvswitch_device_id) == (0, None)


@pytest.mark.parametrize(("key", "device_id"), [
    ("A100", "20b2"), ("H100", "2330"), ("H200", "2335"), ("B200", "2901"), ("L40S", "26b9"), ("T4", "1eb8"),
])  # fmt: skip
def test_pci_ids_are_those_of_the_real_boards(key: str, device_id: str) -> None:
    assert models.models()[key].device_id == device_id
