"""The stub CUDA library: what it refuses, and that it truly computes."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpustate_lab.sim.native import PAYLOAD, Libraries
from tests.unit.lab.sim.conftest import FakeRoot

HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"


class Cuda:
    """The driver API of one library, for kernels of the form ``k(out, in, n)``."""

    def __init__(self, libraries: Libraries) -> None:
        self.library = ctypes.CDLL(str(libraries.cuda))
        self.context = ctypes.c_void_p()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def open(self, device: int = 0) -> None:
        assert self.cuInit(0) == 0
        assert self.cuCtxCreate_v2(ctypes.byref(self.context), 0, device) == 0

    def close(self) -> None:
        assert self.cuCtxDestroy_v2(self.context) == 0

    def load(self, text: str) -> tuple[int, ctypes.c_void_p]:
        module = ctypes.c_void_p()
        return self.cuModuleLoadData(ctypes.byref(module), text.encode()), module

    def run(
        self, text: str, values: list[int], *, threads: int = 64, n: int | None = None
    ) -> list[int]:
        """Run entry ``k`` over 32-bit words and return as many."""
        code, module = self.load(text)
        assert code == 0
        kernel, out, into = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        assert self.cuModuleGetFunction(ctypes.byref(kernel), module, b"k") == 0
        size = ctypes.c_size_t(4 * len(values))
        for memory in (out, into):
            assert self.cuMemAlloc_v2(ctypes.byref(memory), size) == 0
        words = (ctypes.c_uint32 * len(values))(*values)
        assert self.cuMemcpyHtoD_v2(into, words, size) == 0
        count = ctypes.c_uint32(len(values) if n is None else n)
        items = (out, into, count)
        arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(item) for item in items))
        blocks = -(-len(values) // threads)
        assert (
            self.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, None, arguments, None) == 0
        )
        self.waited = self.cuCtxSynchronize()
        if self.waited == 0:
            assert self.cuMemcpyDtoH_v2(words, out, size) == 0
            for memory in (out, into):
                assert self.cuMemFree_v2(memory) == 0
            assert self.cuModuleUnload(module) == 0
        return list(words)


def kernel(body: str, registers: str = "") -> str:
    """An entry that leaves lanes past n alone; ``body`` turns %a into %b."""
    return f"""{HEADER}
    .visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n) {{
        .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b32 %a, %b; .reg .b64 %d<8>; .reg .f32 %f<4>; {registers}
        ld.param.u64 %d0, [out]; ld.param.u64 %d1, [in]; ld.param.u32 %r0, [n];
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
        mad.lo.s32 %r4, %r1, %r2, %r3;
        setp.ge.u32 %p0, %r4, %r0;
        @%p0 bra END;
        cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;
        mul.wide.u32 %d2, %r4, 4; add.s64 %d3, %d1, %d2; add.s64 %d4, %d0, %d2;
        ld.global.u32 %a, [%d3];
        {body}
        st.global.u32 [%d4], %b;
        END: ret; }}"""


@pytest.fixture
def cuda(libraries: Libraries, node_root: FakeRoot) -> Cuda:
    node_root.describe("2xT4")
    node_root.load()
    return Cuda(libraries)


def test_a_kernel_is_computed_and_a_wrong_one_gives_a_wrong_answer(cuda: Cuda) -> None:
    cuda.open()
    values = list(range(200))
    right = kernel("mul.lo.u32 %r5, %a, 1664525; add.u32 %r5, %r5, 7; xor.b32 %b, %r5, %r4;")
    wanted = [((value * 1664525 + 7) & 0xFFFFFFFF) ^ index for index, value in enumerate(values)]
    assert cuda.run(right, values) == wanted
    assert cuda.run(right.replace("1664525", "1664526"), values) != wanted
    cuda.close()


def test_lanes_past_the_end_are_left_alone(cuda: Cuda) -> None:
    cuda.open()
    found = cuda.run(kernel("mov.b32 %b, 1;"), [0] * 100, n=97)
    assert found[:97] == [1] * 97
    assert found[97:] == [0xA5A5A5A5] * 3  # as the memory was: fresh, and not zero
    cuda.close()


def test_a_loop_that_ends_at_another_time_in_each_lane(cuda: Cuda) -> None:
    cuda.open()
    body = """
        mov.u32 %b, 0; mov.u32 %r5, 0;
        LOOP: setp.ge.u32 %p1, %r5, %a;
        @%p1 bra DONE;
        add.u32 %b, %b, %r5; add.u32 %r5, %r5, 1;
        bra LOOP;
        DONE:"""
    values = [(index * 7) % 23 for index in range(130)]
    assert cuda.run(kernel(body), values) == [sum(range(value)) for value in values]
    cuda.close()


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: signed(a) * signed(b) >> 32,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "min.s32": lambda a, b: min(signed(a), signed(b)),
    "max.u32": lambda a, b: max(a, b),
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: signed(a) >> min(b, 31),
    "div.u32": lambda a, b: a // b if b else 0xFFFFFFFF,
    "rem.u32": lambda a, b: a % b if b else a,
}
words = st.integers(0, 0xFFFFFFFF) | st.sampled_from([0, 1, 31, 32, 0x7FFFFFFF, 0x80000000])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operation=st.sampled_from(sorted(OPERATIONS)), left=words, right=words)
def test_integer_instructions_agree_with_arithmetic(
    cuda: Cuda, operation: str, left: int, right: int
) -> None:
    cuda.open()
    text = kernel(f"mov.u32 %r5, {right}; {operation} %b, %a, %r5;")
    assert cuda.run(text, [left], threads=1) == [OPERATIONS[operation](left, right) & 0xFFFFFFFF]
    cuda.close()


def test_floats_are_single_precision(cuda: Cuda) -> None:
    cuda.open()
    body = "cvt.rn.f32.u32 %f0, %a; fma.rn.f32 %f1, %f0, 0f3DCCCCCD, %f0; mov.b32 %b, %f1;"
    single = struct.unpack(
        "<I", struct.pack("<f", 3 * struct.unpack("<f", bytes.fromhex("cdcccc3d"))[0] + 3)
    )
    assert cuda.run(kernel(body), [3]) == [single[0]]
    body = "cvt.rn.f32.s32 %f0, %a; neg.f32 %f0, %f0; cvt.rzi.u32.f32 %b, %f0;"
    assert cuda.run(kernel(body), [0xFFFFFFFD, 5]) == [3, 0]  # below zero becomes zero
    cuda.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("mov.b32 %b, 1;", "brev.b32 %b, %a;"), 218),
        (("mov.b32 %b, 1;", "bar.sync 0;"), 218),
        (("mov.b32 %b, 1;", "mov.b32 %undeclared, 1;"), 218),
        (("mov.b32 %b, 1;", "bra NOWHERE;"), 218),
        (("mov.b32 %b, 1;", "mul.u32 %b, %a, 2;"), 218),
        ((".entry", ".func"), 218),
        ((".version 7.0", ""), 218),
        ((".version 7.0", ".version 9.9"), 222),
        (("sm_70", "sm_90"), 209),
    ],
)
def test_what_the_interpreter_does_not_know_is_refused(
    cuda: Cuda, change: tuple[str, str], code: int
) -> None:
    cuda.open()
    text = kernel("mov.b32 %b, 1;")
    assert cuda.load(text)[0] == 0
    assert change[0] in text
    assert cuda.load(text.replace(*change))[0] == code
    cuda.close()


def test_a_write_past_the_memory_is_an_illegal_address_that_stays(cuda: Cuda) -> None:
    cuda.open()
    cuda.run(kernel("add.s64 %d4, %d4, 4096; mov.b32 %b, 1;"), [0] * 32)
    assert cuda.waited == 700
    assert cuda.cuCtxSynchronize() == 700
    name = ctypes.c_char_p()
    assert cuda.cuGetErrorName(700, ctypes.byref(name)) == 0
    assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    cuda.close()
    cuda.open()  # another context is not touched by it
    assert cuda.run(kernel("mov.b32 %b, 1;"), [0] * 32) == [1] * 32
    cuda.close()


@pytest.mark.parametrize(
    ("gpus", "faults", "loaded", "uvm", "code"),
    [
        ("1xT4", (), "580.65.06", True, 0),
        ("1xT4", (), None, False, 100),
        ("1xT4", (), "570.211.01", True, 803),
        ("1xT4", (), "580.65.06", False, 999),
        ("1xT4", ("cuda-802",), "580.65.06", True, 802),
        ("8xH100", (), "580.65.06", True, 802),  # no fabric manager
        ("8xL40S", (), "580.65.06", True, 0),
        ("1xT4", ("gpu-off-bus:0",), "580.65.06", True, 100),
    ],
)
def test_what_keeps_cuda_from_starting(
    libraries: Libraries,
    node_root: FakeRoot,
    gpus: str,
    faults: tuple[str, ...],
    loaded: str | None,
    uvm: bool,
    code: int,
) -> None:
    node_root.describe(gpus, faults)
    if loaded is not None:
        node_root.load(loaded, uvm=uvm)
    assert ctypes.CDLL(str(libraries.cuda)).cuInit(0) == code


def test_visible_devices_are_chosen_by_index_or_uuid(
    cuda: Cuda, node_root: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, uuid = ctypes.c_int(), ctypes.create_string_buffer(16)
    node_root.describe("3xT4", ["gpu-off-bus:0"])
    for wanted, observed in (("1,2", 2), ("2,9,1", 1), ("", None), ("0", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
        assert cuda.cuInit(0) == (0 if observed else 100)
        if observed:
            assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
            assert count.value == observed
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetUuid_v2(uuid, 1) == 0
    text = uuid.raw.hex()
    name = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert count.value == 1


HOLD = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 1) == 0
print(ctypes.CDLL(None).getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace is made as root")
def test_a_process_in_a_container_is_named_by_its_number_outside_until_it_is_killed(
    libraries: Libraries, node_root: FakeRoot
) -> None:
    node_root.describe("2xT4")
    node_root.load()
    node_root.write("run/gpustate-lab/pid-namespace", os.readlink("/proc/self/ns/pid") + "\n")
    query = "import ctypes, sys; nvml = ctypes.CDLL(sys.argv[1]); nvml.nvmlInit_v2()\n" + (
        "h, n, p = ctypes.c_void_p(), ctypes.c_uint(4), (ctypes.c_uint64 * 12)()\n"
        "nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(h))\n"
        "nvml.nvmlDeviceGetComputeRunningProcesses_v3(h, ctypes.byref(n), p)\n"
        "print(n.value, p[0] & 0xFFFFFFFF)"
    )

    def processes() -> list[int]:
        argv = [sys.executable, "-c", query, str(libraries.nvml)]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return [int(word) for word in text.split()]

    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*container, sys.executable, "-c", HOLD, str(libraries.cuda)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = processes()
        # What the modules' use counts are made of agrees.
        script = "import labnode; print(labnode.holders())"
        asked = subprocess.run(
            [sys.executable, "-c", script],
            cwd=PAYLOAD / "node",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        process.kill()
    assert children == [str(found[1])]
    assert found[0] == 1
    assert asked == f"[({found[1]}, 'cuda')]\n"
    assert processes()[0] == 0
    assert list((node_root.path / "run/gpustate-lab/holders").iterdir()) != [], "killed"


def test_a_context_shows_as_a_process_until_it_ends(cuda: Cuda, node_root: FakeRoot) -> None:
    holders = node_root.path / "run/gpustate-lab/holders"
    cuda.open(1)
    assert (holders / str(os.getpid())).read_text().startswith("cuda 0000:43:00.0 ")
    cuda.close()
    assert not list(holders.iterdir())


def test_cuda_needs_the_device_node_of_nvidia_uvm(
    libraries: Libraries, node_root: FakeRoot
) -> None:
    node_root.describe("1xT4")
    node_root.load()
    node_root.write("dev/nvidia0", "")
    cuda = ctypes.CDLL(str(libraries.cuda))
    assert cuda.cuInit(0) == 999
    node_root.write("dev/nvidia-uvm", "")
    assert cuda.cuInit(0) == 0
