"""What the steps about packages of apt, dnf and zypper have in common."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.core.step import Step


def word(manager: str, name: str, version: str) -> str:
    """A package at an exact version, as the manager's command line has it; any version when it is empty."""
    if not version:
        return name
    if manager != "dnf":
        return f"{name}={version}"
    stem, dot, arch = name.partition(".i")
    return f"{stem}-{version}{dot}{arch}"


def apt_words(install: Mapping[str, str], remove: tuple[str, ...]) -> str:
    """A transaction as the words of apt's command line."""
    pairs = (word("apt", *pair) for pair in install.items())
    return shlex.join([*pairs, *(f"{name}-" for name in remove)])


@dataclass(frozen=True, slots=True)
class Install(Step):
    """Install packages at exact versions in one transaction, wholly or not at all.

    Everything is downloaded before anything is unpacked. Where the transaction fails in the middle,
    what was installed before is installed again, and what came is removed.

    Args:
        packages: name and version; an empty version takes what the repositories offer first.
        hold: hold them all afterwards.
        remove: packages that leave in the same transaction.
        reinstall: packages whose files are put back even where the version is right.
        roll_back: files that go back with the packages, as they were before this run.
        timeout: seconds; building modules counts.
        manager: the node's package manager.
    """

    packages: tuple[tuple[str, str], ...]
    hold: bool = False
    remove: tuple[str, ...] = ()
    reinstall: bool = False
    roll_back: tuple[str, ...] = ()
    timeout: int = 3600
    manager: str = "apt"

    @property
    def label(self) -> str:
        return f"install {', '.join(f'{n}={v}' if v else n for n, v in self.packages)}"

    @property
    def along(self) -> tuple[tuple[str, str], ...]:
        if self.remove or self.reinstall:
            return ()
        return tuple((word("", *row), word(self.manager, *row)) for row in self.packages)

    @property
    def takes_along(self) -> bool:
        return bool(self.along)

    @property
    def timeout_s(self) -> int:
        return self.timeout


@dataclass(frozen=True, slots=True)
class Hold(Step):
    """Hold packages at what is installed, or no longer hold them."""

    packages: tuple[str, ...]
    hold: bool = True
    manager: str = "apt"

    @property
    def label(self) -> str:
        return f"{'hold' if self.hold else 'release'} {', '.join(self.packages)}"


@dataclass(frozen=True, slots=True)
class Remove(Step):
    """Remove packages that are there.

    Args:
        packages: their names.
        remnants: with apt, also purge what a run left of others that match this expression, as lines of
            ``dpkg.QUERY_FORMAT``.
        manager: the node's package manager.
    """

    packages: tuple[str, ...]
    remnants: str = ""
    manager: str = "apt"

    @property
    def label(self) -> str:
        return f"remove {', '.join(self.packages)}"

    @property
    def timeout_s(self) -> int:
        return 1800
