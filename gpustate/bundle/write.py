"""Write a bundle: the packages that nodes have fetched, with indexes, as a folder or tar file.

The result is reproducible: names are sorted, and there is no timestamp. It is written atomically.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpustate.bundle.indexes import FetchedPackage, build_indexes
from gpustate.bundle.manifest import (
    BASE,
    NAME,
    Entry,
    File,
    Manifest,
    Repository,
    Target,
    bundle_id,
    to_text,
)
from gpustate.errors import UsageError

#: Content of a file: bytes, or a file.
Content = bytes | Path


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the packages of a repository of the policy come from.

    Args:
        source: its address, or its id for dnf and zypper; empty for the distribution's archive.
        names: of the packages that come from there and nowhere else, for apt.
    """

    source: str
    names: frozenset[str] = frozenset()

    def has(self, name: str, source: str) -> bool:
        """Whether a package from a source is of this repository."""
        return self.source in source if self.source else name in self.names

    def accepts(self, package: FetchedPackage) -> bool:
        """Whether a package goes into this repository of the bundle."""
        return package.identity[0] in self.names or self.has("", package.source)


@dataclass(frozen=True, slots=True)
class Selection:
    """The packages of one target.

    Args:
        distribution, machine, kernels, asked: as in :class:`~gpustate.bundle.manifest.Target`.
        packages: all of them.
        origins: repositories of states, by name.
    """

    distribution: str
    machine: str
    kernels: tuple[str, ...]
    requested: Mapping[str, tuple[str, ...]]
    packages: Sequence[FetchedPackage]
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])


@dataclass(slots=True)
class PreparedBundle:
    """A bundle that is ready to be written.

    Args:
        manifest: its manifest.
        contents: files by path in the bundle.
    """

    manifest: Manifest
    contents: dict[str, Content] = field(default_factory=dict[str, Content])

    @property
    def text(self) -> str:
        """Text of the manifest."""
        return to_text(self.manifest)

    @property
    def id(self) -> str:
        """Id of the bundle."""
        return bundle_id(self.text)


def prepare(chosen: Sequence[Selection]) -> PreparedBundle:
    """Build the indexes and the manifest."""
    contents: dict[str, Content] = {}
    targets = sorted((_target(s, contents) for s in chosen), key=lambda s: s.name)
    bundle = PreparedBundle(Manifest(tuple(targets)), contents)
    contents[NAME] = bundle.text.encode()
    return bundle


def _target(selection: Selection, contents: dict[str, Content]) -> Target:
    target = Target(
        selection.distribution, selection.machine, selection.kernels, selection.requested
    )
    repositories: list[Repository] = []
    by_name: dict[str, list[FetchedPackage]] = {}
    for package in selection.packages:
        takers = (name for name, origin in selection.origins.items() if origin.accepts(package))
        by_name.setdefault(next(takers, BASE), []).append(package)
    for name, packages in sorted(by_name.items()):
        folder = f"{target.name}/{name}"
        entries = [Entry(*row.identity, row.file, row.source) for row in packages]
        contents.update({f"{folder}/{row.file.name}": row.path for row in packages})
        indexes = build_indexes(packages, target.name)
        contents.update({f"{folder}/{file}": data for file, data in indexes.items()})
        files = tuple(_file(file, data) for file, data in sorted(indexes.items()))
        repositories.append(Repository(name, tuple(sorted(entries, key=lambda e: e.file)), files))
    return replace(target, repositories=tuple(repositories))


def _file(name: str, data: bytes) -> File:
    return File(name, hashlib.sha256(data).hexdigest(), len(data))


def write(bundle: PreparedBundle, out: Path) -> None:
    """Write a bundle as a tar file where the name ends in ``.tar``, else as a folder.

    Raises:
        UsageError: it cannot be written.
    """
    fresh = out.with_name(f".{out.name}.new")
    try:
        _remove(fresh)
        if out.suffix == ".tar":
            _tar(bundle, fresh)
            os.replace(fresh, out)
        else:
            _check_folder(out)
            _folder(bundle, fresh)
            _remove(out)
            os.replace(fresh, out)
    except OSError as error:
        _remove(fresh)
        raise UsageError(
            f"cannot write ({error.strerror or error})",
            place=str(out),
            fix="free disk space, or set another path with --out",
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_folder(out: Path) -> None:
    if out.exists() and not ((out / NAME).is_file() or (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(
            "exists and is not a bundle", place=str(out), fix="set a new folder with --out"
        )


def _members(bundle: PreparedBundle) -> Iterator[tuple[str, Content]]:
    # The manifest is first, so that readers of a tar find it at once.
    yield NAME, bundle.contents[NAME]
    yield from sorted((name, data) for name, data in bundle.contents.items() if name != NAME)


def _tar(bundle: PreparedBundle, path: Path) -> None:
    with tarfile.open(path, "w:", format=tarfile.GNU_FORMAT) as tar:
        for name, data in _members(bundle):
            info = tarfile.TarInfo(name)
            info.mode = 0o644
            if isinstance(data, bytes):
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                continue
            with open(data, "rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)


def _folder(bundle: PreparedBundle, path: Path) -> None:
    for name, data in _members(bundle):
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, bytes):
            target.write_bytes(data)
        else:
            shutil.copyfile(data, target)
