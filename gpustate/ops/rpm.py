"""The steps that are about packages of dnf and zypper; part of :mod:`gpustate.ops.steps`.

What they call on the node is in :mod:`gpustate.ops.rpmpackages`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpustate.core.step import Step

_q, _words = shlex.quote, shlex.join


def log_command(manager: str) -> str:
    """What shows the end of the manager's log."""
    return f"tail -n 50 {'/var/log/dnf.log' if manager == 'dnf' else '/var/log/zypper.log'}"


def word(manager: str, name: str, version: str) -> str:
    """A package at an exact version, as the manager's command line has it; any version when it is empty."""
    if not version:
        return name
    if manager != "dnf":
        return f"{name}={version}"
    bare, dot, arch = name.partition(".i")
    return f"{bare}-{version}{dot}{arch}"


@dataclass(frozen=True, slots=True)
class RpmUpdate(Step):
    """Read the repodata of one repository.

    Args:
        manager: ``dnf`` or ``zypper``.
        repository: its id.
        roll_back: files that are put back as they were before this run when it cannot be read, for a
            repository that does not work stops every other use of the package manager.
        others: repositories that have never been read: so are these, as far as possible.
    """

    manager: str
    repository: str
    roll_back: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"refresh the package lists of {self.repository}"

    @property
    def command(self) -> str:
        return (
            f"dnf makecache --refresh --repo={_q(self.repository)}"
            if self.manager == "dnf"
            else f"zypper refresh --force {_q(self.repository)}"
        )

    @property
    def inspect(self) -> str:
        return "dnf repolist -v" if self.manager == "dnf" else "zypper repos -d"

    def script(self) -> str:
        name = _q(self.repository)
        if self.manager == "dnf":
            read = (
                f"rpm_dnf --repo={name} clean expire-cache >/dev/null && rpm_dnf --repo={name} "
                f"--setopt={name}.metadata_expire=0 --setopt={name}.skip_if_unavailable=0 makecache"
            )
        else:
            read = f"${{ZYPPER:-zypper}} -n refresh --force {name}"
        if self.others:
            # dnf takes what it has read as it is.
            quick = "--setopt='*.skip_if_unavailable=1' --setopt=timeout=20 --setopt=retries=1"
            more = f"rpm_dnf {quick} makecache"
            if self.manager == "zypper":
                more = f"${{ZYPPER:-zypper}} -n refresh {_words(self.others)}"
            read = f"{{ {more} || echo 'not all could be read'; }} && {read}"
        back = f"roll_back {_words(self.roll_back)}\n" if self.roll_back else ""
        return (
            f"PM={self.manager}\nif rpm_wait && {read}; then effect read; exit 0; fi\n{back}exit 1"
        )


@dataclass(frozen=True, slots=True)
class RpmInstall(Step):
    """Install packages at exact versions in one transaction, wholly or not at all.

    Args:
        manager: ``dnf`` or ``zypper``.
        packages: name and full version; an empty version takes the newest.
        hold: hold them all afterwards.
        remove: packages that leave in the same transaction.
        reinstall: packages whose files are put back even where the version is right.
        roll_back: files that go back with the packages, as they were before this run.
        timeout: seconds; building modules counts.
    """

    manager: str
    packages: tuple[tuple[str, str], ...]
    hold: bool = False
    remove: tuple[str, ...] = ()
    reinstall: bool = False
    roll_back: tuple[str, ...] = ()
    timeout: int = 3600

    @property
    def label(self) -> str:
        return f"install {', '.join(f'{n}={v}' if v else n for n, v in self.packages)}"

    @property
    def timeout_s(self) -> int:
        return self.timeout

    @property
    def command(self) -> str:
        return f"{self.manager} install " + _words(
            word(self.manager, name, version) for name, version in self.packages
        )

    @property
    def inspect(self) -> str:
        return log_command(self.manager)

    def script(self) -> str:
        wanted = " ".join(word(self.manager, name, version) for name, version in self.packages)
        exact = " ".join(
            f"{name}={version}" if version else name for name, version in self.packages
        )
        names = _words(tuple(name for name, _ in self.packages))
        back = f"roll_back {_words(self.roll_back)}"
        can_hold = "rpm_can_hold && " if self.hold else ""
        lines = [
            f"PM={self.manager}; WANT={_q(wanted)}; NAMES={_q(exact)}; GO={_q(' '.join(self.remove))}; "
            f"AGAIN={'1' if self.reinstall else ''}",
            f"rpm_open {names}",
            f"{{ {can_hold}rpm_fetch; }} || {{ {back}; exit 1; }}",
            f'rpm_swap || {{ [ -z "$ROLLED" ] || {back}; exit 1; }}',
        ]
        if self.hold:
            lines.append(f"rpm_hold hold {names}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RpmHold(Step):
    """Hold packages at what is installed, or no longer hold them."""

    manager: str
    packages: tuple[str, ...]
    hold: bool = True

    @property
    def label(self) -> str:
        return f"{'hold' if self.hold else 'release'} {', '.join(self.packages)}"

    @property
    def command(self) -> str:
        return (
            f"dnf versionlock {'add' if self.hold else 'delete'} {_words(self.packages)}"
            if self.manager == "dnf"
            else f"zypper {'addlock' if self.hold else 'removelock'} {_words(self.packages)}"
        )

    @property
    def inspect(self) -> str:
        return "dnf versionlock list" if self.manager == "dnf" else "zypper locks"

    def script(self) -> str:
        how = "hold" if self.hold else "release"
        check = "rpm_can_hold || exit 1\n" if self.hold else ""
        return f"PM={self.manager}\n{check}rpm_hold {how} {_words(self.packages)}; effect {how}"


@dataclass(frozen=True, slots=True)
class RpmRemove(Step):
    """Remove packages that are there; when something else needs one, nothing is removed."""

    manager: str
    packages: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"remove {', '.join(self.packages)}"

    @property
    def timeout_s(self) -> int:
        return 1800

    @property
    def command(self) -> str:
        return f"{self.manager} remove {_words(self.packages)}"

    @property
    def inspect(self) -> str:
        return log_command(self.manager)

    def script(self) -> str:
        names = _words(self.packages)
        return f"PM={self.manager}\nrpm_remove {names} || exit 1\nrpm_hold release {names}"
