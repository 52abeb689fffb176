"""What a Node offers against what its machine has, by MIG strategy, sharing and quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.cluster.offers import mismatch, whole_divided
from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts

GPU, HALF, SEVENTH = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"


def machine(count: int, *layouts: tuple[str, ...]) -> NvmlFacts:
    """GPUs, the first of them divided by these profiles."""
    gpus = []
    for index in range(count):
        names = layouts[index] if index < len(layouts) else None
        devices = tuple(
            MigDevice(f"MIG-{index}-{one}", name=f"NVIDIA H100 80GB HBM3 MIG {name}")
            for one, name in enumerate(names or ())
        )
        one = Gpu(index, f"GPU-{index}", mig_current=names is not None, mig_devices=devices)
        gpus.append(one)
    return NvmlFacts(source="nvml", gpus=tuple(gpus))


def node(**offered: int) -> dict[str, Any]:
    names = {"gpu": GPU, "shared": f"{GPU}.shared", "half": HALF, "seventh": SEVENTH}
    found = {names[key]: str(value) for key, value in offered.items()}
    return {"metadata": {"name": "n"}, "status": {"allocatable": found, "capacity": found}}


TWO = ("3g.40gb", "3g.40gb")


@pytest.mark.parametrize(
    ("offered", "nvml"),
    [
        ({"gpu": 8}, machine(8)),
        ({"gpu": 32}, machine(8)),
        ({"shared": 32}, machine(8)),
        ({"gpu": 7}, machine(7)),
        ({"gpu": 16}, machine(8, *([TWO] * 8))),
        ({"gpu": 7, "half": 2}, machine(8, TWO)),
        ({"gpu": 7, "half": 8}, machine(8, TWO)),
        ({"half": 16}, machine(8, *([TWO] * 8))),
        ({}, machine(8)),
        ({"gpu": 3}, NvmlFacts(error=9)),
    ],
)
def test_equal_numbers_and_replicas_are_right(offered: dict[str, int], nvml: NvmlFacts) -> None:
    assert mismatch(node(**offered), nvml) == ""


@pytest.mark.parametrize(
    ("offered", "nvml", "words"),
    [
        ({"gpu": 7}, machine(8), "offers 7 nvidia.com/gpu; the machine has 8 GPUs"),
        ({"gpu": 8}, machine(7), "offers 8 nvidia.com/gpu; the machine has 7 GPUs"),
        ({"gpu": 31}, machine(8), "offers 31"),
        ({"gpu": 8}, machine(8, TWO), "7 GPUs and 2 MIG devices"),
        ({"gpu": 8}, machine(8, *([TWO] * 8)), "0 GPUs and 16 MIG devices"),
        ({"gpu": 8, "half": 2}, machine(8, TWO), "7 GPUs and 2 MIG devices"),
        ({"half": 14}, machine(8, *([TWO] * 8)), "offers 14 nvidia.com/mig-3g.40gb; the machine has 16"),
        ({"seventh": 7}, machine(1, TWO), "the machine has 0; the Node does not offer nvidia.com/mig-3g.40gb"),
        ({"gpu": 8, "seventh": 7}, machine(8), "offers 7 nvidia.com/mig-1g.10gb; the machine has 0"),
    ],
)  # fmt: skip
def test_a_remainder_is_named(offered: dict[str, int], nvml: NvmlFacts, words: str) -> None:
    assert words in mismatch(node(**offered), nvml)


@pytest.mark.parametrize(
    ("offered", "nvml", "words"),
    [
        ({"gpu": 4}, machine(4, *([TWO] * 4)), "4 of the machine's 4 GPUs are in MIG mode, and the Node offers 4 nvidia.com/gpu"),
        ({"gpu": 8}, machine(8, TWO), "1 of the machine's 8 GPUs"),
        ({"shared": 12}, machine(4, *([("7g.80gb",) * 7] * 4)), "offers 12"),
        ({"gpu": 4}, machine(4, *([()] * 4)), "4 of the machine's 4"),
        ({"gpu": 8}, machine(4, *([TWO] * 4)), ""),
        ({"gpu": 7, "half": 2}, machine(8, TWO), ""),
        ({"gpu": 8}, machine(8), ""),
        ({"gpu": 3}, machine(4, *([TWO] * 4)), ""),
    ],
)  # fmt: skip
def test_gpus_in_mig_mode_that_are_offered_whole_are_named(
    offered: dict[str, int], nvml: NvmlFacts, words: str
) -> None:
    assert words in whole_divided(node(**offered), nvml)
    assert bool(words) == bool(whole_divided(node(**offered), nvml))
