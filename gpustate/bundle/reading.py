"""Open bundles, a folder or a tar file, without unpacking them, and verify them."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from gpustate.bundle import manifest as manifests
from gpustate.bundle.manifest import NAME, File, Manifest, Target
from gpustate.errors import RefusedError, UsageError

_FIX = "pass the folder or tar file that `gpustate image bundle` wrote"
_CHUNK = 1 << 18
_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open bundle.

    Args:
        path: of the folder or tar file.
        id: hash of its manifest.
        manifest: its manifest.
        members: offset and size of each file in a tar file; empty for a folder.
    """

    path: str
    id: str
    manifest: Manifest
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
        target = self.manifest.target(distribution, machine)
        if target is None:
            available = ", ".join(r.name for r in self.manifest.targets) or "nothing"
            raise RefusedError(
                f"the bundle {self.path} has no packages for {distribution}-{machine} (available: {available})",
                fix="build one: gpustate image bundle make POLICY -i INVENTORY --out FILE",
            )
        return target


def load(path: str) -> Bundle:
    """Open a bundle; only its manifest is read.

    Raises:
        UsageError: it is not a bundle.
    """
    try:
        status = os.stat(os.path.join(path, NAME) if os.path.isdir(path) else path)
    except OSError as error:
        raise UsageError(
            f"is not a bundle ({error.strerror})", place=path or "--bundle", fix=_FIX
        ) from error
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise UsageError("is not a bundle (neither folder nor file)", place=path, fix=_FIX)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _load(path: str, mtime_ns: int, size: int) -> Bundle:
    members = {} if os.path.isdir(path) else _members(path)
    data = b"".join(_blocks(path, members, NAME, 0, _LIMIT))
    try:
        text = data.decode("utf-8")
    except ValueError as error:
        raise UsageError(f"is not a bundle ({error})", place=path, fix=_FIX) from None
    manifest = manifests.from_text(text, f"{path}: {NAME}")
    return Bundle(path, manifests.bundle_id(text), manifest, members)


def _members(path: str) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(path, "r:") as tar:
            return {m.name: (m.offset_data, m.size) for m in tar if m.isfile()}
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
            remaining = size - start
            while remaining > 0:
                data = file.read(min(_CHUNK, remaining))
                if not data:
                    return
                remaining -= len(data)
                yield data
    except OSError as error:
        raise UsageError(f"cannot read {name} ({error.strerror})", place=path, fix=_FIX) from error


def check(bundle: Bundle) -> list[str]:
    """Verify a bundle: problems with hashes, missing and unknown files, one line each."""
    wrong: list[str] = []
    named = {NAME}
    present = bundle.names()
    for target in bundle.manifest.targets:
        for repository in target.repositories:
            folder = f"{target.name}/{repository.name}"
            named |= {f"{folder}/{file.name}" for file in repository.files}
            wrong += _wrong_files(bundle, folder, repository.files, present)
    wrong += [f"{name}: not in the manifest" for name in sorted(present - named)]
    return wrong


def _wrong_files(
    bundle: Bundle, folder: str, files: tuple[File, ...], present: set[str]
) -> Iterator[str]:
    for file in files:
        name = f"{folder}/{file.name}"
        if name not in present:
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
