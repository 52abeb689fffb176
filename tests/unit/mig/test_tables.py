"""Tables: every GPU once, its numbers those that sources print, found by any of its names."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.errors import UsageError
from gpustate.formats.pci_gpus import PciGpu
from gpustate.mig import show, tables
from gpustate.mig.names import parse_device_name
from gpustate.mig.tables import MODELS, UNKNOWN


def test_no_device_id_and_no_name_belongs_to_two_gpus() -> None:
    ids = [device for model in MODELS for device in model.device_ids]
    names = [name for model in MODELS for name in model.names]
    assert len(set(ids)) == len(ids) == len(tables.by_device_id())
    assert len(set(names)) == len(names)
    assert not set(ids) & set(UNKNOWN)


@pytest.mark.parametrize("device", [*tables.by_device_id(), *UNKNOWN])
def test_the_facts_of_a_node_call_the_same_gpus_mig_capable(device: str) -> None:
    gpu = PciGpu("0000:1b:00.0", device, "030200", None)
    assert gpu.mig_capable
    if device in tables.by_device_id():
        assert gpu.architecture == tables.by_device_id()[device].architecture


def test_every_source_that_an_entry_names_is_in_the_list_of_sources() -> None:
    for model in MODELS:
        for mark in model.sources.split():
            assert f"[{mark}]" in (tables.__doc__ or "")


def test_every_profile_name_is_in_its_shortest_form() -> None:
    for model in MODELS:
        for name in [*model.geometry.names, *(a for p in model.geometry.profiles for a in p.also)]:
            assert str(parse_device_name(name)) == name


def rows(name: str) -> dict[str, tuple[int | None, int | None, int, tuple[int, ...], int]]:
    profiles = tables.find(name).geometry.profiles
    return {p.name: (p.smi_id, p.nvml_id, p.size, p.starts, p.most) for p in profiles}


def test_h100_is_as_nvidia_smi_lists_it() -> None:
    """``-lgip`` and ``-lgipp`` of an H100 80 GB; NVML's numbers from nvml.h."""
    assert rows("NVIDIA H100 80GB HBM3") == {
        "7g.80gb": (0, 4, 8, (0,), 1),
        "4g.40gb": (5, 3, 4, (0,), 1),
        "3g.40gb": (9, 2, 4, (0, 4), 2),
        "2g.20gb": (14, 1, 2, (0, 2, 4), 3),
        "1g.20gb": (15, 9, 2, (0, 2, 4, 6), 4),
        "1g.10gb": (19, 0, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        "1g.10gb+me": (20, 7, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    }


def test_rtx_pro_6000_is_as_nvidia_smi_lists_it() -> None:
    """``-lgip`` and ``-lgipp`` of a Server Edition."""
    made = rows("NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert {name: row[0] for name, row in made.items()} == {
        "4g.96gb": 0,
        "4g.96gb+gfx": 32,
        "2g.48gb": 5,
        "2g.48gb+gfx": 35,
        "2g.48gb+me.all": 64,
        "2g.48gb-me": 66,
        "1g.24gb": 14,
        "1g.24gb+me": 21,
        "1g.24gb+gfx": 47,
        "1g.24gb+me.all": 65,
        "1g.24gb-me": 67,
    }
    assert {row[2:4] for row in made.values()} == {(12, (0,)), (6, (0, 6)), (3, (0, 3, 6, 9))}


def test_a30_is_as_nvidia_smi_lists_it() -> None:
    assert rows("A30") == {
        "4g.24gb": (0, 3, 4, (0,), 1),
        "2g.12gb": (5, 1, 2, (0, 2), 2),
        "2g.12gb+me": (6, 8, 2, (0, 2), 1),
        "1g.6gb": (14, 0, 1, (0, 1, 2, 3), 4),
        "1g.6gb+me": (21, 7, 1, (0, 1, 2, 3), 1),
    }


def test_compute_instances_are_as_nvidia_smi_lists_them() -> None:
    """``-lcip`` of an A100: how many of each there can be."""
    geometry = tables.find("A100-SXM4-40GB").geometry
    listed = {
        p.slices: {one.slices: len(one.starts) for one in p.compute} for p in geometry.profiles
    }
    assert listed == {
        1: {1: 1},
        2: {1: 2, 2: 1},
        3: {1: 3, 2: 1, 3: 1},
        4: {1: 4, 2: 2, 4: 1},
        7: {1: 7, 2: 3, 3: 2, 4: 1, 7: 1},
    }


@pytest.mark.parametrize(
    ("model", "profile", "numbers", "default"),
    [
        ("A100-SXM4-80GB", "1g.20gb", [0], 0),
        ("H100 80GB HBM3", "1g.20gb", [0, 7], 7),
        ("H100 80GB HBM3", "1g.10gb", [0], 0),
        ("B200", "1g.45gb", [0, 7], 7),
    ],
)
def test_from_hopper_on_a_1g_with_double_memory_has_a_compute_instance_of_its_own(
    model: str, profile: str, numbers: list[int], default: int
) -> None:
    row = tables.find(model).geometry.get(profile)
    assert row is not None
    assert [compute.nvml_id for compute in row.compute] == numbers
    compute = row.compute_profile(1)
    assert compute is not None
    assert compute.nvml_id == default


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("a100 80gb pcie", "A100-SXM4-80GB"),
        ("h200", "H200"),
        ("2941", "GB200"),
        ("31C2", "GB300"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell Server Edition"),
        ("GH200 144G", "GH200 144G HBM3e"),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(text: str, name: str) -> None:
    assert tables.find(text).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "H100",
            "is ambiguous: 'H100 80GB HBM3', 'H100 NVL', 'H100 96GB' have different profiles; use the name",
        ),
        ("L40S", "is not a supported MIG-capable GPU"),
        ("B2000", "did you mean 'B200'"),
        ("", "is not a supported MIG-capable GPU"),
        ("RTX PRO 5000 Blackwell", "its placements are not published"),
        ("2339", "its profiles are not published"),
    ],
)
def test_a_gpu_that_is_not_found_is_said_so(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        tables.find(text)
    assert said in str(caught.value)


def test_every_gpu_can_be_shown() -> None:
    for model in MODELS:
        text = show.model_text(model)
        assert all(name in text for name in model.geometry.names)
        data: Any = show.model_data(model)
        assert data["profiles"][0]["name"] == model.geometry.names[0]
    assert "RTX PRO 5000" in show.models_text()
