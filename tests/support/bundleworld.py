"""Bundles of small made-up packages: the files are no real packages, their metadata is as dpkg and rpm print it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rpmworld import Rpm

from gpustate.bundle import write
from gpustate.bundle.indexes import FetchedPackage
from gpustate.bundle.manifest import File

SOURCE = "https://mirror.example/debian/pool"
#: Name to what it needs; every one has version 1.0.
PACKAGES = {"app": "libone (>= 1.0), mail-agent", "libone": "libc6", "postman": ""}
#: What a made-up repository of rpm packages has.
RPMS = (
    Rpm("app", "1.0-1", ("libone >= 1.0", "/usr/bin/mail", "(locale if desktop)")),
    Rpm("libone", "2:1.0-1", ("glibc(x86-64)", "rpmlib(FileDigests) <= 4.6.0-1")),
    Rpm("postman", "1-1", provides=("/usr/bin/mail",), arch="noarch"),
)


def deb(folder: Path, name: str, depends: str = "") -> FetchedPackage:
    """A package of dpkg."""
    text = f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\n"
    text += f"Depends: {depends}\n" if depends else ""
    return _fetched(folder, f"{name}_1.0_amd64.deb", SOURCE, text)


def rpm(folder: Path, package: Rpm, source: str = "base") -> FetchedPackage:
    """A package of rpm."""
    epoch, version, release = package.evr
    lines = [f"={package.name}|{epoch}:{version}-{release}|{package.arch}"]
    lines.append(f"P{package.name}| = |{epoch}:{version}-{release}")
    for letter, relations in (("P", package.provides), ("R", package.requires)):
        for relation in relations:
            words = relation.split() if not relation.startswith("(") else [relation]
            lines.append(f"{letter}{'|'.join([*words, '', ''][:3])}")
    lines += [f"F{path}" for path in package.provides if path.startswith("/")]
    file = f"{package.name}-{version}-{release}.{package.arch}.rpm"
    return _fetched(folder, file, source, "\n".join(lines))


def _fetched(folder: Path, file: str, source: str, text: str) -> FetchedPackage:
    data = f"package {file}\n".encode() * 2000
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return FetchedPackage(File(file, digest, len(data)), source, text, folder / file)


class Site:
    """What nodes of one distribution have fetched."""

    def __init__(self, folder: Path, distribution: str = "debian12") -> None:
        self.distribution = distribution
        self.packages: Sequence[FetchedPackage]
        if distribution == "debian12":
            self.packages = [deb(folder, name, needs) for name, needs in PACKAGES.items()]
        else:
            self.packages = [rpm(folder, package) for package in RPMS]

    def selection(self) -> write.Selection:
        """The packages as a bundle's target."""
        asked = {"--package": ("app",)}
        return write.Selection(self.distribution, "x86_64", (), asked, self.packages)

    def made(self) -> write.PreparedBundle:
        """A bundle of them."""
        return write.prepare([self.selection()])

    def bundle(self, path: Path) -> Path:
        """A bundle that was written."""
        write.write(self.made(), path)
        return path
