"""A signed repository of small made-up packages, for tests of bundles: the files are no real packages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpustate.bundle import upstream, write
from gpustate.bundle.closure import Base, World, close
from gpustate.bundle.manifest import BASE
from gpustate.bundle.signing import SigningKey
from gpustate.bundle.upstream import Index, Place

DATE = 1_700_000_000
#: Name to what it needs; every one has version 1.0.
PACKAGES: Mapping[str, str] = {
    "app": "libone (>= 1.0), mail-agent",
    "libone": "libc6",
    "libc6": "",
    "postman": "",
    "unused": "app",
}


def stanza(name: str, data: bytes, depends: str = "", **more: str) -> str:
    """A package as an index has it."""
    fields = {"Version": "1.0", "Architecture": "amd64", "Depends": depends, **more}
    lines = [f"Package: {name}", *(f"{key}: {value}" for key, value in fields.items() if value)]
    lines += [f"Filename: ./{name}.deb", f"Size: {len(data)}"]
    return "\n".join([*lines, f"SHA256: {hashlib.sha256(data).hexdigest()}"]) + "\n"


class Site:
    """A folder with a repository, the key that signs it, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.root.mkdir(parents=True)
        self.cache = folder / "cache"
        self.cache.mkdir()
        self.key = SigningKey.load(folder / "upstream.pem")
        self.signing = SigningKey.load(folder / "bundle.pem")
        rows = [stanza(name, self._file(name), needs) for name, needs in PACKAGES.items()]
        self.publish(
            [row.replace("Package: libc6", "Essential: yes\nPackage: libc6") for row in rows]
        )

    def _file(self, name: str) -> bytes:
        data = f"package {name}\n".encode() * 2000
        (self.root / f"{name}.deb").write_bytes(data)
        return data

    def publish(self, stanzas: Sequence[str]) -> None:
        """Write and sign the index."""
        text = "\n".join(stanzas).replace(
            "Package: postman\n", "Package: postman\nProvides: mail-agent\n"
        )
        (self.root / "Packages").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        release = (
            "Origin: Example\nDate: Tue, 14 Nov 2023 22:13:20 +0000\nSHA256:\n"
            f" {digest} {len(text.encode())} Packages\n"
        )
        (self.root / "InRelease").write_text(self.key.clearsign(release, DATE))

    def place(self, uri: str = "") -> Place:
        """The repository with the key that is pinned to it."""
        keys = (self.key.public().encode(),)
        return Place(uri or self.root.as_uri(), "/", (), keys, (self.key.fingerprint,))

    def index(self) -> Index:
        """What it offers."""
        return upstream.read(self.place(), "amd64", self.cache)

    def made(self, *roots: str, name: str = "debian12") -> write.Made:
        """A bundle of some packages."""
        index = self.index()
        world = World({BASE: [index]})
        stanzas = close(world, [(root, "") for root in roots or ("app",)], Base(essential=True))
        chosen = write.Chosen(
            name, "x86_64", (), {"--package": roots or ("app",)}, stanzas, index.date
        )
        return write.make([chosen], self.signing, self.cache)

    def bundle(self, path: Path, *roots: str) -> Path:
        """A bundle that was written."""
        write.write(self.made(*roots), path)
        return path
