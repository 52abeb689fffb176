"""Ctrl-C and SIGTERM while a node is silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_run_whose_node_is_silent(
    tmp_path: Path, number: signal.Signals
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    begun = tmp_path / "begun"
    for name in ("modinfo", "dpkg-query", "systemctl", "uname"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
        (programs / name).chmod(0o755)
    (tmp_path / "policy.yaml").write_text("states:\n  nouveau:\n")
    variables = f"{{ansible_connection: local, gpustate_state_folder: {tmp_path}/state}}"
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{here: {variables}}}}}\n")
    words = ["apply", "policy.yaml", "-i", "hosts.yml", "--yes"]
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(
            [Path(sys.executable).with_name("gpustate"), *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=err,
        ) as process,
    ):

        def wait(path: Path, word: str) -> None:
            deadline = time.monotonic() + 30
            while not path.exists() or word not in path.read_text():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)

        wait(begun, "")
        process.send_signal(number)
        wait(tmp_path / "err", "again: exit at once")
        process.send_signal(number)
        assert process.wait(timeout=5) == 130
    last = (tmp_path / "err").read_text().splitlines()[-1]
    assert "exiting at once" in last
    assert "those out of service stay so until: gpustate rollout resume " in last
