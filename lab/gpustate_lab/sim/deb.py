"""Debian packages as data, written with the standard library alone, in a tenth of dpkg-deb's time.

Builds are reproducible, so rebuilding a repository does not invalidate images.

Sources:
    deb(5): members of the archive. ar(5): its headers.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

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
    control: dict[str, Entry] = {"control": package.control()}
    conffiles = [
        f"/{path}\n"
        for path, entry in package.files.items()
        if path.startswith("etc/") and isinstance(entry, str | bytes | Path)
    ]
    if conffiles:
        control["conffiles"] = "".join(conffiles)
    if package.triggers is not None:
        control["triggers"] = package.triggers
    control |= {name: Program(text) for name, text in package.scripts.items()}
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _archive(control),
        "data.tar.gz": _archive(package.files),
    }
    target = directory / package.file_name
    with target.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, data in members.items():
            file.write(
                f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{0o100644:<8o}{len(data):<10}`\n".encode()
            )
            file.write(data + b"\n" * (len(data) % 2))
    return target


def _archive(files: Mapping[str, Entry]) -> bytes:
    """Return a compressed tar archive of files with the folders above them, all of them root's."""
    folders = {PurePath(), *(parent for path in files for parent in PurePath(path).parents)}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=EPOCH) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted([*map(str, folders), *files]):
            member = tarfile.TarInfo("." if path == "." else f"./{path}")
            member.mtime, member.uname, member.gname, member.mode = EPOCH, "root", "root", 0o755
            entry = files.get(path)
            if entry is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(entry, Link):
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
                archive.addfile(member)
            else:
                content = entry.content if isinstance(entry, Program) else entry
                member.mode = 0o755 if isinstance(entry, Program) else 0o644
                data = _data(content)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _data(content: str | bytes | Path) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode() if isinstance(content, str) else content


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
