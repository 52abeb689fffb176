"""The GPU models that a simulated node can have, and the text that asks for them.

The values stand in ``models.json``, each group with its source. A board is what makes an NVSwitch
fabric: eight GPUs of one SXM model on one node are taken to be an HGX board, fewer are not, because
no HGX board carries fewer in this generation of machines. An HGX B200 has switches too, but they
are not on PCI, which is exactly what makes it a case worth having. Four GB200 are a compute tray of an
NVL72 rack.

Everything made from these values is simulated.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpustate.errors import LabError

#: More GPUs than this are not on one node; a slip of the keyboard is more likely.
MAX_GPUS_PER_NODE = 16

_ITEM = re.compile(r"(?:(?P<count>[0-9]{1,3})[xX*])?(?P<model>[A-Za-z0-9]+)")


@dataclass(frozen=True, slots=True)
class Board:
    """A baseboard with an NVLink fabric: how many GPUs it carries, and how its switches show on PCI.

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
    """One GPU model as PCI, NVML and CUDA describe it."""

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
    """Return the board that ``gpus`` fill, or None when they are single cards.

    A node with a full board may have further cards beside it, as an eighth-rack test machine does.
    """
    for name, board in boards().items():
        if sum(gpu.board == name for gpu in gpus) >= board.gpus:
            return board
    return None


def parse_gpus(text: str) -> list[GpuModel]:
    """Read ``8xH100`` or ``4xA100,1xT4`` into models, one entry a GPU, in the order written.

    Raises:
        LabError: the text is empty, names no known model, or asks for too many.
    """
    found: list[GpuModel] = []
    for item in text.split(","):
        matched = _ITEM.fullmatch(item.strip())
        if matched is None:
            raise LabError(
                f"{item.strip()!r} names no GPUs",
                place=f"GPUs {text!r}",
                fix="write a count and a model, as 8xH100 or 4xA100,1xT4",
            )
        model = models().get(matched["model"].upper())
        if model is None:
            raise LabError(
                f"no simulated GPU model is called {matched['model']!r}",
                place=f"GPUs {text!r}",
                fix=f"known are {', '.join(models())}",
            )
        count = int(matched["count"] or 1)
        if count == 0:
            raise LabError(
                f"{item.strip()!r} asks for no GPU at all",
                place=f"GPUs {text!r}",
                fix="leave the item out, or ask for at least one",
            )
        found += [model] * count
    if len(found) > MAX_GPUS_PER_NODE:
        raise LabError(
            f"{len(found)} GPUs on one node",
            place=f"GPUs {text!r}",
            fix=f"ask for at most {MAX_GPUS_PER_NODE}",
        )
    return found
