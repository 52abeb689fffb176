"""Open bundles, a folder or a tar file, without unpacking them, and verify them."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from gpustate.bundle import manifest as manifests
from gpustate.bundle import upstream
from gpustate.bundle.fetch import SUMS
from gpustate.bundle.manifest import KEY_NAME, NAME, File, Manifest, Repository, Target
from gpustate.bundle.rpmrepository import PRIMARY, SIGNATURE
from gpustate.errors import GpustateError, RefusedError, UsageError
from gpustate.formats import openpgp
from gpustate.solve import packages, repodata, rpmprimary

_FIX = "pass the folder or tar file that `gpustate bundle` wrote"
_CHUNK = 1 << 18
_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open bundle.

    Args:
        path: of the folder or tar file.
        id: hash of its manifest.
        manifest: its manifest.
        key: armored public key that signs its repositories.
        members: offset and size of each file in a tar file; empty for a folder.
    """

    path: str
    id: str
    manifest: Manifest
    key: str
    members: dict[str, tuple[int, int]] = field(repr=False)

    def blocks(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Content of a file from an offset on.

        Raises:
            UsageError: the file is missing.
        """
        yield from _blocks(self.path, self.members, name, start)

    def names(self) -> set[str]:
        """Names of all files."""
        if os.path.isdir(self.path):
            root = Path(self.path)
            return {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}
        return set(self.members)

    def target(self, distribution: str, machine: str) -> Target:
        """The target for a node.

        Raises:
            RefusedError: there is none.
        """
        found = self.manifest.target(distribution, machine)
        if found is None:
            there = ", ".join(one.name for one in self.manifest.targets) or "nothing"
            raise RefusedError(
                f"the bundle {self.path} has no packages for {distribution}-{machine} (available: {there})",
                fix="build one: gpustate bundle POLICY -i INVENTORY --out FILE",
            )
        return found


def load(path: str) -> Bundle:
    """Open a bundle; only its manifest and key are read.

    Raises:
        UsageError: it is not a bundle.
    """
    try:
        seen = os.stat(os.path.join(path, NAME) if os.path.isdir(path) else path)
    except OSError as error:
        raise UsageError(
            f"is not a bundle ({error.strerror})", place=path or "--bundle", fix=_FIX
        ) from error
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise UsageError("is not a bundle (neither folder nor file)", place=path, fix=_FIX)
    return _load(path, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=8)
def _load(path: str, mtime_ns: int, size: int) -> Bundle:
    members = {} if os.path.isdir(path) else _members(path)
    data = b"".join(_blocks(path, members, NAME, 0, _LIMIT))
    try:
        text, key = data.decode("utf-8"), b"".join(_blocks(path, members, KEY_NAME, 0)).decode()
        openpgp.fingerprints(key)
    except ValueError as error:
        raise UsageError(f"is not a bundle ({error})", place=path, fix=_FIX) from None
    found = manifests.from_text(text, f"{path}: {NAME}")
    return Bundle(path, manifests.bundle_id(text), found, key, members)


def _members(path: str) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(path, "r:") as tar:
            return {one.name: (one.offset_data, one.size) for one in tar if one.isfile()}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise UsageError(f"is not a bundle ({error})", place=path, fix=_FIX) from None


def _blocks(
    path: str, members: dict[str, tuple[int, int]], name: str, start: int, limit: int = 1 << 62
) -> Iterator[bytes]:
    folder = os.path.isdir(path)
    if not folder and name not in members:
        raise UsageError(f"is not a bundle: it lacks {name}", place=path, fix=_FIX)
    where = os.path.join(path, name) if folder else path
    try:
        with open(where, "rb") as file:
            offset, size = (0, os.fstat(file.fileno()).st_size) if folder else members[name]
            if size > limit:
                raise UsageError(f"{name} is larger than {limit >> 20} MiB", place=path, fix=_FIX)
            file.seek(offset + start)
            left = size - start
            while left > 0:
                data = file.read(min(_CHUNK, left))
                if not data:
                    return
                left -= len(data)
                yield data
    except OSError as error:
        raise UsageError(f"cannot read {name} ({error.strerror})", place=path, fix=_FIX) from error


def check(bundle: Bundle) -> list[str]:
    """Verify a bundle: problems with hashes, signatures, missing and unknown files, one line each."""
    wrong: list[str] = []
    named = {NAME, KEY_NAME}
    if bundle.manifest.fingerprint not in openpgp.fingerprints(bundle.key):
        wrong.append(f"{KEY_NAME}: not the key {bundle.manifest.fingerprint} of the manifest")
    there = bundle.names()
    for target in bundle.manifest.targets:
        for repository in target.repositories:
            folder = f"{target.name}/{repository.name}"
            named |= {f"{folder}/{file.name}" for file in repository.files}
            before = len(wrong)
            wrong += _wrong_files(bundle, folder, repository.files, there)
            if len(wrong) == before:
                wrong += _wrong_indexes(bundle, folder, repository)
    wrong += [f"{name}: not in the manifest" for name in sorted(there - named)]
    return wrong


def _wrong_files(
    bundle: Bundle, folder: str, files: tuple[File, ...], there: set[str]
) -> Iterator[str]:
    for file in files:
        name = f"{folder}/{file.name}"
        if name not in there:
            yield f"{name}: missing"
            continue
        digest, size = hashlib.sha256(), 0
        for data in bundle.blocks(name):
            digest.update(data)
            size += len(data)
        if size != file.size:
            yield f"{name}: has {size} bytes, the manifest says {file.size}"
        elif digest.hexdigest() != file.sha256:
            yield f"{name}: its hash does not match the manifest"


def _wrong_indexes(bundle: Bundle, folder: str, repository: Repository) -> Iterator[str]:
    """Verify the signature, and that the signed index lists the same packages as the manifest."""
    keys = (bundle.key.encode(),)
    place = upstream.RepositorySource(folder, "/", (), keys, (bundle.manifest.fingerprint,))
    rpm = repository.repomd is not None
    index = f"{folder}/{PRIMARY if rpm else 'Packages'}"
    try:
        listed = _listed_by_repodata(bundle, place) if rpm else _listed_by_packages(bundle, place)
    except GpustateError as error:
        yield str(error)
        return
    if listed is None:
        yield f"{index}: not the signed index"
    elif listed != {(entry.file.name, entry.file.sha256) for entry in repository.entries}:
        yield f"{index}: its packages differ from the manifest"


def _listed_by_packages(
    bundle: Bundle, place: upstream.RepositorySource
) -> set[tuple[str, str]] | None:
    """Files and hashes in the apt index; ``None`` when another index is signed."""
    signed = b"".join(bundle.blocks(f"{place.uri}/InRelease"))
    release, _ = upstream.verify_signature(place, signed, None)
    text = b"".join(bundle.blocks(f"{place.uri}/Packages"))
    if hashlib.sha256(text).hexdigest() not in release:
        return None
    index = upstream.Index(0)
    index.add(text.decode("utf-8", "replace"), place.uri, manifests.Source("", "", "", ""))
    return {
        (one.field("Filename"), one.digest)
        for builds in index.stanzas.values()
        for one in builds
        if isinstance(one, upstream.Stanza)
    }


def _listed_by_repodata(
    bundle: Bundle, place: upstream.RepositorySource
) -> set[tuple[str, str]] | None:
    """The same for rpm repodata; hashes other than SHA-256 are checked and converted."""
    repomd, signature = (
        b"".join(bundle.blocks(f"{place.uri}/{name}")) for name in (manifests.REPOMD, SIGNATURE)
    )
    upstream.verify_signature(place, repomd, signature)
    packed = b"".join(bundle.blocks(f"{place.uri}/{PRIMARY}"))
    primary = repodata.parse_repomd(repomd, f"{place.uri}/{manifests.REPOMD}")["primary"]
    if (primary.href, primary.checksum) != (PRIMARY, hashlib.sha256(packed).hexdigest()):
        return None
    machine = place.uri.partition("/")[0].rpartition("-")[2]
    try:
        text = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        return None
    rows = rpmprimary.parse(
        text,
        packages.Repository(""),
        f"{place.uri}/{PRIMARY}",
        (machine, "noarch"),
    )
    return {(row.href, _as_sha256(bundle, place.uri, row)) for row in rows}


def _as_sha256(bundle: Bundle, folder: str, row: rpmprimary.PrimaryEntry) -> str:
    algorithm = SUMS.get(len(row.digest), "")
    if algorithm in ("", "sha256"):
        return row.digest
    mine, known = hashlib.new(algorithm), hashlib.sha256()
    for data in bundle.blocks(f"{folder}/{row.href}"):
        mine.update(data)
        known.update(data)
    return known.hexdigest() if mine.hexdigest() == row.digest else ""
