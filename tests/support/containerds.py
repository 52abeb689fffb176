"""containerd's programs by release, for tests that ask them and start nothing.

They are those of ``GPUSTATE_CONTAINERD`` (paths, separated by colons); otherwise Debian's lie in the lab's images,
and newer ones are built from their Go modules, which only a run with ``--proof`` does.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess

import shares

from gpustate.lab import images, programs

#: The image that has a release as Debian ships it.
DEBIANS = {"1.6": "debian12", "1.7": "debian13", "2.1": "debian13-containerd2"}
RELEASES = (*DEBIANS, "2.2", "2.3", "2.4")


def releases() -> tuple[str, ...]:
    """Those that this run asks."""
    return RELEASES if shares.everything() else tuple(DEBIANS)


@functools.cache
def program(release: str) -> str:
    """The path of a release's containerd, made where it is missing."""
    for path in filter(None, os.environ.get("GPUSTATE_CONTAINERD", "").split(":")):
        if version(path).startswith(f"{release}."):
            return path
    if release not in DEBIANS:
        return str(programs.provide(f"containerd-{release}", print)["containerd"])
    stack = images.prepare([DEBIANS[release]], print).stacks[DEBIANS[release]]
    found = (layer / "usr/bin/containerd" for layer in stack)
    # A layer that removes Debian's containerd has a character device in its place.
    return next(str(path) for path in found if path.is_file())


@functools.cache
def version(path: str) -> str:
    """What a program says of itself, such as 1.7.24."""
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv?(\d+\.\d+\.\d+)", shown)
    assert found, shown
    return found[1]
