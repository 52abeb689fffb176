#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-cuda-mps-control: the daemon (-d, -f), and the program that sends commands to it.

The stub libcuda connects to the socket ``control`` of the pipe directory; such a process is a client of the
server until it ends. Commands, their output and ``nvidia-cuda-mps-control.pid`` are those of the real daemon;
the protocol of the socket is not. Limits are stored, but not enforced.

Sources:
    nvidia-cuda-mps-control(1) of 580.65.06; NVIDIA MPS documentation, "Tools and Interface Reference".
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

PIPES = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
LOGS = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
SOCKET = PIPES / "control"
PID_FILE = PIPES / "nvidia-cuda-mps-control.pid"


class Daemon:
    def __init__(self) -> None:
        self.clients: dict[int, str] = {}
        self.server: subprocess.Popen[bytes] | None = None
        self.limits = {"active_thread_percentage": "100.0"}
        self.pinned: dict[str, str] = {}
        self.lock = threading.Lock()

    def log(self, text: str) -> None:
        with (LOGS / "control.log").open("a") as file:
            file.write(text + "\n")

    def server_pid(self) -> int:
        with self.lock:
            if self.server is None or self.server.poll() is not None:
                self.server = subprocess.Popen(["/usr/bin/nvidia-cuda-mps-server"])
                self.log(f"Starting new server {self.server.pid} for user 0")
            return self.server.pid

    def serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("r") as lines:
            first = lines.readline().split()
            if first[:1] == ["client"]:
                self.server_pid()
                pid = int(first[1])
                self.clients[pid] = first[2]
                self.log(f"NEW CLIENT {pid} from user 0: Server is ready")
                peer.sendall(b"ok\n")
                lines.read()  # until the client is gone
                self.clients.pop(pid, None)
                return
            words = first
            while words:
                answer = self.command(words)
                peer.sendall(answer.encode())
                words = lines.readline().split()

    def command(self, words: list[str]) -> str:
        name, rest = words[0], words[1:]
        if name == "quit":
            self.end()
        if name == "get_server_list":
            running = self.server is not None and self.server.poll() is None
            return f"{self.server.pid}\n" if running and self.server else ""
        if name == "get_client_list":
            known = self.server is not None and rest == [str(self.server.pid)]
            return (
                "".join(f"{pid}\n" for pid in sorted(self.clients))
                if known
                else "Server not found\n"
            )
        if name == "get_default_active_thread_percentage":
            return self.limits["active_thread_percentage"] + "\n"
        if name == "set_default_active_thread_percentage" and len(rest) == 1:
            self.limits["active_thread_percentage"] = f"{float(rest[0]):.1f}"
            return self.limits["active_thread_percentage"] + "\n"
        if name == "set_default_device_pinned_mem_limit" and len(rest) == 2:
            self.pinned[rest[0]] = rest[1]
            return ""
        if name == "get_default_device_pinned_mem_limit" and len(rest) == 1:
            return self.pinned.get(rest[0], "None") + "\n"
        return f"Unknown command: {' '.join(words)}\n"

    def end(self) -> None:
        if self.server is not None and self.server.poll() is None:
            self.server.kill()
        for path in (SOCKET, PID_FILE):
            path.unlink(missing_ok=True)
        os._exit(0)

    def run(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(SOCKET))
        SOCKET.chmod(0o777)
        listener.listen(64)
        PID_FILE.write_text(f"{os.getpid()}\n")
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()


def alive() -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(SOCKET))
    except OSError:
        return False
    return True


def start(background: bool) -> int:
    PIPES.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    if alive():
        print("An instance of this daemon is already running")
        return 1
    SOCKET.unlink(missing_ok=True)
    if background:
        read_end, write_end = os.pipe()
        if os.fork():
            os.close(write_end)
            return 0 if os.read(read_end, 1) == b"" else 1
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        threading.Timer(0.2, os.close, (write_end,)).start()
    Daemon().run()
    return 0


def talk() -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(SOCKET))
            peer.sendall(sys.stdin.buffer.read().strip() + b"\n")
            peer.shutdown(socket.SHUT_WR)
            with peer.makefile("r") as answer:
                sys.stdout.write(answer.read())
    except OSError:
        print(
            f"Cannot find MPS control daemon process\n(simulated; looked at {SOCKET})",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] in (["-d"], ["-f"]):
        sys.exit(start(sys.argv[1] == "-d"))
    sys.exit(talk() if not sys.argv[1:] else 2)
