"""A folder that looks like a node to the stub NVML and CUDA libraries. All GPUs here are simulated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stublibraries import VERSION

from gpustate_lab.sim import hardware, models, native


@dataclass(frozen=True)
class StubNode:
    """The folder, and the environment in which programs take it for the node."""

    root: Path
    environment: dict[str, str]
    gpus: list[dict[str, Any]]

    @property
    def uuids(self) -> list[str]:
        return [str(gpu["uuid"]) for gpu in self.gpus]

    def unload(self) -> None:
        """As after rmmod nvidia."""
        shutil.rmtree(self.root / "run/gpustate-lab/sys/module/nvidia")


@pytest.fixture
def stub_node(
    libraries: native.Libraries, tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., StubNode]:
    def make(gpus: str = "2xL40S", *faults: str, loaded: str = VERSION) -> StubNode:
        root = short_path / "root"  # a daemon's socket lies in it
        hardware.write(root, "gpu1", models.parse_gpus(gpus), set(faults))
        for module in ("nvidia", "nvidia_uvm"):
            folder = root / "run/gpustate-lab/sys/module" / module
            folder.mkdir(parents=True)
            (folder / "version").write_text(loaded + "\n")
        (root / "run/gpustate-lab/holders").mkdir()
        described = json.loads((root / hardware.HARDWARE_PATH).read_text())["gpus"]
        (root / "dev").mkdir()
        (root / "dev/nvidia-uvm").touch()
        for name in ("ctl", "-uvm", *(str(gpu["minor"]) for gpu in described)):
            (root / f"dev/nvidia{name}").touch()
        folder = tmp_path / "lib"
        folder.mkdir()
        for file, name in ((libraries.nvml, "libnvidia-ml.so.1"), (libraries.cuda, "libcuda.so.1")):
            shutil.copy(file, folder)
            (folder / name).symlink_to(file.name)
        environment = dict(
            os.environ, GPUSTATE_LAB_ROOT=str(root), LD_LIBRARY_PATH=str(folder), LC_ALL="C"
        )
        for name in ("GPUSTATE_LAB_ROOT", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(name, environment[name])
        return StubNode(root, environment, described)

    return make
