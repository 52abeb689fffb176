from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import api, checks, command, daemon, paths, requirements
from gpustate_lab.spec import LabSpec

ROOT = Path(__file__).parents[3]


def test_a_missing_program_is_named_with_its_debian_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "PROGRAMS", {"no-such-nspawn": "systemd-container"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert checks.missing() == ["no-such-nspawn is not installed (apt install systemd-container)"]


def test_without_root_up_and_down_are_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "labs"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"this machine cannot run a lab: not root.*; use sudo"):
        api.up(LabSpec())
    with pytest.raises(LabError, match=r"not root.*; use sudo"):
        api.down()
    assert not (tmp_path / "labs").exists()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (LabSpec(images=("debian11",)), "image 'debian11' does not exist"),
        (LabSpec(gpus=("8xNOPE",)), "NOPE"),
        (LabSpec.parse(faults=["no-such-fault@gpu1"]), "no-such-fault"),
        (LabSpec.parse(faults=["gpu-off-bus:9@gpu1"]), "gpu-off-bus"),
        (LabSpec.parse(faults=["library-mismatch@gpu1"]), "requires an installed driver"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_is_made(
    spec: LabSpec, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "labs"))
    with pytest.raises(LabError, match=says):
        api.up(spec)
    assert not (tmp_path / "labs").exists()


def test_the_makefile_gets_every_package_from_a_bare_python() -> None:
    listed = subprocess.run(
        [sys.executable, "-I", "-S", requirements.__file__, "--packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert listed == sorted({*requirements.DEBIAN_PACKAGES})
    assert set(requirements.PROGRAMS.values()) <= set(listed)


@pytest.mark.parametrize(
    ("target", "options", "tools"),
    [
        ("demo", [], False),
        ("demo-kubernetes", [], False),
        ("test", ["--tests"], True),
        ("proof", ["--tests", "--proof"], True),
    ],
)
def test_make_installs_what_its_target_needs(target: str, options: list[str], tools: bool) -> None:
    dry = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
    printed = subprocess.run(dry, capture_output=True, text=True, check=True).stdout
    line = next(row for row in printed.splitlines() if "requirements.py" in row)
    words = line.partition("--packages")[2].partition("2>")[0].split()
    assert words == options
    assert ("--editable '.[test]'" in printed) is tools
    listed = subprocess.run(
        [sys.executable, "-I", "-S", requirements.__file__, *words],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert ("chromium" in listed, "vagrant" in listed) == (tools, target == "proof")


def test_a_command_past_its_deadline_takes_its_children_along(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(LabError, match="timed out after 1 s"):
        command.run(["sh", "-c", script], timeout_s=1.0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while daemon.start_time(pid) is not None:
        assert time.monotonic() < deadline, f"{pid} still runs"
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(LabError, match=r"cannot run /nowhere/x: No such file"):
        command.run(["/nowhere/x"])
