"""Validate MPS with two clients: two processes have a context on one GPU at the same time.

    python3 -I -S mps_validation.py CONTROL_PROGRAM GPU_UUID EXCLUSIVE

Each client writes to its own memory and reads it back while the other runs, and the control daemon must list
both as clients of its server. With EXCLUSIVE (1) the GPU is in exclusive mode, which rejects a second process
without MPS. Prints one line; exit code 0: validated.

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
        text = name.value.decode("ascii", "replace") if name.value else ""
        raise RuntimeError(f"{function}: CUDA error {code} {text}".rstrip())


def client(pattern: int) -> None:
    """Create a context, then work in it once per line of input, and report each; end with the input."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        _call(cuda, "cuInit", 0)
        _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
        _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
        _call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * WORDS))
        print("ready", flush=True)
        for _ in sys.stdin:
            words = (ctypes.c_uint32 * WORDS)()
            _call(cuda, "cuMemsetD32_v2", memory, ctypes.c_uint(pattern), ctypes.c_size_t(WORDS))
            _call(cuda, "cuMemcpyDtoH_v2", words, memory, ctypes.c_size_t(4 * WORDS))
            _call(cuda, "cuCtxSynchronize")
            right = all(word == pattern for word in words)
            print("worked" if right else "memory has wrong content", flush=True)
    except (OSError, AttributeError, RuntimeError) as error:
        print(str(error), flush=True)


def query(control: str, command: str) -> list[str]:
    """Send a command to the control daemon; raise ``RuntimeError`` if it does not answer."""
    try:
        process = subprocess.run(
            [control], input=command + "\n", capture_output=True, text=True, timeout=15
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command}: {error}") from None
    if process.returncode != 0:
        reason = (process.stderr or process.stdout).strip().splitlines()[:1] or ["no output"]
        raise RuntimeError(f"{command}: the control daemon does not answer ({reason[0]})")
    return process.stdout.split()


def _start(uuid: str, pattern: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", os.path.abspath(__file__), "client", str(pattern)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=uuid),
        start_new_session=True,
    )


def _expect(child: subprocess.Popen[str], expected: str, number: int) -> None:
    line = child.stdout.readline().strip() if child.stdout else ""
    if line != expected:
        raise RuntimeError(f"client {number}: {line or 'exited without output'}")


def validate(control: str, uuid: str, exclusive: bool) -> str:
    """Run both clients; raise ``RuntimeError`` if a condition is not met."""
    children = [_start(uuid, pattern) for pattern in (0x5EED0001, 0x5EED0002)]
    try:
        for number, child in enumerate(children, 1):
            _expect(child, "ready", number)
        for child in children:
            if child.stdin:
                child.stdin.write("work\n")
                child.stdin.flush()
        for number, child in enumerate(children, 1):
            _expect(child, "worked", number)
        servers = query(control, "get_server_list")
        clients = {pid for server in servers for pid in query(control, f"get_client_list {server}")}
        missing = [str(child.pid) for child in children if str(child.pid) not in clients]
        if missing:
            raise RuntimeError(
                f"{len(missing)} of 2 clients did not use MPS: process {' '.join(missing)} is not a client of the "
                f"servers {' '.join(servers) or '(none)'}"
            )
    finally:
        for child in children:
            child.kill()
            child.wait()
    mode = "exclusive mode" if exclusive else "default mode"
    return f"two clients at the same time on {uuid} in {mode}, both through server {servers[0]}"


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "client":
        client(int(sys.argv[2]))
        return 0
    if len(sys.argv) != 4:
        print("usage: mps_validation.py CONTROL_PROGRAM GPU_UUID EXCLUSIVE")
        return 2

    def late(number: int, frame: object) -> None:
        raise RuntimeError(f"a client or the daemon did not answer within {LIMIT_S:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    began = time.monotonic()
    try:
        evidence = validate(sys.argv[1], sys.argv[2], sys.argv[3] == "1")
    except (RuntimeError, OSError) as error:
        print(f"MPS validation failed: {error}")
        return 1
    print(f"validated in {time.monotonic() - began:.1f} s: {evidence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
