"""What an interrupted dpkg leaves is finished, also where dpkg alone cannot; with stand-ins for both."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate.ops import LIBRARY


def settle(folder: Path, packages: str) -> str:
    """Run ``dpkg_settle`` over what dpkg-query says; what dpkg and apt-get were told to do."""
    tools = {
        "dpkg-query": f"printf '%s' '{packages}'",
        "dpkg": f'case "$*" in --audit) ;; *) echo "dpkg $*" >>{folder}/log ;; esac',
        "apt-get": f'echo "apt-get $*" >>{folder}/log; : >package.deb',
        "sync": ":",
    }
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "run").mkdir()
    subprocess.run(
        ["sh", "-c", f"{LIBRARY}\nset -e\nPATH={folder}:$PATH; STEP=1\ndpkg_settle"],
        env={"R": str(folder / "run"), "G": str(folder), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    log = folder / "log"
    return log.read_text() if log.exists() else ""


def test_a_package_that_has_to_be_unpacked_again_is(tmp_path: Path) -> None:
    did = settle(tmp_path, "iUR|nvidia-persistenced=580.1-1\nii |kmod=30\niHR|libcuda1=580.1-1\n")
    assert did.splitlines() == [
        "apt-get -q download nvidia-persistenced=580.1-1",
        "apt-get -q download libcuda1=580.1-1",
        "dpkg --unpack --force-confdef --force-confold ./package.deb",
    ]


def test_one_that_no_version_is_known_of_is_left_to_apt(tmp_path: Path) -> None:
    assert settle(tmp_path, "iHR|site-tool=\n") == ""


def test_a_whole_system_is_left_alone(tmp_path: Path) -> None:
    assert settle(tmp_path, "ii |kmod=30\nhi |libcuda1=580.1-1\nrc |old=1\n") == ""
