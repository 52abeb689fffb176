"""What repositories offer, whatever kind they are: builds of packages, by name and by what they stand in for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
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
        """What it says of itself; ``None`` when that is no package."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the file is."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Hash of the file in hexadecimal digits, whose number tells the algorithm; empty without one."""

    @property
    @abstractmethod
    def file(self) -> str:
        """Name that the file has in a bundle."""

    def verify(self, path: Path) -> Source:
        """Where a fetched file is from, once whatever of it is signed was checked.

        Raises:
            RefusedError: it is not signed by a key that is pinned to its repository.
        """
        return self.source


@dataclass(slots=True)
class Offers:
    """Everything one repository offers for an architecture."""

    date: int
    stanzas: dict[str, list[Build]] = field(default_factory=dict[str, list[Build]])
    provides: dict[str, list[Build]] = field(default_factory=dict[str, list[Build]])

    def add_build(self, name: str, build: Build, provides: Iterable[str]) -> None:
        """Take a build in."""
        self.stanzas.setdefault(name, []).append(build)
        for provided in provides:
            self.provides.setdefault(provided, []).append(build)
