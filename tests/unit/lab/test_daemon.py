from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpustate_lab import daemon, process


def container(directory: Path, script: str) -> None:
    argv = ["sh", "-c", script]
    (directory / "container.json").write_text(json.dumps({"argv": argv, "cgroups": []}))


def supervise(directory: Path) -> dict[str, object]:
    argv = [sys.executable, "-I", "-S", daemon.__file__, "supervise", str(directory)]
    subprocess.run(argv, check=True, timeout=30)
    return process.read_state(directory / "supervisor.json")


def test_a_node_that_reboots_is_started_again_until_it_is_off(tmp_path: Path) -> None:
    container(tmp_path, f"echo boot >> {tmp_path}/n; [ $(wc -l < {tmp_path}/n) = 3 ] || exit 133")
    state = supervise(tmp_path)
    assert (state["boots"], state["status"], state["container"]) == (3, 0, None)


def test_a_node_that_cannot_start_says_why_on_its_console(tmp_path: Path) -> None:
    text = json.dumps({"argv": ["/nowhere/systemd-nspawn"], "cgroups": []})
    (tmp_path / "container.json").write_text(text)
    assert supervise(tmp_path)["status"] == 127
    assert "/nowhere/systemd-nspawn: [Errno 2]" in (tmp_path / "console.log").read_text()


def test_a_process_is_known_by_its_start_and_not_by_its_pid_alone() -> None:
    mine = daemon.identity(os.getpid())
    assert daemon.alive(mine)
    assert not daemon.alive({**mine, "start": mine["start"] + 1})
    assert not daemon.alive({**mine, "boot": "of another day"})
    assert not daemon.alive(None)


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen(["true"])
    who = {**daemon.identity(child.pid), "start": 1}
    deadline = time.monotonic() + 10
    while daemon.start_time(child.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not daemon.alive(who)
    child.wait()


def test_end_leaves_a_stranger_with_the_same_pid_alone() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        who = daemon.identity(child.pid)
        assert not process.end({**who, "start": who["start"] + 1})
        assert child.poll() is None
        assert process.end(who)
        assert child.wait() == -9


def test_the_server_gives_files_and_lists_no_folder(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "Release").write_text("Origin: test\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    state = tmp_path / "server.json"
    arguments = ["serve", str(tmp_path / "www"), "127.0.0.1", str(port), str(state)]
    process.start_daemon(arguments, state, tmp_path / "log")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/Release", timeout=10) as answer:
            assert answer.read() == b"Origin: test\n"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        refused.value.close()
        assert refused.value.code == 404
    finally:
        assert process.end(process.read_state(state)["server"])
