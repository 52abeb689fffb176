"""Of a missing file the package is asked for, by either path of a merged /usr."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.probes import file_owners


def asked(folder: Path, manager: str, text: str, *paths: str) -> list[str]:
    """What ``owners`` prints where a node has one package manager."""
    (folder / manager).write_text(f"#!/bin/sh\n{text}\n")
    (folder / manager).chmod(0o755)
    (folder / "timeout").symlink_to("/usr/bin/timeout")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{file_owners.SCRIPT}owners {' '.join(paths)}"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_dpkg_is_asked_once_by_both_paths_and_not_of_what_is_made_while_a_node_runs(
    tmp_path: Path,
) -> None:
    rows = asked(
        tmp_path, "dpkg-query", 'echo "$@"; exit 1', "/usr/a", "/lib/b", "/dev/c", "/run/d"
    )
    assert rows == ["-S /usr/a /a /lib/b /usr/lib/b"]


def test_where_nothing_can_be_a_packages_nobody_is_asked(tmp_path: Path) -> None:
    assert asked(tmp_path, "dpkg-query", "echo asked", "/dev/c") == []


def test_rpm_is_asked_file_by_file(tmp_path: Path) -> None:
    text = (
        'case $4 in /usr/a) echo nvidia-kmod-common ;; *) echo "file is not owned"; exit 1 ;; esac'
    )
    rows = asked(tmp_path, "rpm", text, "/usr/a", "/usr/b")
    assert rows == ["nvidia-kmod-common: /usr/a"]


@pytest.mark.parametrize(
    ("row", "package"),
    [
        ("libcuda1:amd64: /usr/lib/x", "libcuda1"),
        ("libcuda1:i386, libcuda1:amd64: /lib/x", "libcuda1"),
        ("diversion by glx-diversions from: /usr/lib/x", None),
        ("no row", None),
    ],
)
def test_a_row_names_the_package(row: str, package: str | None) -> None:
    found = file_owners.parse([row])
    assert found.get("/usr/lib/x") == found.get("/lib/x") == package
