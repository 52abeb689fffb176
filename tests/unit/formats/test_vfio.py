"""The program that binds devices, run by a real sh over a made sysfs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.formats import vfio

GPU, SOUND, OTHER, NIC = "0000:1b:00.0", "0000:1b:00.1", "0000:43:00.0", "0000:05:00.0"


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    rows = {
        GPU: ("0x10de", "0x2330", "0x030200", "nvidia"),
        SOUND: ("0x10de", "0x22ba", "0x040300", "snd_hda_intel"),
        OTHER: ("0x10de", "0x2330", "0x030200", ""),
        NIC: ("0x15b3", "0x1021", "0x020000", "mlx5_core"),
    }
    for address, (vendor, device, kind, driver) in rows.items():
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
        (folder / "class").write_text(kind + "\n")
        (folder / "modalias").write_text("pci:v000010DEd00002330sv0sd0bc03sc02i00\n")
        (folder / "driver_override").write_text("(null)\n")
        group = tmp_path / f"kernel/iommu_groups/{7 if address in (GPU, SOUND) else 8}"
        (group / "devices").mkdir(parents=True, exist_ok=True)
        (group / "devices" / address).symlink_to(folder)
        (folder / "iommu_group").symlink_to(group)
        if driver:
            (tmp_path / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(tmp_path / "bus/pci/drivers" / driver)
    return tmp_path


def looked(root: Path, *devices: str) -> list[list[str]]:
    done = subprocess.run(
        ["sh", "-c", vfio.query_program(devices)],
        env={"SYS": str(root), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        text=True,
        capture_output=True,
        check=True,
    )
    return [
        line.partition("=")[2].split("|")
        for line in done.stdout.splitlines()
        if line.startswith("device=")
    ]


CHOICES = [
    ((GPU,), [GPU, SOUND]),
    (("10de:2330",), [GPU, SOUND, OTHER]),
    (("gpus",), [GPU, SOUND, OTHER]),
    ((OTHER,), [OTHER]),
    ((OTHER, GPU, "gpus"), [GPU, SOUND, OTHER]),
    (("0000:99:00.0",), []),
    ((), []),
]


@pytest.mark.parametrize(("devices", "wanted"), CHOICES)
def test_a_device_is_named_by_address_by_kind_or_as_a_gpu(
    sys_root: Path, devices: tuple[str, ...], wanted: list[str]
) -> None:
    assert [row[0] for row in looked(sys_root, *devices)] == wanted


def test_each_device_says_its_driver_override_best_driver_and_group(sys_root: Path) -> None:
    first, second = looked(sys_root, GPU)
    assert first == [GPU, "nvidia", "(null)", "vfio-pci", "7", "0"]
    assert second[1] == "snd_hda_intel"


@pytest.mark.parametrize(
    "text",
    ["0000:1B:00.0", "1b:00.0", "10de", "gpu", "0000:1b:00.8", "'; id; '", "10de:2330\n", ""],
)
def test_what_names_no_device_is_refused(text: str) -> None:
    assert not vfio.is_device(text)


def test_the_programs_are_sh() -> None:
    for text in (vfio.boot_program(("gpus",)), vfio.release_program((GPU,))):
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
