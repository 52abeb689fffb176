"""The lab's stub libraries of NVML and CUDA, compiled once for all processes of a run."""

from __future__ import annotations

import os
import shutil

import pytest

from gpustate_lab.paths import locked
from gpustate_lab.sim.native import Builder, Libraries

#: Version of the driver that the libraries are of.
VERSION = "580.65.06"
SONAME = "libnvidia-ml.so.1"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The libraries and ``nvidia-smi``, with a link beside them under which programs look for NVML."""
    if shutil.which("gcc") is None:
        pytest.skip("the stub libraries are built with gcc, which is not installed")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with locked(folder / "stub-libraries.lock", wait_s=300, what="the stub libraries"):
        stubs = Builder(folder / "stub-libraries").libraries(VERSION, 13000)
        link = stubs.nvml.with_name(SONAME)
        if not link.is_symlink():
            link.symlink_to(stubs.nvml.name)
    return stubs
