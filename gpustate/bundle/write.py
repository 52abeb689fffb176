"""Write a bundle: download its packages, build its indexes, write a folder or tar file.

The same packages give the same bytes: names are sorted, and the only time in it is that
of the newest upstream index. It is written atomically.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

from gpustate.bundle import fetch, rpmrepository
from gpustate.bundle.closure import package_of
from gpustate.bundle.manifest import (
    NAME,
    Entry,
    File,
    Manifest,
    Repository,
    Target,
    bundle_id,
    to_text,
)
from gpustate.bundle.offers import Build
from gpustate.bundle.rpmupstream import RpmBuild
from gpustate.bundle.upstream import Stanza
from gpustate.errors import RefusedError, UsageError
from gpustate.solve.packages import Package

#: Content of a file: bytes, or a file in the cache.
Content = bytes | Path


@dataclass(frozen=True, slots=True)
class Selection:
    """The packages of one target, before they are downloaded.

    Args:
        distribution, machine, kernels, asked: as in :class:`~gpustate.bundle.manifest.Target`.
        stanzas: by repository.
        date: of the newest index.
    """

    distribution: str
    machine: str
    kernels: tuple[str, ...]
    asked: Mapping[str, tuple[str, ...]]
    stanzas: Mapping[str, Sequence[Build]]
    date: int


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


def prepare(
    chosen: Sequence[Selection], cache: Path, say: fetch.Say = lambda _: None
) -> PreparedBundle:
    """Download all packages and build the indexes.

    Raises:
        ConnectionFailed, RefusedError, UsageError: a package is unavailable or not verified.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create the folder ({error.strerror})", place=str(cache)
        ) from error
    contents: dict[str, Content] = {}
    targets = [_target(one, cache, say, contents) for one in chosen]
    date = max((one.date for one in chosen), default=0)
    targets.sort(key=lambda one: one.name)
    bundle = PreparedBundle(Manifest(date, tuple(targets)), contents)
    contents[NAME] = bundle.text.encode()
    return bundle


def _target(one: Selection, cache: Path, say: fetch.Say, contents: dict[str, Content]) -> Target:
    target = Target(one.distribution, one.machine, one.kernels, one.asked)
    repositories: list[Repository] = []
    for name, builds in sorted(one.stanzas.items()):
        folder = f"{target.name}/{name}"
        entries: list[Entry] = []
        for build in builds:
            package = _checked(build)
            path = fetch.fetch_file(build.url, build.digest, package.size, cache, say)
            source = build.verify(path)
            file = File(build.file, _sha256(path, build.digest), package.size)
            architecture = package.architecture or "all"
            entries.append(Entry(package.name, package.version, architecture, file, source))
            contents[f"{folder}/{file.name}"] = path
        indexes = _indexes(builds, target.name, one.date)
        contents.update({f"{folder}/{file}": data for file, data in indexes.items()})
        files = tuple(_file(file, data) for file, data in sorted(indexes.items()))
        repositories.append(Repository(name, tuple(sorted(entries, key=lambda e: e.file)), files))
    return Target(one.distribution, one.machine, one.kernels, one.asked, tuple(repositories))


def _checked(build: Build) -> Package:
    package = package_of(build)
    if not build.digest or not package.size:
        raise RefusedError(
            f"{build.source.site}: its index has no SHA256 or size for {package.name}",
            fix="use a repository that has them: a bundle takes verified packages only",
        )
    return package


def _sha256(path: Path, digest: str) -> str:
    if fetch.SUMS[len(digest)] == "sha256":
        return digest
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _indexes(builds: Sequence[Build], label: str, date: int) -> dict[str, bytes]:
    rpms = [build for build in builds if isinstance(build, RpmBuild)]
    if rpms:
        return rpmrepository.build_indexes(rpms, date)
    rows = [_indexed(build) for build in builds if isinstance(build, Stanza)]
    packages = "".join(sorted(rows)).encode()
    release = (
        "Origin: gpustate bundle\n"
        f"Label: gpustate bundle {label}\n"
        f"Date: {formatdate(date, usegmt=True)}\n"
        "SHA256:\n"
        f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    )
    return {"Release": release.encode(), "Packages": packages}


def _indexed(stanza: Stanza) -> str:
    text = re.sub(r"^Filename:.*\n?", "", stanza.text, flags=re.MULTILINE).rstrip("\n")
    return f"{text}\nFilename: {stanza.file}\n\n"


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
            fix="free disk space, or set another path with --out; downloads are kept",
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
            info.mtime, info.mode = bundle.manifest.date, 0o644
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
        os.utime(target, (bundle.manifest.date, bundle.manifest.date))
