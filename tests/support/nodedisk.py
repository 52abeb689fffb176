"""Copies of a lab node's disk, to be put back later: what a killed node would have booted on.

A copy holds the overlay's upper folder. Files that did not change since the copy before are hard
links to it, so a copy of a node at each of hundreds of moments costs little.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpustate_lab import host
from gpustate_lab.node import Node

_PLENTY_KIB = 12 * 1024 * 1024
_Signature = tuple[int, int, int, int]


def upper(node: Node) -> Path:
    """The folder that holds everything the node's disk has beyond its image."""
    return node.directory / "upper"


@dataclass(slots=True)
class Copier:
    """Makes copies of one node's disk, one after the other."""

    node: Node
    _linked: dict[int, Path] = field(
        default_factory=dict[int, Path]
    )  # names of one file in one copy
    _kept: dict[str, tuple[_Signature, Path]] = field(
        default_factory=dict[str, tuple[_Signature, Path]]
    )

    def copy(self, to: Path) -> Path:
        """Copy the disk as it is now; nothing may write to it meanwhile."""
        self._linked.clear()
        self._folder(upper(self.node), to, "")
        return to

    def _folder(self, source: Path, to: Path, name: str) -> None:
        to.mkdir()
        with os.scandir(source) as found:
            for entry in found:
                path, target = Path(entry.path), to / entry.name
                inner = f"{name}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    self._folder(path, target, inner)
                elif stat.S_ISREG(status.st_mode):
                    self._file(path, target, inner, status)
                elif stat.S_ISLNK(status.st_mode):
                    target.symlink_to(os.readlink(path))
                    _same(path, target, status)
                elif stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode):
                    os.mknod(target, status.st_mode, status.st_rdev)
                    _same(path, target, status)
        _same(source, to, source.lstat())

    def _file(self, path: Path, target: Path, inner: str, status: os.stat_result) -> None:
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if status.st_nlink > 1:
            if status.st_ino in self._linked:
                os.link(self._linked[status.st_ino], target)
                return
            self._linked[status.st_ino] = target
            # Never shared with another copy: its count of names would be wrong there.
            self._kept.pop(inner, None)
            shutil.copyfile(path, target)
            _same(path, target, status)
            return
        known = self._kept.get(inner)
        if known is not None and known[0] == signature:
            os.link(known[1], target)
            return
        shutil.copyfile(path, target)
        _same(path, target, status)
        self._kept[inner] = (signature, target)


def _same(path: Path, target: Path, status: os.stat_result) -> None:
    """Owner, mode, attributes and times; overlayfs keeps what it needs in attributes."""
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    link = stat.S_ISLNK(status.st_mode)
    if not link:
        os.chmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(path, follow_symlinks=False):
        try:
            value = os.getxattr(path, name, follow_symlinks=False)
            os.setxattr(target, name, value, follow_symlinks=False)
        except OSError:
            if not link:
                raise
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(target, ns=times, follow_symlinks=False)


def in_memory(folder: Path) -> None:
    """Have copies in memory where there is plenty: hundreds of thousands of names take minutes to remove from a disk.

    Args:
        folder: below the lab's, which unmounts what is mounted there when it goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    if int(told["MemAvailable"].split()[0]) > _PLENTY_KIB:
        words = ["mount", "-t", "tmpfs", "-o", "size=6g,nr_inodes=4m,mode=0700", "copies"]
        subprocess.run([*words, str(folder)], check=False)


def put_back(node: Node, copy: Path) -> None:
    """Kill the node and give it the disk of a copy; it is off afterwards."""
    node.kill()
    host.unmount_all(node.root)
    for folder in ("upper", "work"):
        shutil.rmtree(node.directory / folder, ignore_errors=True)
    subprocess.run(["cp", "-a", str(copy), str(upper(node))], check=True)
