"""The lab's simulated driver in this process: its NVML by nvidia-ml-py, and the node's own program that reads it.

Nothing here is written for the tests but the steps' way into NVML: the library is the one that lab
nodes install, and layouts are read by the program that gpustate runs on nodes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest
from stublibraries import VERSION

from gpustate.formats import nvml_report
from gpustate.mig import live
from gpustate.mig.layout import Layout
from gpustate.mig.tables import Model
from gpustate.nodeside import nvml_facts
from gpustate_lab.sim import hardware, models
from gpustate_lab.sim.models import GpuModel
from gpustate_lab.sim.native import Libraries

RUN = "run/gpustate-lab"
IN_USE = 19


def described(model: Model) -> GpuModel:
    """A GPU of the tables as the lab would have it."""
    like = models.models()["A100" if model.architecture == "ampere" else "H100"]
    return replace(
        like,
        key=model.name.replace(" ", ""),
        name=f"NVIDIA {model.name}",
        device_id=model.device_ids[0],
        architecture=model.architecture,
        max_mig_devices=max(profile.most for profile in model.geometry.profiles),
        board=None,
    )


class Simulated:
    """A node's driver.

    Args:
        root: the node's file tree.
        libraries: the stubs.
    """

    def __init__(self, root: Path, libraries: Libraries) -> None:
        self.root = root
        self.libraries = libraries
        self.nvml: ModuleType = pynvml

    def describe(self, *gpus: GpuModel, faults: frozenset[str] = frozenset()) -> None:
        """Put GPUs on the node, with a driver loaded and nothing divided."""
        shutil.rmtree(self.root, ignore_errors=True)
        for folder in ("holders", "state", "sys/module/nvidia", "sys/module/nvidia_uvm"):
            (self.root / RUN / folder).mkdir(parents=True)
        (self.root / RUN / "sys/module/nvidia/version").write_text(VERSION + "\n")
        hardware.write(self.root, "node1", list(gpus), set(faults))

    def hold(self, *lines: str) -> None:
        """This process has parts of GPUs open: ``cuda PCI-ADDRESS BYTES INSTANCE COMPUTE``."""
        path = self.root / RUN / f"holders/{os.getpid()}"
        path.write_text("".join(f"{line}\n" for line in lines))

    def reboot(self) -> None:
        """What a reboot forgets."""
        shutil.rmtree(self.root / RUN / "state")
        (self.root / RUN / "state").mkdir()

    def report(self) -> nvml_report.NvmlFacts:
        """What the node's own program says."""
        findings: list[dict[str, Any]] = []
        nvml_facts._Asker(self.nvml, findings.append).run()
        gpus = [found["gpu"] for found in findings if "gpu" in found]
        return nvml_report.from_json({"source": "nvml", "gpus": gpus})

    def layout(self) -> Layout:
        """The layout as the node's own program reads it."""
        return live.layout(live.in_order(self.report()), (), ())

    def carry_out(self, index: int, step: Mapping[str, Any]) -> None:
        """Do one step of a plan's JSON; raises pynvml.NVMLError where the driver refuses."""
        nvml = self.nvml
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        match step["do"]:
            case "set-mode":
                waits = nvml.nvmlDeviceSetMigMode(gpu, int(step["enabled"]))
                assert waits in (0, IN_USE), waits
            case "reset":
                reset = ctypes.CDLL(str(self.libraries.nvml)).lab_reset_gpu
                assert reset(gpu) == 0
            case "create-gpu-instance":
                place = nvml.c_nvmlGpuInstancePlacement_t(step["start"], 0)
                nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    gpu, step["smi_id"], ctypes.byref(place)
                )
            case "destroy-gpu-instance":
                nvml.nvmlGpuInstanceDestroy(
                    nvml.nvmlDeviceGetGpuInstanceById(gpu, step["gpu_instance"])
                )
            case "create-compute-instance":
                instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, self._owner(index, step))
                place = nvml.c_nvmlComputeInstancePlacement_t(step["start"], 0)
                nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                    instance, step["nvml_id"], ctypes.byref(place)
                )
            case "destroy-compute-instance":
                instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, step["gpu_instance"])
                nvml.nvmlComputeInstanceDestroy(
                    nvml.nvmlGpuInstanceGetComputeInstanceById(instance, step["compute_instance"])
                )
            case other:
                raise AssertionError(other)

    def _owner(self, index: int, step: Mapping[str, Any]) -> int:
        if step["gpu_instance"] is not None:
            return int(step["gpu_instance"])
        there = self.report().gpus[index].mig_instances
        return next(one.id for one in there if one.start == step["at"])


@contextmanager
def driver(root: Path, libraries: Libraries) -> Iterator[Simulated]:
    """The simulated driver, found by nvidia-ml-py in this process for as long as the block lasts.

    Skips the test where this user may not change MIG.
    """
    if os.geteuid() != 0:
        pytest.skip("MIG is changed as root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSTATE_LAB_ROOT", str(root))
        patch.setattr(pynvml, "CDLL", lambda _name: ctypes.CDLL(str(libraries.nvml)))
        patch.setattr(pynvml, "nvmlLib", None)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        made = Simulated(root, libraries)
        made.describe(models.models()["H100"])
        made.nvml.nvmlInit()
        yield made
        made.nvml.nvmlShutdown()
        pynvml._nvmlGetFunctionPointer_cache.clear()
