"""GPUDirect RDMA of network cards: through DMA-BUF, or through nvidia-peermem.

DMA-BUF needs the open kernel modules, Linux 5.12 or newer and GPUs since Turing, and nothing else on the node.
nvidia-peermem works with any driver, but needs NVIDIA's RDMA stack (MLNX_OFED, DOCA-OFED) and must be built
with its headers: the kernel's own stack lacks the functions it registers with. Some of Ubuntu's kernels have them: those
before 6.8, and linux-nvidia.

Surprising: nvidia-peermem is always built. Without OFED's headers it is a stub that fails to load with
"Invalid argument", and neither dpkg nor DKMS shows the difference. The symbols that the module file needs
(``modprobe --dump-modversions``) do, and their checksum identifies the OFED it was built with.

Sources:
    NVIDIA/cloud-native-docs, gpu-operator/gpu-operator-rdma.rst (requirements).
    NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem and conftest.sh
    (``ib_register_peer_memory_client`` is looked for when the module is compiled).
    NVIDIA/gpu-operator#2868, #2844; Mellanox/nv_peer_memory#63, #113.
    Launchpad bug 1923104 (Ubuntu's kernels get the interface); discourse.ubuntu.com, "NVIDIA GPUDirect over Infiniband
    Migration Paths" (5.15 and linux-nvidia keep it, 6.8 does not).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpustate.formats.numbers import parse_uint

DMA_BUF, PEERMEM = "dma-buf", "peermem"
#: The function nvidia-peermem registers with; OFED's ib_core has it, and that of some of Ubuntu's kernels.
SYMBOL = "ib_register_peer_memory_client"
#: First kernel with the DMA-BUF interface that network cards use.
KERNEL = (5, 12)
_BEFORE_TURING = ("kepler", "maxwell", "pascal", "volta")
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)")
_CHECKSUM = re.compile(r"0x[0-9a-fA-F]{1,16}")


def kernel_version(release: str) -> tuple[int, int]:
    """The first two numbers of a kernel release; (0, 0) if it has none."""
    match = _RELEASE.match(release)
    return (parse_uint(match[1]) or 0, parse_uint(match[2]) or 0) if match else (0, 0)


def why_no_dma_buf(
    *, driver: str | None, kernel: str, architectures: Iterable[str | None]
) -> str | None:
    """Why a node does not support DMA-BUF; ``None`` if it does.

    Args:
        driver: ``"580.65.06 open"``, version and kind of the loaded driver.
        kernel: release that runs.
        architectures: of its GPUs, in lower case; ``None`` for an unknown one, which is assumed to be new.
    """
    old = sorted({name for name in architectures if name in _BEFORE_TURING})
    if old:
        return f"GPUs of the {', '.join(old)} generation do not support it (Turing and later do)"
    if driver is None:
        return "no driver is loaded"
    if not driver.endswith(" open"):
        return f"the loaded driver {driver.partition(' ')[0]} is proprietary (only the open modules support it)"
    if kernel_version(kernel) < KERNEL:
        return f"Linux {kernel} does not support it (5.12 does)"
    return None


def checksum(text: str, symbol: str = SYMBOL) -> str | None:
    """The checksum of a symbol in Module.symvers or ``modprobe --dump-modversions``, without leading zeros."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1] == symbol and _CHECKSUM.fullmatch(words[0]):
            return f"0x{words[0][2:].lower().lstrip('0') or '0'}"
    return None


def ofed_version(text: str) -> str | None:
    """The version in the output of ``ofed_info -s``: ``24.10-1.1.4`` of ``OFED-internal-24.10-1.1.4:``."""
    match = re.search(r"([0-9]+\.[0-9]+(?:-[0-9][0-9.]*)?)", text)
    return match[1] if match else None
