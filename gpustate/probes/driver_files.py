"""The driver's files that are looked after one by one, whatever its packages' versions say."""

from __future__ import annotations

from gpustate.probes.package_files import PackageFiles, unit_paths

_FOLDERS = ("lib/*-linux-gnu", "lib/*-linux-gnu/nvidia/current", "lib64")
_LIBRARIES = tuple(
    f"/usr/{folder}/{name}.so.*"
    for folder in _FOLDERS
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
)
#: Of a driver's version; the container toolkit's library has one of its own.
_MORE_LIBRARIES = tuple(f"/usr/{folder}/lib*.so.[0-9][0-9][0-9].*" for folder in _FOLDERS)
#: Open modules load no GPU without it. What other drivers have lies in folders named after chips.
_FIRMWARE = ("/usr/lib/firmware/nvidia/[0-9]*/gsp*", "/lib/firmware/nvidia/[0-9]*/gsp*")
#: Names of NVIDIA's repositories for RHEL and for SUSE. From 610 on nvidia-driver-common has NVML.
_RPMS = (
    "nvidia-driver*",
    "nvidia-kmod-common",
    "nvidia-*-G0[0-9]",
    "kernel-firmware-nvidia-gspx-G0[0-9]",
)
#: Packages with the source of modules that are built on the node.
_SOURCES = ("nvidia-*dkms*", "nvidia-kernel-source*")
#: The files of the driver without which no program reaches a GPU, those without which no module is built or loaded,
#: and of what containers are given besides that it is there.
FILES = PackageFiles(
    "driver-files",
    (
        *("libcuda*", "libnv*", "lib*-nvidia*"),
        *("nvidia-smi", "nvidia-modprobe", "nvidia-persistenced", "nvidia-cuda-mps"),
        *("nvidia-driver-bin", "nvidia-utils*", "nvidia-compute-utils*"),
        *("firmware-nvidia-gsp", "nvidia-firmware*"),
        *_SOURCES,
        *_RPMS,
    ),
    (
        "/usr/src/nvidia*/*",
        *_LIBRARIES,
        *("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/nvidia-persistenced"),
        *unit_paths("nvidia-persistenced"),
    ),
    present_only=(
        *_MORE_LIBRARIES,
        *_FIRMWARE,
        *("/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-cuda-mps-*"),
    ),
)

__all__ = ["FILES"]
