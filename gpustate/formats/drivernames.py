"""Names that packages of the NVIDIA driver, or of the container toolkit, have in repositories.

Sources:
    packages.debian.org and packages.ubuntu.com, source packages nvidia-graphics-drivers*;
    NVIDIA driver installation guide r615, package lists; NVIDIA/libnvidia-container releases.
"""

from __future__ import annotations

from functools import cache

KNOWN_BRANCHES = (470, 535, 550, 555, 560, 565, 570, 575, 580, 590, 595, 610, 615, 620)
# For pins of a repository, which must not reach the toolkit's packages. Names in full, for apt holds every pattern against every
# package it knows: forty patterns cost each apt command five seconds, a thousand names nothing.
_DEBIAN = """
cuda-drivers cuda-drivers-fabricmanager firmware-nvidia-gsp libcuda1 libcudadebugger1 libegl-nvidia0
libgl1-nvidia-glvnd-glx libgles-nvidia1 libgles-nvidia2 libglx-nvidia0 libnvcuvid1 libnvidia-allocator1
libnvidia-api1 libnvidia-cfg1 libnvidia-eglcore libnvidia-encode1 libnvidia-fbc1 libnvidia-glcore
libnvidia-glvkspirv libnvidia-gpucomp libnvidia-ml1 libnvidia-ngx1 libnvidia-nscq libnvidia-nvvm4
libnvidia-nvvm704 libnvidia-opticalflow1 libnvidia-pkcs11-openssl3 libnvidia-present libnvidia-ptxjitcompiler1
libnvidia-rtcore libnvidia-sandboxutils libnvidia-tileiras libnvidia-vksc-core libnvoptix1 libnvsdm
libxnvctrl0 nvidia-alternative nvidia-cuda-mps nvidia-detect nvidia-driver nvidia-driver-bin
nvidia-driver-cuda nvidia-driver-full nvidia-driver-libs nvidia-egl-common nvidia-egl-icd nvidia-fabricmanager
nvidia-fabricmanager-dev nvidia-imex nvidia-kernel-dkms nvidia-kernel-open-dkms nvidia-kernel-source
nvidia-kernel-support nvidia-legacy-check nvidia-libopencl1 nvidia-modprobe nvidia-open
nvidia-open-kernel-dkms nvidia-open-kernel-source nvidia-open-kernel-support nvidia-opencl-common nvidia-opencl-icd nvidia-persistenced
nvidia-powerd nvidia-settings nvidia-smi nvidia-suspend-common nvidia-vdpau-driver nvidia-vulkan-common
nvidia-vulkan-icd nvidia-xconfig nvlsm xserver-xorg-video-nvidia
"""
#: With -BRANCH, too.
_DEBIAN_SUFFIXED = (
    "cuda-drivers nvidia-open nvidia-fabricmanager nvidia-imex libnvidia-nscq libnvsdm"
)
# {s}: nothing, -BRANCH or -BRANCH-server.
_UBUNTU = """
cuda-drivers{s} cuda-drivers-fabricmanager{s} libnvidia-cfg1{s} libnvidia-common{s} libnvidia-compute{s}
libnvidia-decode{s} libnvidia-encode{s} libnvidia-extra{s} libnvidia-fbc1{s} libnvidia-gl{s}
libnvidia-gpucomp{s} libnvidia-nscq{s} libnvsdm{s} nvidia-compute-utils{s} nvidia-dkms{s} nvidia-dkms{s}-open
nvidia-driver{s} nvidia-driver{s}-open nvidia-fabricmanager{s} nvidia-fabricmanager-dev{s} nvidia-firmware{s}
nvidia-headless{s} nvidia-headless{s}-open nvidia-headless-no-dkms{s} nvidia-headless-no-dkms{s}-open
nvidia-imex{s} nvidia-kernel-common{s} nvidia-kernel-source{s} nvidia-kernel-source{s}-open nvidia-open{s}
nvidia-utils{s} xserver-xorg-video-nvidia{s}
"""
_UBUNTU_PLAIN = (
    "libxnvctrl0 nvidia-modprobe nvidia-persistenced nvidia-settings nvidia-xconfig nvlsm"
)
#: The container toolkit's packages, which move in lockstep.
TOOLKIT_NAMES = (
    *("libnvidia-container-dev", "libnvidia-container-tools", "libnvidia-container1"),
    *("libnvidia-container1-dbg", "nvidia-container-runtime"),
    *("nvidia-container-runtime-hook", "nvidia-container-toolkit"),
    *("nvidia-container-toolkit-base", "nvidia-container-toolkit-operator-extensions"),
    "nvidia-docker2",
)


@cache
def pin_names(os_id: str) -> tuple[str, ...]:
    """Names of the driver's packages on a distribution, for the pins of its repository."""
    if os_id == "ubuntu":
        suffixes = ["", *(f"-{b}{kind}" for b in KNOWN_BRANCHES for kind in ("", "-server"))]
        names = [name.replace("{s}", suffix) for suffix in suffixes for name in _UBUNTU.split()]
        return (*names, *_UBUNTU_PLAIN.split())
    return (
        *_DEBIAN.split(),
        *(f"{name}-{branch}" for name in _DEBIAN_SUFFIXED.split() for branch in KNOWN_BRANCHES),
    )
