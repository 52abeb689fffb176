"""The programs of a node, run below a made-up root."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from stublibraries import VERSION

from gpustate_lab.sim.native import PAYLOAD
from tests.unit.lab.sim.conftest import FakeRoot

KERNEL = "6.1.0-1-test"
NAMES = ("labnode", "modules", "kmodtool", "boot")


class Node(SimpleNamespace):
    """The four modules, imported anew for one root."""

    labnode: ModuleType
    modules: ModuleType
    kmodtool: ModuleType
    boot: ModuleType


@pytest.fixture
def node(node_root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("GPUSTATE_LAB_KERNEL", KERNEL)
    monkeypatch.syspath_prepend(str(PAYLOAD / "node"))
    for name in NAMES:
        sys.modules.pop(name, None)
    loaded = Node(**{name: importlib.import_module(name) for name in NAMES})
    monkeypatch.setattr(loaded.modules, "modinfo", modinfo)
    monkeypatch.setattr(loaded.boot, "modprobe", lambda *_: 1)
    node_root.describe("8xH100")
    yield loaded
    for name in NAMES:
        sys.modules.pop(name, None)


#: What modinfo would say about the file of each name.
FILES = {
    "nvidia": {"license": "Dual MIT/GPL", "version": VERSION},
    "nvidia-proprietary": {"name": "nvidia", "license": "NVIDIA", "version": VERSION},
    "nvidia-uvm": {"depends": "nvidia", "license": "Dual MIT/GPL", "version": VERSION},
    "nvidia-other-kernel": {"name": "nvidia", "license": "NVIDIA", "vermagic": "5.4.0 SMP"},
    "nouveau": {"license": "GPL and additional rights"},
}


def modinfo(path: str) -> dict[str, list[str]]:
    name = os.path.basename(path).removesuffix(".ko")
    fields = {"name": name.replace("-", "_"), "vermagic": f"{KERNEL} SMP preempt", **FILES[name]}
    return {field: [text] for field, text in fields.items()}


def read(root: FakeRoot, path: str) -> str:
    return (root.path / path).read_text()


def test_boot_builds_the_pci_tree(node: Any, node_root: FakeRoot) -> None:
    assert node.boot.main() == 0
    devices = node_root.path / "sys/bus/pci/devices"
    ids = sorted((path / "device").read_text().strip() for path in devices.iterdir())
    assert ids == ["0x22a3"] * 4 + ["0x2330"] * 8 + ["0x29c0"]
    gpu = devices / "0000:1b:00.0"
    assert (gpu / "class").read_text() == "0x030200\n"
    config = (gpu / "config").read_bytes()
    assert len(config) == 256
    assert config[:4] == bytes.fromhex("de103023")
    assert config[0x2C:0x30] == bytes.fromhex("de10c116")
    assert not (gpu / "driver").exists()


def test_boot_does_nothing_the_second_time(node: Any, node_root: FakeRoot) -> None:
    node.boot.main()
    node.modules.insert("nvidia.ko", [])
    assert node.boot.main() == 0
    assert "nvidia" in node.modules.loaded()


def test_loading_nvidia_shows_everywhere_and_unloading_takes_it_away(
    node: Any, node_root: FakeRoot
) -> None:
    node.boot.main()
    before = sorted(path for path in node_root.path.rglob("*") if path.name != "holders")
    node.modules.insert("nvidia.ko", [])
    node.modules.insert("nvidia-uvm.ko", [])
    assert f"Open Kernel Module for x86_64  {VERSION} " in read(
        node_root, "proc/driver/nvidia/version"
    )
    information = read(node_root, "proc/driver/nvidia/gpus/0000:43:00.0/information")
    assert "Device Minor: \t 1\n" in information
    run = "run/gpustate-lab"
    assert read(node_root, f"{run}/sys/module/nvidia/version") == f"{VERSION}\n"
    assert read(node_root, f"{run}/sys/module/nvidia/refcnt") == "1\n"
    assert os.listdir(node_root.path / run / "sys/module/nvidia/holders") == ["nvidia_uvm"]
    lines = read(node_root, f"{run}/proc/modules").splitlines()
    assert [line.split()[0] for line in lines] == ["nvidia_uvm", "nvidia"]
    assert "510 nvidia-uvm\n" in read(node_root, f"{run}/proc/devices")
    minors = read(node_root, "proc/driver/nvidia-caps/mig-minors").splitlines()
    assert minors[:3] == ["config 1", "monitor 2", "gpu0/gi0/access 3"]
    assert f"gpu1/gi2/ci0/access {3 + 135 + 2 * 9 + 1}" in minors
    assert node.labnode.bound_to("0000:1b:00.0") == "nvidia"
    names = {path.name for path in (node_root.path / "dev").iterdir()}
    assert {"nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-nvswitchctl"} <= names
    node.modules.remove("nvidia_uvm")
    node.modules.remove("nvidia")
    after = sorted(path for path in node_root.path.rglob("*") if path.name != "holders")
    assert [path for path in after if path not in before and path.name != "dev"] == []
    assert read(node_root, f"{run}/proc/modules") == ""


@pytest.mark.parametrize(
    ("path", "gpus", "faults", "message"),
    [
        ("nvidia-uvm.ko", "1xT4", (), "Unknown symbol in module"),
        ("nvidia-other-kernel.ko", "1xT4", (), "Exec format error"),
        ("nvidia-proprietary.ko", "8xB200", (), "No such device"),
        ("nvidia.ko", "1xT4", ("rm-init-failed",), "No such device"),
    ],
)
def test_what_the_kernel_does_not_take(
    node: Any, node_root: FakeRoot, path: str, gpus: str, faults: tuple[str, ...], message: str
) -> None:
    node_root.describe(gpus, faults)
    node.boot.main()
    with pytest.raises(node.modules.LoadError, match=message):
        node.modules.insert(path, [])
    assert node.modules.loaded() == {}
    assert not (node_root.path / "proc/driver/nvidia").exists()


def test_nvidia_finds_no_device_while_nouveau_has_them(node: Any, node_root: FakeRoot) -> None:
    node.boot.main()
    node.modules.insert("nouveau.ko", [])
    with pytest.raises(node.modules.LoadError, match="No such device"):
        node.modules.insert("nvidia.ko", [])
    node.modules.remove("nouveau")
    node.modules.insert("nvidia.ko", [])


def test_options_show_in_params_under_the_names_the_driver_gives_them(
    node: Any, node_root: FakeRoot
) -> None:
    node.boot.main()
    options = ["NVreg_RestrictProfilingToAdminUsers=0", "NVreg_DeviceFileMode=0660"]
    node.modules.insert(
        "nvidia.ko", [*options, "NVreg_CoherentGPUMemoryMode=driver", "NVreg_Nope=1"]
    )
    lines = read(node_root, "proc/driver/nvidia/params").splitlines()
    assert "RmProfilingAdminOnly: 0" in lines
    assert "DeviceFileMode: 432" in lines
    assert 'CoherentGPUMemoryMode: "driver"' in lines
    assert not any("Nope" in line for line in lines)
    assert (node_root.path / "dev/nvidia0").stat().st_mode & 0o777 == 0o660


def test_a_process_that_holds_a_gpu_keeps_the_module_until_it_ends(
    node: Any,
    node_root: FakeRoot,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(node.kmodtool, "kmod", lambda *_: SimpleNamespace(stdout=""))
    node.boot.main()
    node.modules.insert("nvidia.ko", [])
    other = subprocess.Popen(["sleep", "60"])
    try:
        node_root.write(f"run/gpustate-lab/holders/{other.pid}", "cuda 0000:1b:00.0 5\n")
        assert node.kmodtool.rmmod(["nvidia"]) == 1
        assert capsys.readouterr().err == "rmmod: ERROR: Module nvidia is in use\n"
        with pytest.raises(node.kmodtool.ToolError, match="FATAL: Module nvidia is in use"):
            node.kmodtool.modprobe(["-r", "nvidia"])
    finally:
        other.kill()
        other.wait()
    assert node.kmodtool.rmmod(["nvidia"]) == 0


def test_a_stuck_nouveau_cannot_be_unloaded(
    node: Any, node_root: FakeRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    node_root.describe("1xT4", ["nouveau-stuck"])
    node.boot.main()
    node.modules.insert("nouveau.ko", [])
    assert node.kmodtool.rmmod(["nouveau"]) == 1
    assert "Module nouveau is in use" in capsys.readouterr().err


def test_modprobe_loads_what_the_real_one_resolves_and_removes_what_nothing_needs(
    node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def kmod(*arguments: str) -> Any:
        asked.append(arguments)
        text = "insmod /m/nvidia.ko NVreg_EnableMSI=0\ninsmod /m/nvidia-uvm.ko \n"
        return SimpleNamespace(returncode=0, stdout=text, stderr="")

    monkeypatch.setattr(node.kmodtool, "kmod", kmod)
    node.boot.main()
    assert node.kmodtool.modprobe(["-n", "-v", "nvidia-uvm"]) == 0
    assert node.modules.loaded() == {}
    assert (
        capsys.readouterr().out
        == "insmod /m/nvidia.ko NVreg_EnableMSI=0\ninsmod /m/nvidia-uvm.ko\n"
    )
    assert node.kmodtool.modprobe(["-b", "nvidia-uvm", "x=1"]) == 0
    assert asked[-1] == ("modprobe", "-S", KERNEL, "-b", "--show-depends", "nvidia-uvm", "x=1")
    assert node.modules.loaded()["nvidia"]["options"] == ["NVreg_EnableMSI=0"]
    assert node.kmodtool.modprobe(["-r", "nvidia-uvm"]) == 0
    assert node.modules.loaded() == {}


def test_an_install_line_that_fails_is_told_as_modprobe_does(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(returncode=0, stdout="install /bin/false\n", stderr="")
    monkeypatch.setattr(node.kmodtool, "kmod", lambda *_: answer)
    node.boot.main()
    with pytest.raises(node.kmodtool.ToolError, match="could not insert 'nouveau'"):
        node.kmodtool.modprobe(["nouveau"])


def test_commands_of_modprobes_configuration_can_load_and_unload_modules(
    node: Any, node_root: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian: ``install nvidia modprobe -i nvidia-current $CMDLINE_OPTS``; the file's name is not the module's."""
    command = f"flock -w 5 {node.labnode.RUN}/lock echo $CMDLINE_OPTS $MODPROBE_MODULE"
    log = node_root.path / "log"

    def kmod(*arguments: str) -> Any:
        text = f"install {command} >>{log}\n"
        if arguments[1:] == ("-c",):
            text = f"remove nvidia {command} >>{log}\n"
        elif "-i" in arguments:
            text = "insmod /m/nvidia-proprietary.ko \n"
        return SimpleNamespace(returncode=0, stdout=text, stderr="")

    monkeypatch.setattr(node.kmodtool, "kmod", kmod)
    node.boot.main()
    assert node.kmodtool.modprobe(["nvidia", "x=1"]) == 0
    assert log.read_text() == "x=1 nvidia\n"
    for _ in range(2):
        assert node.kmodtool.modprobe(["-i", "nvidia-proprietary"]) == 0
    assert list(node.modules.loaded()) == ["nvidia"]
    assert node.kmodtool.modprobe(["-r", "nvidia"]) == 0
    assert log.read_text() == "x=1 nvidia\nnvidia\n"
    assert node.kmodtool.modprobe(["-r", "-i", "nvidia"]) == 0
    assert node.modules.loaded() == {}


def test_no_program_of_a_node_writes_outside_its_root(node: Any, node_root: FakeRoot) -> None:
    assert str(node.labnode.RUN).startswith(str(node_root.path))
    assert Path(node.labnode.PCI).is_relative_to(node_root.path)
