"""Debian packages as data, written with dpkg-deb.

Only the standard library and dpkg-deb are needed. Builds are reproducible, so rebuilding a repository does not
invalidate images.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpustate_lab.sim.native import run

#: Modification time of all files in packages.
EPOCH = 1_760_000_000
MAINTAINER = "gpustate lab <lab@gpustate.invalid>"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in a package."""

    target: str


@dataclass(frozen=True, slots=True)
class Program:
    """An executable file."""

    content: str | Path


Entry = str | bytes | Path | Link | Program


@dataclass(frozen=True, slots=True)
class Package:
    """One binary package.

    Args:
        files: path without the leading slash, to what is there.
        scripts: maintainer scripts by name.
        relations: control fields beside Depends, as ``{"Conflicts": ("other",)}``.
        triggers: text of the triggers file.
        phased: percentage of nodes that an index offers the package to, if not to all.
    """

    name: str
    version: str
    summary: str
    files: Mapping[str, Entry] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    relations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: str | None = None
    architecture: str = "amd64"
    section: str = "non-free/kernel"
    source: str | None = None
    phased: int | None = None

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    def control(self) -> str:
        """Return the control file, without the fields of an index."""
        lines = [f"Package: {self.name}", f"Version: {self.version}"]
        if self.source is not None:
            lines.append(f"Source: {self.source}")
        lines += [
            f"Architecture: {self.architecture}",
            f"Maintainer: {MAINTAINER}",
            f"Section: {self.section}",
            "Priority: optional",
        ]
        relations = {"Depends": self.depends, **self.relations}
        lines += [f"{key}: {', '.join(value)}" for key, value in relations.items() if value]
        lines.append(f"Description: {self.summary} (simulated)")
        lines.append(" Made by the lab of gpustate.")
        return "\n".join(lines) + "\n"


def write(package: Package, directory: Path) -> Path:
    """Build one .deb file below ``directory`` and return it."""
    target = directory / package.file_name
    with tempfile.TemporaryDirectory(dir=directory, prefix=".deb-") as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        for path, entry in package.files.items():
            _place(root / path, entry)
        control = root / "DEBIAN"
        control.mkdir(mode=0o755)
        (control / "control").write_text(package.control(), encoding="utf-8")
        conffiles = [
            f"/{path}\n"
            for path, entry in package.files.items()
            if path.startswith("etc/") and isinstance(entry, str | bytes | Path)
        ]
        if conffiles:
            (control / "conffiles").write_text("".join(conffiles), encoding="utf-8")
        if package.triggers is not None:
            (control / "triggers").write_text(package.triggers, encoding="utf-8")
        for name, text in package.scripts.items():
            _place(control / name, Program(text))
        for place in [root, *root.rglob("*")]:
            os.utime(place, (EPOCH, EPOCH), follow_symlinks=False)
        # dpkg-deb limits all time stamps to this one, so the same content gives the same file.
        pack = ["env", f"SOURCE_DATE_EPOCH={EPOCH}", "dpkg-deb", "--root-owner-group"]
        run([*pack, "-Zgzip", "-z1", "--build", str(root), str(target)])
    return target


def _place(path: Path, entry: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if isinstance(entry, Link):
        path.symlink_to(entry.target)
        return
    mode = 0o755 if isinstance(entry, Program) else 0o644
    content = entry.content if isinstance(entry, Program) else entry
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def index(packages: Iterable[Package], directory: Path, prefix: str = ".") -> str:
    """Return the Packages file of packages whose files lie in ``directory``, named below ``prefix``."""
    entries = []
    for package in sorted(packages, key=lambda one: (one.name, one.version)):
        data = (directory / package.file_name).read_bytes()
        entries.append(
            package.control()
            + ("" if package.phased is None else f"Phased-Update-Percentage: {package.phased}\n")
            + f"Filename: {prefix}/{package.file_name}\n"
            + f"Size: {len(data)}\n"
            + f"MD5sum: {hashlib.md5(data, usedforsecurity=False).hexdigest()}\n"
            + f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    return "\n".join(entries)


def write_index(
    packages: Iterable[Package], directory: Path, files: Path | None = None, prefix: str = "."
) -> list[Path]:
    """Write Packages and Packages.gz and return them.

    Args:
        packages: all of them.
        directory: where the index goes.
        files: folder of the packages, if it is another one.
        prefix: path of that folder in the repository.
    """
    text = index(packages, files or directory, prefix).encode()
    plain, packed = directory / "Packages", directory / "Packages.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text, mtime=EPOCH))
    return [plain, packed]
