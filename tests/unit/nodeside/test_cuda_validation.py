"""The CUDA proof against a stub libcuda that interprets the PTX. No real GPU takes part."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from gpustate.nodeside import cuda_validation

from .conftest import StubNode


def test_the_kernel_runs_on_every_gpu(stub_node: Callable[..., StubNode]) -> None:
    node = stub_node("8xL40S")
    results = cuda_validation.validate(node.uuids)
    assert [(result["uuid"], result["ok"], result["error"]) for result in results] == [
        (uuid, True, None) for uuid in node.uuids
    ]


def test_a_gpu_off_the_bus_fails_alone(stub_node: Callable[..., StubNode]) -> None:
    node = stub_node("3xL40S", "gpu-off-bus:1")
    results = cuda_validation.validate(node.uuids)
    assert [result["ok"] for result in results] == [True, False, True]
    assert results[1]["error"] == 100
    assert results[1]["text"] == "cuInit: CUDA_ERROR_NO_DEVICE"


@pytest.mark.parametrize(
    ("gpus", "fault", "loaded", "error"),
    [
        ("1xL40S", "cuda-802", "580.65.06", 802),
        ("8xH100", "fabric-stuck", "580.65.06", 802),
        ("1xL40S", None, "570.86.15", 803),
    ],
)
def test_the_error_is_cudas_own_number(
    stub_node: Callable[..., StubNode], gpus: str, fault: str | None, loaded: str, error: int
) -> None:
    node = stub_node(gpus, *([fault] if fault else []), loaded=loaded)
    assert cuda_validation.validate(node.uuids[:1])[0]["error"] == error


def test_no_libcuda_is_said_in_words(
    stub_node: Callable[..., StubNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stub_node("1xL40S")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    result = cuda_validation.validate(node.uuids)[0]
    assert (result["ok"], result["error"]) == (False, None)
    assert "libcuda.so.1 cannot be loaded" in result["text"]


def test_a_wrong_result_is_no_proof(
    stub_node: Callable[..., StubNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stub_node("1xL40S")
    right = cuda_validation.expected
    monkeypatch.setattr(
        cuda_validation, "expected", lambda nonce, data: b"x" + right(nonce, data)[1:]
    )
    result = cuda_validation.validate(node.uuids)[0]
    assert (result["ok"], result["text"]) == (False, "the kernel ran, but its result is wrong")


def test_a_device_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(uuid: str, nonce: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(
        cuda_validation, "_start", lambda *a: started.append(hang(*a)) or started[-1]
    )
    began = time.monotonic()
    results = cuda_validation.validate(["GPU-1"], timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert results == [
        {
            "uuid": "GPU-1",
            "ok": False,
            "elapsed_s": 0.3,
            "error": None,
            "text": "no answer within 0.3 s",
        }
    ]
    for child in started:
        child.communicate()


def test_what_the_host_expects_is_the_kernels_formula_and_depends_on_the_nonce() -> None:
    data = cuda_validation.make_input(7)
    words = struct.unpack_from("<4I", data)
    got = struct.unpack_from("<4I", cuda_validation.expected(7, data))
    for i, (word, result) in enumerate(zip(words, got, strict=True)):
        mixed = ((word * 1664525 + 7) % 2**32) ^ i
        assert result == (mixed + int((word & 0xFFFF) * 1.5)) % 2**32
    assert cuda_validation.make_input(7) != cuda_validation.make_input(8)
