"""Packages of upstream repositories, deb or rpm, by name and by provided name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.bundle.manifest import Source
from gpustate.solve.packages import Package


class Build(ABC):
    """One build of a package that a repository offers."""

    source: Source

    @property
    @abstractmethod
    def package(self) -> Package | None:
        """Its metadata; ``None`` when they are invalid."""

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the file."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hash of the file, hexadecimal; its length tells the algorithm; empty without one."""

    @property
    @abstractmethod
    def file(self) -> str:
        """File name in a bundle."""

    def verify(self, path: Path) -> Source:
        """Verify the signature of a downloaded file, if it is signed itself, and return its source.

        Raises:
            RefusedError: it is not signed by a key that is pinned to its repository.
        """
        return self.source


@dataclass(slots=True)
class Offers:
    """All packages of one repository for an architecture."""

    date: int
    stanzas: dict[str, list[Build]] = field(default_factory=dict[str, list[Build]])
    provides: dict[str, list[Build]] = field(default_factory=dict[str, list[Build]])

    def add_build(self, name: str, build: Build, provides: Iterable[str]) -> None:
        """Add a build."""
        self.stanzas.setdefault(name, []).append(build)
        for provided in provides:
            self.provides.setdefault(provided, []).append(build)

    def only(self, names: Set[str]) -> Offers:
        """The offers of some packages."""
        stanzas = {name: self.stanzas[name] for name in sorted(names & self.stanzas.keys())}
        mine = {id(build) for builds in stanzas.values() for build in builds}
        provides = {
            provided: found
            for provided, builds in self.provides.items()
            if (found := [build for build in builds if id(build) in mine])
        }
        return Offers(self.date, stanzas, provides)
