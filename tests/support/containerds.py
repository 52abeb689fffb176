"""containerd's programs by release, and its files in a folder, for tests that ask them and start nothing.

They are those of ``GPUSTATE_CONTAINERD`` (paths, separated by colons); otherwise Debian's lie in the lab's images,
and newer ones are built from their Go modules, which only a run with ``--proof`` does.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

import shares

from gpustate.formats.containerd import Edit, Files, dump_arguments, is_imported
from gpustate.formats.toml_scan import parse
from gpustate_lab import images, programs

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


def read(etc: Path) -> Files:
    """The files of a folder that stands for /etc/containerd, with what the root imports."""
    root, drop_in = etc / "config.toml", etc / "conf.d" / "99-nvidia.toml"
    texts = {str(path): path.read_bytes().decode() for path in sorted(etc.rglob("*.toml"))}
    root_text = texts.pop(str(root), None)
    imports = parse(root_text, str(root)).get("imports", []) if root_text else []
    imported = {path: text for path, text in texts.items() if is_imported(imports, str(root), path)}
    loose = None if str(drop_in) in imported else texts.get(str(drop_in))
    return Files(root_text, imported, str(root), str(drop_in), loose)


def write(edit: Edit) -> None:
    """Carry an edit out."""
    for name, text in edit.files.items():
        path = Path(name)
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())


def snapshot(etc: Path) -> dict[str, bytes]:
    """Every configuration below a folder."""
    return {str(path): path.read_bytes() for path in etc.rglob("*.toml")}


def dump(path: str, files: Files) -> subprocess.CompletedProcess[str]:
    """What a program makes of files."""
    words = dump_arguments(files.root_path, files.root_text, version(path))
    return subprocess.run([path, *words], capture_output=True, text=True, check=False)
