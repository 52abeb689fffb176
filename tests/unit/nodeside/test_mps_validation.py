"""The two-client proof of MPS, against the stand-in daemon and the stub CUDA library: all simulated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpustate.nodeside import mps_validation
from gpustate_lab.sim.native import PAYLOAD

from .conftest import StubNode


class Mps:
    """A node in exclusive mode, and its control program."""

    def __init__(self, node: StubNode, folder: Path) -> None:
        self.node = node
        self.control = folder / "mps"
        pipes = node.root / "tmp/nvidia-mps"
        text = (PAYLOAD / "driver/nvidia_cuda_mps_control.py").read_text()
        server = folder / "server"
        server.write_text("#!/bin/sh\nexec sleep 600\n")
        server.chmod(0o755)
        for before, after in (
            ("#!/usr/lib/gpustate-lab/python -SB", f"#!{sys.executable} -SB"),
            ('"/tmp/nvidia-mps"', repr(str(pipes))),
            ('"/var/log/nvidia-mps"', repr(str(folder / "log"))),
            ("/usr/bin/nvidia-cuda-mps-server", str(server)),
        ):
            assert before in text
            text = text.replace(before, after)
        self.control.write_text(text)
        self.control.chmod(0o755)
        self.state = node.root / "run/gpustate-lab/state"
        self.state.mkdir(parents=True, exist_ok=True)

    def exclusive(self) -> None:
        for gpu in self.node.gpus:
            (self.state / f"compute-mode-{gpu['pci_address']}").write_text("3\n")

    def run(self, *arguments: str, says: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.control, *arguments], input=says, env=self.node.environment, **_TEXT
        )

    def prove(self) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-I", "-S", "-B", mps_validation.__file__]
        environment = dict(self.node.environment)
        environment.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        words = [str(self.control), self.node.uuids[1], "1"]
        return subprocess.run([*program, *words], env=environment, **_TEXT)


_TEXT = {"capture_output": True, "text": True, "timeout": 120, "check": False}


@pytest.fixture
def mps(stub_node: Callable[..., StubNode], tmp_path: Path) -> Iterator[Mps]:
    found = Mps(stub_node("2xL40S"), tmp_path)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    yield found
    found.run(says="quit")


def test_two_clients(mps: Mps) -> None:
    mps.exclusive()
    assert mps.run("-d").returncode == 0
    done = mps.prove()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith("validated in")
    assert f"on {mps.node.uuids[1]} in exclusive mode" in done.stdout
    assert mps.run(says="set_default_active_thread_percentage 25").stdout == "25.0\n"


def test_no_daemon(mps: Mps) -> None:
    mps.exclusive()
    done = mps.prove()
    assert done.returncode == 1
    # Which of the two comes second is theirs.
    assert re.match(
        "MPS validation failed: client [12]: cuCtxCreate_v2: CUDA error 46", done.stdout
    )


def test_beside(mps: Mps) -> None:
    """In default mode both clients run without any daemon: that must not pass for MPS."""
    done = mps.prove()
    assert done.returncode == 1
    assert "the control daemon does not answer" in done.stdout
