"""Run a small CUDA kernel on devices of this node through the driver API, and verify its results.

    python3 -I -S cuda_validation.py one UUID NONCE      on one device; prints one JSON object
    import cuda_validation; cuda_validation.validate(uuids)      on several, each in a process of its own

libcuda is loaded with ctypes and compiles the kernel's PTX for each GPU, so a node needs no CUDA toolkit, and
one text works on every GPU since Maxwell. The input is derived from a new nonce and the results are compared
with those of the host, so neither an old result nor zeroed memory can pass.

Each device gets its own process, which sees only that device. A process that hangs is reported and abandoned.
CUDA offers a process only one MIG device, and no context outlives its process. The compilation cache is
disabled, so nothing is written.

Sources:
    CUDA driver API reference (cuInit to cuModuleLoadData); PTX ISA 6.0;
    CUDA C programming guide, CUDA_VISIBLE_DEVICES: takes UUIDs of GPUs and MIG devices.
"""

from __future__ import annotations

import array
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

THREADS = 256
#: More blocks than any GPU has multiprocessors, but few, since the node's Python computes every result.
BLOCKS = 512
ELEMENTS = THREADS * BLOCKS
POISON = 0xDEADBEEF
#: Errors of a device that others use: out of memory, and an exclusive mode.
REFUSED = (2, 46)
FACTOR = 1664525

#: out[i] = ((in[i] * FACTOR + nonce) ^ i) + trunc(1.5 * (in[i] & 0xffff)), modulo 2**32: integers,
#: single precision, and memory in both directions. All its floats are exact, so equality is fair.
PTX = """.version 6.0
.target sm_50
.address_size 64

.visible .entry gpustate_proof(
	.param .u64 gpustate_proof_param_0,
	.param .u64 gpustate_proof_param_1,
	.param .u32 gpustate_proof_param_2,
	.param .u32 gpustate_proof_param_3
)
{
	.reg .pred %p<2>;
	.reg .f32 %f<4>;
	.reg .b32 %r<14>;
	.reg .b64 %rd<8>;

	ld.param.u64 %rd1, [gpustate_proof_param_0];
	ld.param.u64 %rd2, [gpustate_proof_param_1];
	ld.param.u32 %r1, [gpustate_proof_param_2];
	ld.param.u32 %r2, [gpustate_proof_param_3];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.s32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %p1, %r6, %r1;
	@%p1 bra DONE;
	cvta.to.global.u64 %rd3, %rd1;
	cvta.to.global.u64 %rd4, %rd2;
	mul.wide.u32 %rd5, %r6, 4;
	add.s64 %rd6, %rd3, %rd5;
	add.s64 %rd7, %rd4, %rd5;
	ld.global.u32 %r7, [%rd6];
	mul.lo.s32 %r8, %r7, 1664525;
	add.s32 %r9, %r8, %r2;
	xor.b32 %r10, %r9, %r6;
	and.b32 %r11, %r7, 65535;
	cvt.rn.f32.u32 %f1, %r11;
	mov.f32 %f2, 0f3F000000;
	fma.rn.f32 %f3, %f1, %f2, %f1;
	cvt.rzi.u32.f32 %r12, %f3;
	add.s32 %r13, %r10, %r12;
	st.global.u32 [%rd7], %r13;
DONE:
	ret;
}
"""


def make_input(nonce: int) -> bytes:
    """Input that depends on the nonce."""
    return hashlib.shake_128(b"gpustate" + nonce.to_bytes(4, "little")).digest(4 * ELEMENTS)


def expected(nonce: int, data: bytes) -> bytes:
    """The expected result, computed on the host."""
    words = array.array("I", data)
    return array.array(
        "I",
        [
            (((word * FACTOR + nonce) & 0xFFFFFFFF ^ i) + (word & 0xFFFF) + ((word & 0xFFFF) >> 1))
            & 0xFFFFFFFF
            for i, word in enumerate(words)
        ],
    ).tobytes()


class CudaError(Exception):
    """A call of the driver API failed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Cuda:
    """libcuda by ctypes; every call raises :class:`CudaError` unless it succeeds."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(-1, f"libcuda.so.1 cannot be loaded: {error}") from None

    def name(self, code: int) -> str:
        text = ctypes.c_char_p()
        function = getattr(self.library, "cuGetErrorName", None)
        if function is None or function(code, ctypes.byref(text)) != 0 or text.value is None:
            return "CUDA error"
        return text.value.decode("ascii", "replace")

    def call(self, function: str, *arguments: Any) -> None:
        entry = getattr(self.library, function, None)
        if entry is None:
            raise CudaError(-1, f"libcuda.so.1 has no {function}")
        code = entry(*arguments)
        if code != 0:
            raise CudaError(code, f"{function}: {self.name(code)}")

    def device(self, uuid: str) -> ctypes.c_int:
        """The device with this UUID; error 100 if CUDA does not list it."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            device = ctypes.c_int()
            raw = (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGet", ctypes.byref(device), ordinal)
            exact = hasattr(
                self.library, "cuDeviceGetUuid_v2"
            )  # older ones do not support MIG devices
            self.call("cuDeviceGetUuid_v2" if exact else "cuDeviceGetUuid", raw, device)
            if bytes(raw).hex() == uuid.partition("-")[2].replace("-", "").lower():
                return device
        raise CudaError(100, f"CUDA lists {count.value} devices, but not this one")


def _round_trip(cuda: Cuda, context_free: Any, nonce: int, data: bytes) -> bytes:
    """Copy in, run the kernel, copy out."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX.encode("ascii")))
    context_free.append(("cuModuleUnload", module))
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"gpustate_proof")
    size = ctypes.c_size_t(4 * ELEMENTS)
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    for pointer in (source, target):
        cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), size)
        context_free.append(("cuMemFree_v2", pointer))
    cuda.call("cuMemcpyHtoD_v2", source, ctypes.c_char_p(data), size)
    cuda.call("cuMemsetD32_v2", target, ctypes.c_uint(POISON), ctypes.c_size_t(ELEMENTS))
    values = (source, target, ctypes.c_uint32(ELEMENTS), ctypes.c_uint32(nonce))
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    cuda.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
    cuda.call("cuCtxSynchronize")
    result = ctypes.create_string_buffer(4 * ELEMENTS)
    cuda.call("cuMemcpyDtoH_v2", result, target, size)
    return result.raw


def run_one(uuid: str, nonce: int) -> dict[str, Any]:
    """Run the kernel on one device, in this process; the caller compares the result's hash."""
    began = time.monotonic()
    report: dict[str, Any] = {"uuid": uuid, "error": None, "text": "", "result": ""}
    free: list[tuple[str, Any]] = []
    try:
        cuda = Cuda()
        cuda.call("cuInit", 0)
        device = cuda.device(uuid)
        context = ctypes.c_void_p()
        cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        free.append(("cuCtxDestroy_v2", context))
        try:
            report["result"] = hashlib.sha256(
                _round_trip(cuda, free, nonce, make_input(nonce))
            ).hexdigest()
        finally:
            # After a failed kernel every call in its context fails: continue freeing.
            for function, handle in reversed(free):
                cuda.library[function](handle)
    except CudaError as error:
        report.update(error=error.code, text=error.text)
        if error.code in REFUSED:
            report["users"] = users(uuid)
    report["elapsed_s"] = round(time.monotonic() - began, 3)
    return report


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def users(uuid: str) -> list[str]:
    """Processes that use a device, by NVML: PID (NAME); empty if there are none, or NVML is older than 510."""
    names: dict[int, str] = {}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(
            ctypes.c_char_p(uuid.encode("ascii")), ctypes.byref(handle)
        ):
            return []
        for kind in ("Compute", "Graphics", "MPSCompute"):
            count, rows = ctypes.c_uint(256), (_Process * 256)()
            query = nvml[f"nvmlDeviceGet{kind}RunningProcesses_v3"]
            if query(handle, ctypes.byref(count), rows) == 0:
                names |= dict.fromkeys((row.pid for row in rows[: count.value]), "")
    except (OSError, AttributeError):
        pass
    names.pop(os.getpid(), None)
    for pid in names:
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                names[pid] = file.read().strip()
        except OSError:
            continue
    return [f"{pid} ({name})" if name else str(pid) for pid, name in sorted(names.items())]


#: This module may be in a zip file.
_CHILD = """import sys
sys.path.insert(0, sys.argv[1])
from gpustate.nodeside import cuda_validation
cuda_validation.main(*sys.argv[2:])
"""


def _start(uuid: str, nonce: int) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=uuid, CUDA_CACHE_DISABLE="1")
    environment.pop("LD_PRELOAD", None)
    root = os.path.abspath(__file__).rpartition("/gpustate/")[0] or "/"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _CHILD, root, uuid, str(nonce)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _judge(uuid: str, child: subprocess.Popen[bytes], digest: str) -> dict[str, Any]:
    """The result of a child that has ended."""
    out, err = child.communicate()
    try:
        report = json.loads(out)
    except ValueError:
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        return _failure(uuid, f"the kernel's process ended with {child.returncode}: {last[0]}")
    if report["error"] is not None:
        code = report["error"] if report["error"] > 0 else None
        failure = _failure(uuid, report["text"], code, report["elapsed_s"])
        return {**failure, "users": report.get("users", [])}
    if report["result"] != digest:
        return _failure(uuid, "the kernel ran, but its result is wrong", None, report["elapsed_s"])
    return {"uuid": uuid, "ok": True, "elapsed_s": report["elapsed_s"], "error": None, "text": ""}


def _failure(
    uuid: str, text: str, error: int | None = None, elapsed_s: float = 0.0
) -> dict[str, Any]:
    return {"uuid": uuid, "ok": False, "elapsed_s": elapsed_s, "error": error, "text": text}


def validate(
    uuids: Sequence[str], timeout_s: float = 60.0, at_once: int = 8
) -> list[dict[str, Any]]:
    """Run the kernel on every device, some at a time; return one result each, in the same order."""
    nonce = int.from_bytes(os.urandom(4), "little")
    waiting = list(uuids)
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    results: dict[str, dict[str, Any]] = {}
    digest = ""
    while waiting or running:
        while waiting and len(running) < at_once:
            uuid = waiting.pop(0)
            running[uuid] = (_start(uuid, nonce), time.monotonic() + timeout_s)
        # The children start CUDA meanwhile.
        digest = digest or hashlib.sha256(expected(nonce, make_input(nonce))).hexdigest()
        for uuid, (child, deadline) in list(running.items()):
            if child.poll() is not None:
                results[uuid] = _judge(uuid, child, digest)
            elif time.monotonic() > deadline:
                child.kill()  # without waiting: stuck in the driver, it does not die
                results[uuid] = _failure(uuid, f"no answer within {timeout_s:g} s", None, timeout_s)
            else:
                continue
            del running[uuid]
        if running:
            time.sleep(0.02)
    return [results[uuid] for uuid in uuids]


def main(uuid: str, nonce: str) -> None:
    """Run the kernel on one device and print the result."""
    sys.stdout.write(json.dumps(run_one(uuid, int(nonce))) + "\n")
