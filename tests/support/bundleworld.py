"""A signed repository of small made-up packages, for tests of bundles: the files are no real packages."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpmworld import Rpm, primary
from signingkey import SigningKey

from gpustate.bundle import rpmclosure, rpmupstream, upstream, write
from gpustate.bundle.closure import Available, Baseline, resolve
from gpustate.bundle.manifest import BASE
from gpustate.bundle.offers import Offers
from gpustate.bundle.rpmclosure import Installed
from gpustate.bundle.rpmupstream import RpmRepositorySource
from gpustate.bundle.upstream import Index, RepositorySource
from gpustate.resolver.rpm_bundle_nodes import parse_installed

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

    def place(self, uri: str = "") -> RepositorySource:
        """The repository with the key that is pinned to it."""
        keys = (self.key.public().encode(),)
        return RepositorySource(uri or self.root.as_uri(), "/", (), keys, (self.key.fingerprint,))

    def index(self) -> Index:
        """What it offers."""
        return upstream.read(self.place(), "amd64", self.cache)

    def made(self, *roots: str, name: str = "debian12") -> write.PreparedBundle:
        """A bundle of some packages."""
        index = self.index()
        world = Available({BASE: [index]})
        stanzas = resolve(
            world, [(root, "") for root in roots or ("app",)], Baseline(essential=True)
        )
        chosen = write.Selection(
            name, "x86_64", (), {"--package": roots or ("app",)}, stanzas, index.date
        )
        return write.prepare([chosen], self.cache)

    def bundle(self, path: Path, *roots: str) -> Path:
        """A bundle that was written."""
        write.write(self.made(*roots), path)
        return path


#: What a made-up repository of rpm packages has.
RPMS = (
    Rpm("app", "1.0-1", ("libone >= 1.0", "/usr/bin/mail", "(locale if desktop)")),
    Rpm("libone", "2:1.0-1", ("glibc(x86-64)", "rpmlib(FileDigests) <= 4.6.0-1")),
    Rpm("glibc", "2.34-1", provides=("glibc(x86-64)",), arch="x86_64"),
    Rpm("postman", "1-1", provides=("/usr/bin/mail",), arch="noarch"),
    Rpm("unused", "1-1", ("app",)),
)


class RpmSite:
    """A folder with a repository of rpm packages, the key that signs its metadata, and a cache.

    The files are no real packages; their elements are as createrepo_c writes them.
    """

    def __init__(self, folder: Path, packages: Sequence[Rpm] = RPMS, sums: str = "sha256") -> None:
        self.root = folder / "repository"
        (self.root / "repodata").mkdir(parents=True)
        self.cache = folder / "cache"
        self.cache.mkdir()
        self.key = SigningKey.load(folder / "upstream.pem")
        self.sums = sums
        self.publish(packages)

    def publish(self, packages: Sequence[Rpm], end: str = "gz") -> None:
        """Write packages and repodata, and sign it."""
        rows = [self._element(one) for one in packages]
        text = primary(()).replace(b"</metadata>", "".join(rows).encode() + b"</metadata>")
        packed = gzip.compress(text) if end == "gz" else text
        name = f"repodata/primary.xml{'.gz' if end == 'gz' else ''}"
        (self.root / name).write_bytes(packed)
        repomd = (
            '<repomd xmlns="http://linux.duke.edu/metadata/repo"><data type="primary">'
            f'<checksum type="sha256">{hashlib.sha256(packed).hexdigest()}</checksum>'
            f'<location href="{name}"/><timestamp>{DATE}</timestamp><size>{len(packed)}</size>'
            "</data></repomd>"
        )
        (self.root / "repodata/repomd.xml").write_text(repomd)
        signature = self.key.sign(repomd.encode(), DATE)
        (self.root / "repodata/repomd.xml.asc").write_text(signature)

    def _element(self, one: Rpm) -> str:
        data = f"package {one.name} {one.version}\n".encode() * 2000
        name = re.findall(r'<location href="([^"]*)"', one.xml())[0]
        (self.root / name).write_bytes(data)
        digest = hashlib.new(self.sums, data).hexdigest()
        files = "".join(f"<file>{p}</file>" for p in one.provides if p.startswith("/"))
        text = re.sub(
            r'type="sha256"([^>]*)>[0-9a-f]*<', rf'type="{self.sums}"\1>{digest}<', one.xml()
        )
        text = text.replace('package="10"', f'package="{len(data)}"')
        return text.replace("</format>", f"{files}</format>")

    def place(self, **more: Any) -> RpmRepositorySource:
        """The repository with the key that is pinned to it."""
        given: dict[str, Any] = {"packages_signed": False, "metadata_signed": True, **more}
        keys = (self.key.public().encode(),)
        return RpmRepositorySource(
            "site", self.root.as_uri(), "", keys, (self.key.fingerprint,), **given
        )

    def offers(self, **more: Any) -> Offers:
        """What it offers."""
        return rpmupstream.read(self.place(**more), "x86_64", {}, self.cache)

    def made(
        self, *roots: str, nodes: Sequence[rpmclosure.Installed] = (), name: str = "rocky9"
    ) -> write.PreparedBundle:
        """A bundle of some packages."""
        offers = self.offers()
        wanted = [(root, "") for root in roots or ("app",)]
        builds = rpmclosure.resolve(Available({BASE: [offers]}), wanted, nodes)
        asked = {"--package": roots or ("app",)}
        chosen = write.Selection(name, "x86_64", (), asked, builds, offers.date)
        return write.prepare([chosen], self.cache)

    def bundle(self, path: Path, *roots: str, **more: Any) -> Path:
        """A bundle that was written."""
        write.write(self.made(*roots, **more), path)
        return path


def installed(*packages: Rpm) -> Installed:
    """A node that has some packages, as rpm tells of it."""
    lines: list[str] = []
    for one in packages:
        epoch, version, release = one.evr
        lines.append(f"={one.name}|{epoch}:{version}-{release}|{one.arch}")
        lines.append(f"+{one.name}|{one.version}")
        for provided in one.provides:
            name, _, bound = provided.partition(" = ")
            lines.append(provided if provided.startswith("/") else f"+{name}|{bound}")
        for need in one.requires:
            words = need.split() if not need.startswith("(") else [need]
            lines.append(f"-{words[0]}|{'|'.join(words[1:] or ['', ''])}")
    return parse_installed("\n".join(lines), "node")
