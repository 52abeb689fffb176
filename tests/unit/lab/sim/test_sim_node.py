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


def test_boot_does_nothing_the_second_time(node: Any, node_root: FakeRoot) -> None:
    node.boot.main()
    node.modules.insert("nvidia.ko", [])
    assert node.boot.main() == 0
    assert "nvidia" in node.modules.loaded()


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


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ([], set()),
        (["-c=0", "-c=3"], {"nvidia0", "nvidia3"}),
        (["-c=255", "-m"], {"nvidiactl", "nvidia-modeset"}),
        (["-u", "-c=0"], {"nvidia-uvm", "nvidia-uvm-tools"}),
        (["-u", "-c=3"], {"nvidia-uvm", "nvidia-uvm-tools"}),
    ],
)
def test_nvidia_modprobe_makes_the_nodes_that_are_named_and_none_of_a_gpu_with_u(
    options: list[str], made: set[str], node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PAYLOAD / "driver"))
    tool = importlib.import_module("nvidia_modprobe")
    monkeypatch.setattr(tool, "load", lambda _: True)
    monkeypatch.setattr(sys, "argv", ["nvidia-modprobe", *options])
    try:
        assert tool.main() == 0
        assert {path.name for path in node.labnode.at("/dev").glob("nvidia*")} == made
    finally:
        sys.modules.pop("nvidia_modprobe")
