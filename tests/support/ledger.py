"""What is on a node's disk beyond its image: one line a file, to be compared before and after.

A lab node's disk is an overlay, so everything that ever changed lies in its upper folder; the image
below cannot change. A file that was copied up and is the same as in the image counts as unchanged.

Left out is only what says *when* something happened, not *what* holds; each pattern has its reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

#: gpustate's own folder, relative to the node's root.
OWN = "var/lib/gpustate"

#: What two undisturbed runs on one image do not agree about, and why that is no finding.
VOLATILE: Mapping[str, str] = {
    r"var/log(/.*)?": "logs grow with every attempt",
    r"var/dcgm-exporter\.log": "the exporter's, where NVIDIA's unit has it",
    r"var/cache/(apt|ldconfig|debconf|man)(/.*)?": "caches: recreated from what the ledger does hold",
    r"var/lib/systemd(/.*)?": "random seed, time stamps of timers",
    r"var/lib/gpustate-packages(/.*)?": "packages kept for a rollback: what was replaced, as far as it is to be had",
    r"var/lib/(containerd|nvidia-fabricmanager)(/.*)?": "the daemons' own data",
    r"var/lib/apt/(lists/(lock|partial|auxfiles)|periodic|daily_lock)(/.*)?": "locks and stamps",
    r"var/lib/apt/lists/[^/]+_(In)?Release(.gpg)?": "signed anew whenever the repository is",
    r"var/lib/dpkg/(lock.*|.*-old|triggers/Lock)": "locks, and the status before the last step",
    r"var/lib/dkms/.*/log/.*": "how a module's build went, with times",
    r"var/backups(/.*)?": "made daily",
    r"(root|home/[^/]+)/\..*(history|cache).*": "a login's own",
    r"(var/)?tmp(/.*)?": "temporary files of whoever; gpustate's are looked for by name",
    r"run(/.*)?": "only a mount point here",
    r"etc/(machine-id|\.pwd\.lock|resolv\.conf)": "written by boot",
    r"(etc|var)/\.updated": "written by boot",
}
_VOLATILE = re.compile("|".join(f"(?:{pattern})" for pattern in VOLATILE))

#: Names that a killed write, package step or upload leaves behind.
_LEFT_BEHIND = re.compile(
    r"(.*/)?(\.gpustate\.[^/]*|[^/]+\.(new|dpkg-new|dpkg-tmp|dpkg-old|dpkg-dist|ucf-[a-z]+)|lock\.old)"
)

Ledger = dict[str, str]


def read(
    upper: Path,
    layers: Sequence[Path],
    *,
    skip: Callable[[str], bool] = lambda path: False,
    memory: dict[tuple[object, ...], str] | None = None,
) -> Ledger:
    """What a disk has beyond its image, by path: kind, owner, mode and content.

    Args:
        upper: the overlay's upper folder.
        layers: the image, the topmost layer first.
        skip: paths to leave out; the subject of a ledger is the caller's matter.
        memory: for many ledgers of one disk: what unchanged files were found to hold.
    """
    found: Ledger = {}
    memory = {} if memory is None else memory
    for path in walk(upper):
        name = str(path.relative_to(upper))
        if skip(name):
            continue
        line = _remembered(path, memory)
        below = _below(name, layers, memory)
        if line != below:
            found[name] = line
    return found


def foreign(name: str) -> bool:
    """Whether a path is neither gpustate's own nor volatile."""
    return not own(name) and _VOLATILE.fullmatch(name) is None


def own(name: str) -> bool:
    """Whether a path is in gpustate's own folder."""
    return name == OWN or name.startswith(OWN + "/")


def left_behind(upper: Path) -> list[str]:
    """Temporary files that nobody is going to remove, on the whole disk."""
    names = (str(path.relative_to(upper)) for path in walk(upper) if not _is_whiteout(path))
    # A run's own folder goes as a whole, once there are ten newer ones.
    return sorted(
        name
        for name in names
        if _LEFT_BEHIND.fullmatch(name) and not re.match(rf"{OWN}/runs/[^/.]+/", name)
    )


def differences(before: Ledger, after: Ledger) -> list[str]:
    """Each path that is not the same, with what it was and is."""
    return [
        f"{name}: was {before.get(name, 'as in the image')}, is {after.get(name, 'as in the image')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def digest(ledger: Ledger) -> str:
    """One short word for a whole ledger."""
    lines = "\n".join(f"{name} {line}" for name, line in sorted(ledger.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder, in order, links not followed."""
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))


def describe(path: Path) -> str:
    """One file in a line."""
    status = path.lstat()
    who = f"{status.st_uid}:{status.st_gid} {stat.S_IMODE(status.st_mode):04o}"
    if stat.S_ISLNK(status.st_mode):
        return f"link to {path.readlink()}"
    if stat.S_ISDIR(status.st_mode):
        return f"folder {who}"
    if stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        return f"file {who} {status.st_size} bytes {content}"
    if _is_whiteout(path):
        return "gone"
    return f"special {who}"


def _is_whiteout(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _remembered(path: Path, memory: dict[tuple[object, ...], str]) -> str:
    status = path.lstat()
    key = (
        path,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    if key not in memory:
        memory[key] = describe(path)
    return memory[key]


def _below(name: str, layers: Sequence[Path], memory: dict[tuple[object, ...], str]) -> str:
    for layer in layers:
        path = layer / name
        try:
            return _remembered(path, memory)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            break
    return "gone"
