"""Programs of the lab and of the tests' machines that are sh pass shellcheck."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

TOP = Path(__file__).parents[3]
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"
#: What shellcheck finds and is meant, with the reason. A directive in these files would be part of what a root is
#: made of, and have every root built again.
MEANT = {
    ("lab/gpustate_lab/scripts/rpm.sh", "SC2164"): "layer.sh runs it with sh -eu",
    ("lab/gpustate_lab/scripts/ubuntu.sh", "SC2154"): "the image's recipe sets distribution",
    (
        "lab/gpustate_lab/sim/payload/driver/nvidia-fabricmanager-start.sh",
        "SC1007",
    ): "the mode is empty until an option gives it",
}


def programs() -> list[str]:
    """Every file that is sh by its name or its first line."""
    found: list[str] = []
    for folder in ("lab", "tests/support"):
        for path in sorted((TOP / folder).rglob("*")):
            if path.is_file() and (
                path.suffix == ".sh" or path.read_bytes().startswith(b"#!/bin/sh\n")
            ):
                found.append(path.relative_to(TOP).as_posix())
    return found


def test_programs_pass_shellcheck() -> None:
    names = programs()
    assert len(names) > 20
    done = subprocess.run(
        [SHELLCHECK, "--shell=sh", "--severity=warning", "--format=gcc", *names],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    rows = done.stdout.splitlines()
    # gcc's format: FILE:LINE:COLUMN: LEVEL: TEXT [CODE]
    found = {(row.partition(":")[0], row.rpartition("[")[2].rstrip("]")) for row in rows}
    assert found == set(MEANT), done.stdout
