"""Prove MPS with two clients: two processes have a context on one GPU at the same time.

    python3 -I -S mps_proof.py CONTROL_PROGRAM GPU_UUID EXCLUSIVE

Each client writes to memory of its own and reads it back while the other is there, and the control
daemon is asked which clients its server has: both must be among them. With EXCLUSIVE (1) the GPU is in
exclusive mode, where a second process without MPS would be refused. Prints one line; exit code 0: proven.

Sources:
    nvidia-cuda-mps-control(1): get_server_list, get_client_list; CUDA driver API, CUresult.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

WORDS = 4096
LIMIT_S = 60.0


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(library, function)(*arguments)
    if code != 0:
        name = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(name))
        told = name.value.decode("ascii", "replace") if name.value else ""
        raise RuntimeError(f"{function}: CUDA error {code} {told}".rstrip())


def client(pattern: int) -> None:
    """Have a context, work in it, say so, and again when told to; ends when its input ends."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        _call(cuda, "cuInit", 0)
        _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
        _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
        _call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * WORDS))
        print("ready", flush=True)
        for _ in sys.stdin:
            back = (ctypes.c_uint32 * WORDS)()
            _call(cuda, "cuMemsetD32_v2", memory, ctypes.c_uint(pattern), ctypes.c_size_t(WORDS))
            _call(cuda, "cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(4 * WORDS))
            _call(cuda, "cuCtxSynchronize")
            right = all(word == pattern for word in back)
            print("worked" if right else "memory holds something else", flush=True)
    except (OSError, AttributeError, RuntimeError) as error:
        print(str(error), flush=True)


def query(control: str, command: str) -> list[str]:
    """Give the control daemon a command; raise ``RuntimeError`` when it does not answer."""
    try:
        done = subprocess.run(
            [control], input=command + "\n", capture_output=True, text=True, timeout=15
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[:1] or ["no word"]
        raise RuntimeError(f"{command}: the control daemon does not answer ({said[0]})")
    return done.stdout.split()


def _start(uuid: str, pattern: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", os.path.abspath(__file__), "client", str(pattern)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=uuid),
        start_new_session=True,
    )


def _say(child: subprocess.Popen[str], wanted: str, number: int) -> None:
    line = child.stdout.readline().strip() if child.stdout else ""
    if line != wanted:
        raise RuntimeError(f"client {number}: {line or 'ended without a word'}")


def prove(control: str, uuid: str, exclusive: bool) -> str:
    """Carry out the proof; raise ``RuntimeError`` naming what does not hold."""
    children = [_start(uuid, pattern) for pattern in (0x5EED0001, 0x5EED0002)]
    try:
        for number, child in enumerate(children, 1):
            _say(child, "ready", number)
        for child in children:
            if child.stdin:
                child.stdin.write("work\n")
                child.stdin.flush()
        for number, child in enumerate(children, 1):
            _say(child, "worked", number)
        servers = query(control, "get_server_list")
        clients = {pid for server in servers for pid in query(control, f"get_client_list {server}")}
        missing = [str(child.pid) for child in children if str(child.pid) not in clients]
        if missing:
            raise RuntimeError(
                f"{len(missing)} of 2 clients ran beside MPS, not through it: the servers "
                f"{' '.join(servers) or '(none)'} do not know {' '.join(missing)}"
            )
    finally:
        for child in children:
            child.kill()
            child.wait()
    mode = "exclusive mode" if exclusive else "default mode"
    return f"two clients at the same time on {uuid} in {mode}, both known to server {servers[0]}"


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "client":
        client(int(sys.argv[2]))
        return 0
    if len(sys.argv) != 4:
        print("usage: mps_proof.py CONTROL_PROGRAM GPU_UUID EXCLUSIVE")
        return 2

    def late(number: int, frame: object) -> None:
        raise RuntimeError(f"a client or the daemon did not answer within {LIMIT_S:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    began = time.monotonic()
    try:
        told = prove(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
    except (RuntimeError, OSError) as error:
        print(f"not proven: {error}")
        return 1
    print(f"proven in {time.monotonic() - began:.1f} s: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
