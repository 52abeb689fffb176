"""Mounts on the controller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab.command import run

_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text


def mount_points(below: Path) -> list[Path]:
    """Return the mount points at or below ``below``, innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(_unescape(line.split()[4]))
        if point.is_relative_to(below):
            points.append(point)
    return points[::-1]


def mounted_layers() -> set[Path]:
    """Return the lower directories of all mounted overlays."""
    layers: set[Path] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" - ", 1)[1].split(" ", 2)
        if fields[0] == "overlay":
            for option in _unescape(fields[2]).split(","):
                if option.startswith("lowerdir="):
                    layers.update(map(Path, option.removeprefix("lowerdir=").split(":")))
    return layers


def mount_overlay(root: Path, layers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount ``upper`` over ``layers`` (the topmost first) at ``root``, unless it is mounted."""
    if root in mount_points(root):
        return
    for folder in (root, upper, work):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={':'.join(map(str, layers))},upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "-o", options, "gpustate-lab", str(root)])


def unmount_all(below: Path, timeout_s: float = 10.0) -> list[Path]:
    """Unmount everything at or below ``below``; return the mount points."""
    points = mount_points(below)
    deadline = time.monotonic() + timeout_s
    while left := mount_points(below):
        result = run(["umount", str(left[0])], check=False)
        # A process that was just killed keeps its files open for a moment.
        if result.returncode != 0:
            if time.monotonic() > deadline:
                raise LabError(f"cannot unmount {left[0]}: {result.stderr.strip()}")
            time.sleep(0.05)
    return points
