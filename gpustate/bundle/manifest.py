"""The manifest of a bundle: what is in it, from where, for whom. Pure.

``manifest.json`` is JSON (``gpustate.bundle/1``, ``schema/bundle.json``), the same bytes for the same
content. The hash of those bytes is the bundle's id: the manifest has the hash of every other file, so
the id stands for all of it. On a node the id is part of the path, so that no two bundles mix.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.errors import UsageError
from gpustate.formats import strict_json
from gpustate.formats.masking import masked_data
from gpustate.formats.words import kind_of, named, shown

FORMAT = "gpustate.bundle/1"
NAME = "manifest.json"
KEY_NAME = "key.asc"
#: Repositories that a bundle may have: the names of the states that use them, and the rest.
DRIVER, TOOLKIT, BASE = "driver-repository", "toolkit-repository", "base"
LICENCE = (
    "The packages keep the licences of their owners. NVIDIA's driver, CUDA and DCGM packages are under "
    "NVIDIA's own terms: whether this file may be given to others is for whoever made it to see to."
)
_FIX = "make the bundle again"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~^_-]*")
_FILE = re.compile(r"(?:repodata/)?[0-9A-Za-z][0-9A-Za-z.+~^_%-]*")
#: What a repository of rpm packages begins with.
REPOMD = "repodata/repomd.xml"


@dataclass(frozen=True, slots=True, order=True)
class File:
    """A file of a repository, by its name in that repository's folder."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Where packages came from.

    Args:
        origin, suite, component, site: as a Release file and an address have them.
        signed_by: fingerprints of the keys whose signature was checked.
    """

    origin: str
    suite: str
    component: str
    site: str
    signed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One package.

    Args:
        name, version, architecture: as in the index.
        file: in the repository's folder.
        source: where it came from.
    """

    name: str
    version: str
    architecture: str
    file: File
    source: Source


@dataclass(frozen=True, slots=True)
class Repository:
    """One flat repository: its packages, and the files that describe them to apt, dnf or zypper."""

    name: str
    entries: tuple[Entry, ...]
    indexes: tuple[File, ...]

    @property
    def repomd(self) -> File | None:
        """The file that a repository of rpm packages is known by; ``None`` where it is apt's."""
        return next((one for one in self.indexes if one.name == REPOMD), None)

    @property
    def files(self) -> tuple[File, ...]:
        """Every file, by name."""
        return tuple(sorted((*self.indexes, *(entry.file for entry in self.entries))))


@dataclass(frozen=True, slots=True)
class Target:
    """What one distribution on one architecture gets.

    Args:
        distribution: as NVIDIA writes it: ``debian12``.
        machine: ``x86_64``.
        kernels: releases that headers or modules are in it for.
        asked: by state, the packages it was made for, as ``name=version``.
        repositories: by name.
    """

    distribution: str
    machine: str
    kernels: tuple[str, ...] = ()
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    repositories: tuple[Repository, ...] = ()

    @property
    def name(self) -> str:
        """Also its folder."""
        return f"{self.distribution}-{self.machine}"

    @property
    def rpm(self) -> bool:
        """Its packages are rpm packages."""
        return any(one.repomd is not None for one in self.repositories)

    def repository(self, name: str) -> Repository | None:
        """One of its repositories."""
        return next((one for one in self.repositories if one.name == name), None)

    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions of every package, by name."""
        found: dict[str, list[str]] = {}
        for repository in self.repositories:
            for entry in repository.entries:
                found.setdefault(entry.name, []).append(entry.version)
        return {name: tuple(versions) for name, versions in found.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole.

    Args:
        date: of the newest index that went in, in seconds; nothing of a clock is in a bundle.
        fingerprint: of the key that signs the repositories.
        targets: by distribution and architecture.
    """

    date: int
    fingerprint: str
    targets: tuple[Target, ...]

    def target(self, distribution: str, machine: str) -> Target | None:
        """What is there for a node."""
        wanted = (distribution, machine)
        return next((t for t in self.targets if (t.distribution, t.machine) == wanted), None)


def to_text(manifest: Manifest) -> str:
    """The file: the same bytes for the same content."""
    entries = [e for t in manifest.targets for r in t.repositories for e in r.entries]
    sources = sorted({entry.source for entry in entries})
    data = {
        "format": FORMAT,
        "date": manifest.date,
        "key": manifest.fingerprint,
        "licence": LICENCE,
        "sources": [
            {
                "origin": one.origin,
                "suite": one.suite,
                "component": one.component,
                "site": one.site,
                "signed_by": list(one.signed_by),
            }
            for one in sources
        ],
        "targets": [
            _target_data(one, sources) for one in sorted(manifest.targets, key=lambda t: t.name)
        ],
    }
    return json.dumps(masked_data(data), indent=1, ensure_ascii=True) + "\n"


def _target_data(target: Target, sources: list[Source]) -> dict[str, Any]:
    return {
        "distribution": target.distribution,
        "machine": target.machine,
        "kernels": sorted(target.kernels),
        "asked": {state: sorted(target.asked[state]) for state in sorted(target.asked)},
        "repositories": [
            {
                "name": repository.name,
                "indexes": [_file_data(one) for one in sorted(repository.indexes)],
                "packages": [
                    {
                        "name": entry.name,
                        "version": entry.version,
                        "architecture": entry.architecture,
                        "source": sources.index(entry.source),
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


def _file_data(file: File) -> dict[str, Any]:
    return {"name": file.name, "sha256": file.sha256, "size": file.size}


def id_of(text: str) -> str:
    """The bundle's id: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def from_text(text: str, place: str) -> Manifest:
    """Read a manifest.

    Raises:
        UsageError: it is none, with the key that is wrong.
    """
    top = _Part(strict_json.read(text, place, UsageError, said="is no manifest", fix=_FIX), place)
    found = top.get("format", str)
    if found != FORMAT:
        raise UsageError(f"format is {shown(found)}, wanted {FORMAT}", place=place, fix=_FIX)
    sources = [
        Source(
            part.get("origin", str),
            part.get("suite", str),
            part.get("component", str),
            part.get("site", str),
            part.words("signed_by"),
        )
        for part in top.parts("sources")
    ]
    targets = tuple(_target(part, sources) for part in top.parts("targets"))
    if len({target.name for target in targets}) != len(targets):
        raise top.fail("targets", "has one twice")
    fingerprint = top.get("key", str)
    if not re.fullmatch(r"[0-9A-F]{40}", fingerprint):
        raise top.fail("key", f"is {shown(fingerprint)}, wanted 40 hexadecimal digits")
    return Manifest(top.number("date"), fingerprint, targets)


@dataclass(frozen=True, slots=True)
class _Part:
    """An object of the file, and the way to it."""

    data: Any
    place: str
    path: str = ""

    def fail(self, key: str, message: str) -> UsageError:
        where = f"{self.path}.{key}" if self.path and key else self.path or key or "the file"
        return UsageError(f"{where}: {message}", place=self.place, fix=_FIX)

    def get(self, key: str, kind: type) -> Any:
        if not isinstance(self.data, dict):
            raise self.fail("", f"is {kind_of(self.data)}, wanted a mapping")
        if key not in self.data:
            raise self.fail(key, "is not there")
        value = self.data[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = {str: "a string", int: "a number", list: "a list", dict: "a mapping"}
            raise self.fail(key, f"is {kind_of(value)}, wanted {wanted[kind]}")
        return value

    def number(self, key: str) -> int:
        value: int = self.get(key, int)
        if not 0 <= value < 1 << 53:
            raise self.fail(key, f"is {value}, wanted a number from 0")
        return value

    def word(self, key: str, pattern: re.Pattern[str] = _WORD) -> str:
        value: str = self.get(key, str)
        if not pattern.fullmatch(value):
            raise self.fail(key, f"is {shown(value)}, wanted a plain word")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        rows = self.get(key, list)
        for row in rows:
            if not isinstance(row, str):
                raise self.fail(key, f"has {kind_of(row)}, wanted strings")
        return tuple(rows)

    def parts(self, key: str) -> Iterable[_Part]:
        above = f"{self.path}.{key}" if self.path else key
        return [
            _Part(row, self.place, f"{above}[{n}]") for n, row in enumerate(self.get(key, list))
        ]

    def file(self, key: str) -> File:
        sha256 = self.word("sha256", _SHA256)
        # What is written below a folder of ours may not lead out of it.
        return File(self.word(key, _FILE), sha256, self.number("size"))


def _target(part: _Part, sources: list[Source]) -> Target:
    asked = part.get("asked", dict)
    inner = _Part(asked, part.place, f"{part.path}.asked")
    repositories = tuple(_repository(one, sources) for one in part.parts("repositories"))
    if len({one.name for one in repositories}) != len(repositories):
        raise part.fail("repositories", "has one twice")
    return Target(
        part.word("distribution"),
        part.word("machine"),
        part.words("kernels"),
        {state: inner.words(state) for state in asked},
        repositories,
    )


def _repository(part: _Part, sources: list[Source]) -> Repository:
    kind = part.get("name", str)
    if kind not in (DRIVER, TOOLKIT, BASE):
        raise part.fail("name", f"is {named(kind)}, wanted {DRIVER}, {TOOLKIT} or {BASE}")
    entries: list[Entry] = []
    for row in part.parts("packages"):
        number = row.number("source")
        if number >= len(sources):
            raise row.fail("source", f"is {number}, and there is no such source")
        name, version, architecture = (row.word(k) for k in ("name", "version", "architecture"))
        entries.append(Entry(name, version, architecture, row.file("file"), sources[number]))
    made = Repository(
        kind, tuple(entries), tuple(row.file("name") for row in part.parts("indexes"))
    )
    if len({file.name for file in made.files}) != len(made.files):
        raise part.fail("packages", "has a file twice")
    return made
