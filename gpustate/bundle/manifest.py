"""The manifest of a bundle: its packages, their sources, its targets. Pure.

``manifest.json`` is JSON (``gpustate.bundle/3``, ``schema/bundle.json``), the same bytes for the same
content. The hash of those bytes is the bundle's id. The manifest has the hash of every other file, so the
id identifies the whole bundle. On a node the id is part of the path, so that bundles never mix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpustate.documents import JsonView
from gpustate.errors import UsageError
from gpustate.formats import schemas, strict_json
from gpustate.formats.masking import mask_data

FORMAT = "gpustate.bundle/3"
NAME = "manifest.json"
#: Repositories of a bundle are named after the states that use them; the rest is in this one.
BASE = "base"
LICENCE = (
    "The packages keep the licences of their owners. NVIDIA's driver, CUDA and DCGM packages are under "
    "NVIDIA's own terms: whoever distributes this file is responsible for complying with them."
)
_FIX = "build the bundle again"
#: The index of a repository of rpm packages.
REPOMD = "repodata/repomd.xml"


@dataclass(frozen=True, slots=True, order=True)
class File:
    """A file of a repository; its name is relative to the repository's folder."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One package.

    Args:
        name, version, architecture: as in the index.
        file: its file.
        source: address, or id, of the repository that the node fetched it from.
    """

    name: str
    version: str
    architecture: str
    file: File
    source: str


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository: its packages, and the index files for apt, dnf or zypper."""

    name: str
    entries: tuple[Entry, ...]
    indexes: tuple[File, ...]

    @property
    def repomd(self) -> File | None:
        """``repomd.xml`` of a repository of rpm packages; ``None`` for apt."""
        return next((index for index in self.indexes if index.name == REPOMD), None)

    @property
    def files(self) -> tuple[File, ...]:
        """All files, sorted by name."""
        return tuple(sorted((*self.indexes, *(entry.file for entry in self.entries))))


@dataclass(frozen=True, slots=True)
class Target:
    """The packages for one distribution on one architecture.

    Args:
        distribution: as NVIDIA writes it: ``debian12``.
        machine: ``x86_64``.
        kernels: releases with headers or modules in the bundle.
        requested: by state, the packages it was built for, as ``name=version``.
        repositories: by name.
    """

    distribution: str
    machine: str
    kernels: tuple[str, ...] = ()
    requested: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    repositories: tuple[Repository, ...] = ()

    @property
    def name(self) -> str:
        """Name, and name of its folder."""
        return f"{self.distribution}-{self.machine}"

    @property
    def rpm(self) -> bool:
        """Whether its packages are rpm packages."""
        return any(repository.repomd is not None for repository in self.repositories)

    def repository(self, name: str) -> Repository | None:
        """A repository by name."""
        return next((r for r in self.repositories if r.name == name), None)

    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions by package name."""
        versions_by_name: dict[str, list[str]] = {}
        for repository in self.repositories:
            for entry in repository.entries:
                versions_by_name.setdefault(entry.name, []).append(entry.version)
        return {name: tuple(versions) for name, versions in versions_by_name.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole manifest.

    Args:
        targets: by distribution and architecture.
    """

    targets: tuple[Target, ...]

    def target(self, distribution: str, machine: str) -> Target | None:
        """The target for a node; ``None`` if there is none."""
        platform = (distribution, machine)
        return next((t for t in self.targets if (t.distribution, t.machine) == platform), None)


def to_text(manifest: Manifest) -> str:
    """Format a manifest: the same bytes for the same content."""
    data = {
        "format": FORMAT,
        "licence": LICENCE,
        "targets": [_target_data(t) for t in sorted(manifest.targets, key=lambda t: t.name)],
    }
    return json.dumps(mask_data(data), indent=1, ensure_ascii=True) + "\n"


def _target_data(target: Target) -> dict[str, object]:
    return {
        "distribution": target.distribution,
        "machine": target.machine,
        "kernels": sorted(target.kernels),
        "asked": {state: sorted(target.requested[state]) for state in sorted(target.requested)},
        "repositories": [
            {
                "name": repository.name,
                "indexes": [_file_data(index) for index in sorted(repository.indexes)],
                "packages": [
                    {
                        "name": entry.name,
                        "version": entry.version,
                        "architecture": entry.architecture,
                        "source": entry.source,
                        **{
                            ("file" if k == "name" else k): v
                            for k, v in _file_data(entry.file).items()
                        },
                    }
                    for entry in sorted(repository.entries, key=lambda e: e.file)
                ],
            }
            for repository in sorted(target.repositories, key=lambda r: r.name)
        ],
    }


def _file_data(file: File) -> dict[str, object]:
    return {"name": file.name, "sha256": file.sha256, "size": file.size}


def bundle_id(text: str) -> str:
    """The id of a bundle: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def from_text(text: str, place: str) -> Manifest:
    """Read a manifest.

    Raises:
        UsageError: it is not a manifest, or does not fit its schema.
    """
    data = strict_json.read(text, place, UsageError, problem="is not a manifest", fix=_FIX)
    schemas.check_format(data, FORMAT, place=place, error=UsageError, fix=_FIX)
    schemas.check(data, "gpustate.bundle", "bundle.json", place=place, error=UsageError, fix=_FIX)

    def fail(path: str, message: str) -> UsageError:
        return UsageError(f"{path}: {message}", place=place, fix=_FIX)

    targets: list[Target] = []
    for number, row in enumerate(data["targets"]):
        path = f"targets[{number}].repositories"
        repositories = tuple(
            _repository(r, f"{path}[{n}]", fail) for n, r in enumerate(row["repositories"])
        )
        if len({repository.name for repository in repositories}) != len(repositories):
            raise fail(path, "has a duplicate")
        requested = {state: tuple(names) for state, names in row["asked"].items()}
        target = Target(
            row["distribution"], row["machine"], tuple(row["kernels"]), requested, repositories
        )
        targets.append(target)
    if len({target.name for target in targets}) != len(targets):
        raise fail("targets", "has a duplicate")
    return Manifest(tuple(targets))


def _repository(row: JsonView, path: str, fail: Callable[[str, str], UsageError]) -> Repository:
    entries = tuple(
        Entry(
            package_row["name"],
            package_row["version"],
            package_row["architecture"],
            File(package_row["file"], package_row["sha256"], int(package_row["size"])),
            package_row["source"],
        )
        for package_row in row["packages"]
    )
    indexes = tuple(File(r["name"], r["sha256"], int(r["size"])) for r in row["indexes"])
    repository = Repository(row["name"], entries, indexes)
    if len({file.name for file in repository.files}) != len(repository.files):
        raise fail(f"{path}.packages", "has a duplicate file")
    return repository
