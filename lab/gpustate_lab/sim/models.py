"""The GPU models of simulated nodes, and the parser of ``--gpus``.

Values and their sources are in ``models.json``. Eight GPUs of one SXM model are an HGX board with an NVSwitch
fabric; fewer are single cards, since no HGX board of this generation has fewer. The switches of an HGX B200 are
not on PCI, which tests rely on. Four GB200 are a compute tray of an NVL72 rack.

All of it is simulated.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpustate.errors import LabError

#: More than any real node has; a larger number is a typing error.
MAX_GPUS_PER_NODE = 16

_ITEM = re.compile(r"(?:(?P<count>[0-9]{1,3})[xX*])?(?P<model>[A-Za-z0-9]+)")


@dataclass(frozen=True, slots=True)
class Board:
    """A baseboard with an NVLink fabric: number of GPUs, and its switches on PCI.

    Args:
        bridges: functions of ConnectX cards that manage switches which are not on PCI themselves.
        multi_node: a tray of a rack whose switches are in other trays and manage themselves.
    """

    name: str
    gpus: int
    nvswitches: int
    nvswitch_device_id: str | None
    bridges: int = 0
    multi_node: bool = False


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model as reported by PCI, NVML and CUDA."""

    key: str
    name: str
    device_id: str
    subsystem_id: str
    pci_class: str
    architecture: str
    nvml_architecture: int
    compute_capability: str
    memory_mib: int
    bar1_mib: int
    max_mig_devices: int
    power_limit_w: int
    sm_count: int
    brand: int
    max_sm_clock_mhz: int
    max_memory_clock_mhz: int
    has_nvlink_fabric: bool
    board: str | None


@cache
def _data() -> dict[str, Any]:
    text = resources.files("gpustate_lab.sim").joinpath("models.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def models() -> dict[str, GpuModel]:
    """Return every model by its key, in the order of the data file."""
    return {key: GpuModel(key=key, **fields) for key, fields in _data()["gpus"].items()}


@cache
def boards() -> dict[str, Board]:
    """Return every baseboard by name."""
    return {name: Board(name=name, **fields) for name, fields in _data()["boards"].items()}


def board_of(gpus: list[GpuModel]) -> Board | None:
    """Return the board of ``gpus``, or None for single cards.

    A node with a full board may have further cards beside it, as an eighth-rack test machine does.
    """
    for name, board in boards().items():
        if sum(gpu.board == name for gpu in gpus) >= board.gpus:
            return board
    return None


def parse_gpus(text: str) -> list[GpuModel]:
    """Parse ``8xH100`` or ``4xA100,1xT4`` into models, one entry per GPU, in order.

    Raises:
        LabError: the text is empty, a model is unknown, or there are too many GPUs.
    """
    found: list[GpuModel] = []
    for item in text.split(","):
        matched = _ITEM.fullmatch(item.strip())
        if matched is None:
            raise LabError(
                f"{item.strip()!r} is not a number of GPUs of a model",
                place=f"GPUs {text!r}",
                fix="write COUNTxMODEL, such as 8xH100 or 4xA100,1xT4",
            )
        model = models().get(matched["model"].upper())
        if model is None:
            raise LabError(
                f"unknown GPU model {matched['model']!r}",
                place=f"GPUs {text!r}",
                fix=f"choose one of {', '.join(models())}",
            )
        count = int(matched["count"] or 1)
        if count == 0:
            raise LabError(
                "the count is 0",
                place=f"GPUs {text!r}",
                fix="remove the item, or write a count of at least 1",
            )
        found += [model] * count
    if len(found) > MAX_GPUS_PER_NODE:
        raise LabError(
            f"too many GPUs on one node: {len(found)}",
            place=f"GPUs {text!r}",
            fix=f"the maximum is {MAX_GPUS_PER_NODE}",
        )
    return found
