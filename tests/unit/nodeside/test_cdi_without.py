"""A CDI specification cut down to the GPUs that are in use, as the program on nodes does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.nodeside import cdi_without


def device(name: str, *nodes: str, hooks: tuple[str, ...] = ()) -> dict[str, Any]:
    edits: dict[str, Any] = {"deviceNodes": [{"path": f"/dev/{node}"} for node in nodes]}
    return {"name": name, "containerEdits": {**edits, **({"hooks": [*hooks]} if hooks else {})}}


def spec(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "nvidia.com/gpu", "devices": [*devices], "containerEdits": {"env": ["A=b"]}}


WHOLE = spec(
    device("0", "nvidia0", "dri/card0", hooks=("chmod", "link0")),
    device("GPU-a", "nvidia0", "dri/card0", hooks=("chmod", "link0")),
    device("1", "nvidia1", "dri/card1", hooks=("chmod", "link1")),
    device(
        "all", "nvidia0", "dri/card0", "nvidia1", "dri/card1", hooks=("chmod", "link0", "link1")
    ),
)


def test_all_names_of_the_gpu_go_and_all_keeps_what_the_others_have() -> None:
    assert cdi_without.cut(WHOLE, {"/dev/nvidia0"}) == spec(
        device("1", "nvidia1", "dri/card1", hooks=("chmod", "link1")),
        device("all", "nvidia1", "dri/card1", hooks=("chmod", "link1")),
    )


def test_mig_devices_go_with_their_gpu() -> None:
    parts = spec(
        device("0:0", "nvidia0", "nvidia-caps/nvidia-cap12"),
        device("1:0", "nvidia1", "nvidia-caps/nvidia-cap147"),
        device(
            "all", "nvidia0", "nvidia-caps/nvidia-cap12", "nvidia1", "nvidia-caps/nvidia-cap147"
        ),
    )
    left = cdi_without.cut(parts, {"/dev/nvidia1"})
    assert left == spec(
        device("0:0", "nvidia0", "nvidia-caps/nvidia-cap12"),
        device("all", "nvidia0", "nvidia-caps/nvidia-cap12"),
    )


def test_nothing_is_cut_for_nobody_and_nothing_is_left_of_all() -> None:
    assert cdi_without.cut(WHOLE, set()) == WHOLE
    assert cdi_without.cut(WHOLE, {"/dev/nvidia0", "/dev/nvidia1"})["devices"] == []


def test_gpus_are_known_by_uuid_or_address_until_their_end(tmp_path: Path) -> None:
    for minor, (address, uuid) in enumerate(
        (("0000:07:00.0", "GPU-a"), ("0000:0F:00.0", "GPU-??"))
    ):
        folder = tmp_path / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        text = f"Model: \t\t H100\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    entries = (Entry("GPU-a", "", "x", 20, 1, "me"), Entry("", "0000:0f:00.0", "x", 30, 1, "me"))
    found = [cdi_without.held_nodes(tmp_path, Quarantine(entries, now)) for now in (10, 20, 30)]
    assert found == [{"/dev/nvidia0", "/dev/nvidia1"}, {"/dev/nvidia1"}, set()]


DATA = Path(__file__).parents[2] / "data/nvidia"


@pytest.mark.parametrize("version", ["1.17.8", "1.18.2", "1.20.1"])
def test_nothing_of_a_gpu_is_left_in_what_the_real_nvidia_ctk_writes(version: str) -> None:
    whole = json.loads((DATA / f"cdi-8xh100-toolkit-{version}.json").read_text())
    names = [one["name"] for one in whole["devices"]]
    held = next(one for one in whole["devices"] if one["name"] == "3")
    (node,) = held["containerEdits"]["deviceNodes"]
    uuid = next(
        one["name"]
        for one in whole["devices"]
        if one["name"].startswith("GPU-") and one["containerEdits"]["deviceNodes"] == [node]
    )
    left = cdi_without.cut(whole, {node["path"]})
    assert {one["name"] for one in left["devices"]} == set(names) - {"3", uuid}
    assert f'"{node["path"]}"' not in json.dumps(left)
    assert uuid not in json.dumps(left)
    assert left["containerEdits"] == whole["containerEdits"]
