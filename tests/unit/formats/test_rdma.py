"""The rule of GPUDirect RDMA, and what tells a good nvidia-peermem from a shell."""

from __future__ import annotations

import pytest

from gpustate.formats import rdma

RULE = [
    ("580.65.06 open", "6.1.0-28-amd64", ("hopper",), None),
    ("580.65.06 open", "5.12.0", ("turing",), None),
    ("580.65.06 open", "5.10.0-28-amd64", ("hopper",), "Linux 5.10"),
    ("580.65.06 open", "5.4", (None,), "Linux 5.4"),
    ("580.65.06 open", "6.1.0", (None,), None),
    ("535.230.02 proprietary", "6.1.0", ("ampere",), "proprietary"),
    (None, "6.1.0", ("ampere",), "no driver"),
    ("580.65.06 open", "6.1.0", ("hopper", "volta"), "volta generation"),
    ("580.65.06 open", "nonsense", ("hopper",), "nonsense"),
]


@pytest.mark.parametrize(("driver", "kernel", "architectures", "wanted"), RULE)
def test_dma_buf_is_possible_by_driver_kernel_and_gpu(
    driver: str | None, kernel: str, architectures: tuple[str | None, ...], wanted: str | None
) -> None:
    said = rdma.why_no_dma_buf(driver=driver, kernel=kernel, architectures=architectures)
    assert (said is None) if wanted is None else (wanted in (said or ""))


CHECKSUMS = [
    ("0x1a2b3c4d\tib_register_peer_memory_client\n", "0x1a2b3c4d"),
    ("0x000000000badf00d ib_register_peer_memory_client\t/x\tEXPORT_SYMBOL\n", "0xbadf00d"),
    ("0x1 module_layout\n0x2 ib_unregister_peer_memory_client\n", None),
    ("ib_register_peer_memory_client", None),
    ("zzz ib_register_peer_memory_client", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "wanted"), CHECKSUMS)
def test_a_checksum_is_read_alike_from_symvers_and_from_a_module(
    text: str, wanted: str | None
) -> None:
    assert rdma.checksum(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("MLNX_OFED_LINUX-5.8-3.0.7.0:", "5.8-3.0.7.0"),
        ("OFED-internal-24.10-1.1.4:", "24.10-1.1.4"),
        ("", None),
        ("\x00", None),
    ],
)
def test_ofed_says_its_version(text: str, wanted: str | None) -> None:
    assert rdma.ofed_version(text) == wanted
