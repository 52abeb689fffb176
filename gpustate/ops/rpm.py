"""Steps about packages of dnf and zypper.

What they call on the node is in :mod:`gpustate.ops.rpmpackages`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpustate.core.step import Step
from gpustate.ops.package_steps import Hold, Install, Remove, word

_q, _words = shlex.quote, shlex.join


def log_command(manager: str) -> str:
    """What shows the end of the manager's log."""
    return f"tail -n 50 {'/var/log/dnf.log' if manager == 'dnf' else '/var/log/zypper.log'}"


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
        roll_back = f"roll_back {_words(self.roll_back)}\n" if self.roll_back else ""
        return f"PM={self.manager}\nif rpm_wait && {read}; then effect read; exit 0; fi\n{roll_back}exit 1"


def transaction(
    manager: str,
    packages: Collection[tuple[str, str]],
    remove: Sequence[str] = (),
    *,
    again: bool = False,
    released: str = "",
) -> str:
    """sh that opens a transaction for ``rpm_fetch`` and ``rpm_swap``.

    Args:
        manager: ``dnf`` or ``zypper``.
        packages: name and version; an empty version takes the newest.
        remove: packages that leave.
        again: put files back even where the version is right.
        released: sh words of further packages whose locks do not count.
    """
    words = " ".join(word(manager, name, version) for name, version in packages)
    exact = " ".join(f"{name}={version}" if version else name for name, version in packages)
    names = _words([*(name for name, _ in packages), *remove])
    return (
        f"PM={manager}; WANT={_q(words)}; NAMES={_q(exact)}; GO={_q(' '.join(remove))}; AGAIN={'1' if again else ''}\n"
        f"rpm_open {names} {released}\n"
    )


class RpmInstall(Install):
    """The same with dnf or zypper."""

    @property
    def command(self) -> str:
        return f"{self.manager} install " + _words(
            word(self.manager, name, version) for name, version in self.packages
        )

    @property
    def inspect(self) -> str:
        return log_command(self.manager)

    def script(self) -> str:
        names = _words(tuple(name for name, _ in self.packages))
        roll_back = f"roll_back {_words(self.roll_back)}"
        can_hold = "rpm_can_hold && " if self.hold else ""
        lines = [
            transaction(self.manager, self.packages, self.remove, again=self.reinstall),
            f"{{ {can_hold}rpm_along rpm_fetch; }} || {{ {roll_back}; exit 1; }}",
            f'rpm_along rpm_swap || {{ [ -z "$ROLLED" ] || {roll_back}; exit 1; }}',
        ]
        if self.along:
            lines = [lines[0], "if came $NAMES; then effect installed; else", *lines[1:], "fi"]
        if self.hold:
            lines.append(f"rpm_hold hold {names}")
        return "\n".join(lines)


class RpmHold(Hold):
    """The same with dnf's versionlock or zypper's locks."""

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


class RpmRemove(Remove):
    """The same with rpm; when something else needs one, nothing is removed."""

    @property
    def command(self) -> str:
        return f"{self.manager} remove {_words(self.packages)}"

    @property
    def inspect(self) -> str:
        return log_command(self.manager)

    def script(self) -> str:
        names = _words(self.packages)
        return f"PM={self.manager}\nrpm_remove {names} || exit 1\nrpm_hold release {names}"
