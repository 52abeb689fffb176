"""The driver's files that every release of nvidia-ctk puts into a CDI specification.

Sources: NVIDIA/nvidia-container-toolkit, pkg/nvcdi: driver-nvml.go (libraries of the driver's version, ``gsp*.bin``,
programs); later releases list more.
"""

from __future__ import annotations

from gpustate import shell

#: Prints ``there=PATH`` of each that is there, of the version that is loaded, libraries of 64 bits. Builtins only.
SCRIPT = shell.load("cdi_driver_files", "gpustate.probes")

__all__ = ["SCRIPT"]
