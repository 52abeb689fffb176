"""A set of packages at one version, worked out by the real sh; apt-cache is stood in for."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate.ops import owned_packages

#: What apt-cache says of each package at each version.
SHOWS = {
    "doca-ofed=2.9-1": "Pre-Depends: tools (= 7.1-1)\nDepends: kernel:any (= 24.10-1), rdma | other, libc6 (>= 2.3)",
    "doca-ofed=3.0-1": "Depends: kernel (= 25.04-1)",
    "kernel=24.10-1": "Depends: dkms, scripts, doca-ofed (= 2.9-1)",
    "kernel=25.04-1": "Depends: dkms, scripts",
    "scripts=24.10-1": "Depends: bash (>= 4)",
    "scripts=25.04-1": "",
    "tools=7.1-1": "",
    "dkms=3.0-1": "",
}


def together(folder: Path, *words: str) -> list[str]:
    cases = "".join(
        f"  '{key}') printf '%s\\n' 'Version: {key.split('=')[1]}' '{text}';;\n"
        for key, text in SHOWS.items()
    )
    for_last = (
        "for w do :; done; case $w in\n" + cases + "  *) echo 'N: no such version' >&2;;\nesac\n"
    )
    program = folder / "apt-cache"
    program.write_text(f"#!/bin/sh\n{for_last}")
    program.chmod(0o755)
    text = f"set -e; PATH={folder}:$PATH\n{owned_packages.TOGETHER}together {' '.join(words)}"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_is_needed_at_one_version_only_comes_at_that_version(tmp_path: Path) -> None:
    assert together(tmp_path, "doca-ofed=2.9-1") == [
        *("doca-ofed=2.9-1", "tools=7.1-1", "kernel=24.10-1", "scripts=24.10-1")
    ]
    assert together(tmp_path, "doca-ofed=3.0-1") == [
        *("doca-ofed=3.0-1", "kernel=25.04-1", "scripts=25.04-1")
    ]


def test_a_package_without_a_version_is_left_to_apt(tmp_path: Path) -> None:
    assert together(tmp_path, "doca-ofed") == ["doca-ofed"]
