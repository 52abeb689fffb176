"""The driver's files and control devices that every release of nvidia-ctk puts into a CDI specification.

Sources: NVIDIA/nvidia-container-toolkit, pkg/nvcdi: driver-nvml.go (libraries of the driver's version, ``gsp*.bin``,
programs), common-nvml.go (control devices); later releases list more. NVIDIA/nvidia-container-toolkit#1979, #1982: a
specification written before the modules nvidia-uvm and nvidia-modeset were loaded.
"""

from __future__ import annotations

from gpustate import shell

#: Prints ``there=PATH`` of each that is there, of the version that is loaded, libraries of 64 bits. Builtins only.
SCRIPT = shell.load("cdi_driver_files", "gpustate.probes")

__all__ = ["SCRIPT"]
