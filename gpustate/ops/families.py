"""Steps about packages by the family of the node's package manager: apt, dnf or zypper.

A state that keeps ``facts.package_manager`` among what it observed asks for the step that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpustate.formats.rpm import is_rpm
from gpustate.ops.apt import AptHold, AptInstall, AptRemove
from gpustate.ops.package_steps import Hold, Install, Remove
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
) -> Install:
    """The step of :class:`gpustate.ops.package_steps.Install` for a package manager."""
    kind = RpmInstall if is_rpm(manager) else AptInstall
    return kind(packages, hold, remove, reinstall, roll_back, timeout, manager)


def reinstall(
    manager: str,
    damaged: Iterable[str],
    installed: Mapping[str, str | None],
    versions: Mapping[str, str | None],
    *,
    hold: bool,
) -> Iterator[Install]:
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
        if (version := installed.get(name)) and versions.get(name) == version
    )
    if again:
        yield install(manager, again, hold=hold, reinstall=True)


def hold(manager: str, packages: tuple[str, ...], *, hold: bool = True) -> Hold:
    """Hold packages at what is installed, or no longer hold them."""
    return (RpmHold if is_rpm(manager) else AptHold)(packages, hold, manager)


def remove(manager: str, packages: tuple[str, ...], *, remnants: str = "") -> Remove:
    """Remove packages with their configuration files, as far as the manager does that."""
    return (RpmRemove if is_rpm(manager) else AptRemove)(packages, remnants, manager)
