"""Steps about packages by the family of the node's package manager: apt, dnf or zypper.

A state that keeps ``facts.package_manager`` among what it observed asks for the step that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpustate.formats.rpm import is_rpm
from gpustate.ops.apt import AptHold, AptInstall, AptRemove
from gpustate.ops.rpm import RpmHold, RpmInstall, RpmRemove
from gpustate.probes.package_files import packages_of


def install(
    manager: str,
    packages: tuple[tuple[str, str], ...],
    *,
    hold: bool = False,
    remove: tuple[str, ...] = (),
    reinstall: bool = False,
    roll_back: tuple[str, ...] = (),
    timeout: int = 3600,
) -> AptInstall | RpmInstall:
    """Install packages at exact versions in one transaction, wholly or not at all.

    Args:
        manager: the node's package manager.
        packages: name and version; an empty version takes what the repositories offer first.
        hold: hold them all afterwards.
        remove: packages that leave in the same transaction.
        reinstall: packages whose files are put back even where the version is right.
        roll_back: files that go back with the packages, as they were before this run.
        timeout: seconds; building modules counts.
    """
    if is_rpm(manager):
        return RpmInstall(manager, packages, hold, remove, reinstall, roll_back, timeout)
    return AptInstall(packages, hold, remove, reinstall, roll_back, timeout)


def reinstall(
    manager: str,
    damaged: Iterable[str],
    there: Mapping[str, str | None],
    wanted: Mapping[str, str | None],
    *,
    hold: bool,
) -> Iterator[AptInstall | RpmInstall]:
    """Yield the step that brings damaged files back, of packages that stay at their version.

    Args:
        manager: the node's package manager.
        damaged: rows of :class:`gpustate.probes.package_files.PackageFiles`.
        there, wanted: name to version; another version brings its own files.
        hold: hold them afterwards.
    """
    again = tuple(
        (name, version)
        for name in packages_of(damaged)
        if (version := there.get(name)) and wanted.get(name) == version
    )
    if again:
        yield install(manager, again, hold=hold, reinstall=True)


def hold(manager: str, packages: tuple[str, ...], *, hold: bool = True) -> AptHold | RpmHold:
    """Hold packages at what is installed, or no longer hold them."""
    return RpmHold(manager, packages, hold) if is_rpm(manager) else AptHold(packages, hold)


def remove(manager: str, packages: tuple[str, ...], *, remnants: str = "") -> AptRemove | RpmRemove:
    """Remove packages with their configuration files, as far as the manager does that.

    Args:
        manager: the node's package manager.
        packages: their names.
        remnants: as for :class:`gpustate.ops.AptRemove`; with rpm there are none.
    """
    return RpmRemove(manager, packages) if is_rpm(manager) else AptRemove(packages, remnants)
