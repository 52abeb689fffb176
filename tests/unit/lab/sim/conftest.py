"""A made-up node root, and a compiler for all tests of the simulator."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from stublibraries import VERSION

from gpustate_lab.sim import hardware, models
from gpustate_lab.sim.native import Builder

RUN = "run/gpustate-lab"


@dataclass
class FakeRoot:
    """A node's file tree, as the stub libraries look at it."""

    path: Path

    def describe(self, gpus: str, faults: Iterable[str] = ()) -> None:
        hardware.write(self.path, "node1", models.parse_gpus(gpus), set(faults))

    def load(self, version: str = VERSION, *, uvm: bool = True) -> None:
        self.write(f"{RUN}/sys/module/nvidia/version", f"{version}\n")
        if uvm:
            (self.path / RUN / "sys/module/nvidia_uvm").mkdir(exist_ok=True)

    def unload(self) -> None:
        shutil.rmtree(self.path / RUN / "sys/module")

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class NoCompiler:
    """A builder of empty files."""

    def libraries(self, version: str, cuda: int) -> SimpleNamespace:
        return SimpleNamespace(nvml=b"", cuda=b"", smi=b"")

    def stub_library(self, *_: str) -> bytes:
        return b""

    def mps_client(self) -> bytes:
        return b""

    def module(self, source: Path, target: Path, *includes: Path) -> Path:
        target.touch()
        return target


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    if shutil.which("gcc") is None:
        pytest.skip("the lab's programs are built with gcc, which is not installed")
    return Builder(tmp_path_factory.mktemp("native"))


@pytest.fixture
def node_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRoot:
    root = FakeRoot(tmp_path / "root")
    for directory in ("holders", "state", "sys/module"):
        (root.path / RUN / directory).mkdir(parents=True)
    monkeypatch.setenv("GPUSTATE_LAB_ROOT", str(root.path))
    return root
