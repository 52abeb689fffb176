"""Asks apt, dnf or zypper whether packages can be installed, and whether there is room, before anything is changed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import FOREIGN_PINS
from gpustate.formats import aptsources, dpkg, package_errors, rpm
from gpustate.ops.package_steps import apt_words, word
from gpustate.ops.rpmpackages import RPM_PACKAGES
from gpustate.ops.upload import RPM_REPOS
from gpustate.probes import repository_preview

#: The pin of the driver; its name sorts before that of the repository's pins, for the first one that fits a version decides.
PIN_PATH = "/etc/apt/preferences.d/gpustate-driver"
_HERE = "gpustate.ops"
_SIZE = r'"?([\d.,]+) ?([kKMGT]?)'
_DOWNLOAD = re.compile(rf"(?:Need to get|Total download size:|download-size=) ?{_SIZE}")
#: What comes beside what leaves; dnf 4 says it where nothing leaves.
_FILES = re.compile(
    rf"After this operation, {_SIZE}B of additional|(?:Installed size: |space-usage-diff=){_SIZE}"
)
#: A package that another one depends on, and its version.
_UNMET = re.compile(r"Depends:? (\S+)(?: \(= ([^)]+)\))?")
_MIB = {"": 1 / 2**20, "K": 1 / 2**10, "M": 1, "G": 2**10, "T": 2**20}


@dataclass(frozen=True, slots=True)
class TransactionQuery(Query[tuple[str, dict[str, dpkg.Candidate], dict[str, str]]]):
    """What the solver has against a transaction, in its own words; packages that it installs, by name; and foreign pins.

    The pins are those of what it cannot install, or against what it installs since gpustate's pins override
    them: name, and version if it is a certain one, to the file. All are empty where the solver has nothing, or cannot be asked.

    Args:
        manager: apt, dnf or zypper.
        install: names and versions.
        remove: names.
        preview: sh that adds repositories that are not there yet below ``$T``.
        pin: text of the driver's pin that it is tried with; ``None``: that of the node.
        spares: sh that defines ``spares``, which says what apt would remove and must not; empty: pins are not read either.
        released: sh of a program that prints the names of packages whose locks do not count, beside those of these.
    """

    manager: str
    install: tuple[tuple[str, str], ...]
    remove: tuple[str, ...]
    preview: str = ""
    pin: str | None = None
    spares: str = ""
    released: str = ":"

    def script(self) -> str:
        own = "" if self.pin is None else PIN_PATH
        preview = repository_preview.script(self.preview, own)
        if self.manager == "apt":
            set_words = f"set -- {apt_words(dict(self.install), self.remove)}\n"
            pin = {"PIN": own, "PIN_TEXT": self.pin or ""}
            calls = "spares() { :; }\npins_of() { :; }\n"
            if self.spares:
                calls = f"{self.spares}{FOREIGN_PINS}"
            return f"{preview}\n{set_words}{calls}{shell.load('apt_transaction', _HERE, **pin)}"
        words = " ".join(word(self.manager, *row) for row in self.install)
        names = shlex.join((*(name for name, _ in self.install), *self.remove))
        return (
            preview
            + f"{RPM_PACKAGES}WANT={shlex.quote(words)}; GO={shlex.quote(' '.join(self.remove))}; BUNDLE={RPM_REPOS}\n"
            + f'RELEASED="{names} $({self.released})"\n'
            + shell.load("rpm_coming", _HERE)
            + shell.load("rpm_transaction", _HERE)
        )

    def parse(self, answer: Answer) -> tuple[str, dict[str, dpkg.Candidate], dict[str, str]]:
        problem, rows, pins = _parts(answer)
        offers = "".join(row for row in rows if row.startswith("offers\n"))
        origins = {
            (name, candidate.version): candidate.origin
            for found in (dpkg.parse_madison(offers), rpm.parse_search(offers))
            for name, candidates in found.items()
            for candidate in reversed(candidates)
        }
        installs: dict[str, dpkg.Candidate] = {}
        for row in rows:
            if row.startswith("installs "):
                name, version, *origin = row.split()[1:]
                source = "".join(origin) or origins.get((name, version), "")
                installs[name] = dpkg.Candidate(version, source)
        problem = package_errors.without_progress(problem).strip()
        named = ((name, candidate.version) for name, candidate in installs.items())
        wanted = {*(_UNMET.findall(problem) if problem else named)}
        forbidden = {
            f"{name} {version}" if (name, version) in wanted else name: path
            for (name, version), path in aptsources.forbidden(pins).items()
            if {(name, version), (name, "")} & wanted
        }
        return problem, installs, forbidden

    def placeholder(self) -> tuple[str, dict[str, dpkg.Candidate], dict[str, str]]:
        return "", {}, {}


@dataclass(frozen=True, slots=True)
class RoomQuery(Query[str]):
    """The filesystem that has less room than files and downloads of a transaction need together; empty where that is not known."""

    transaction: TransactionQuery

    def script(self) -> str:
        return self.transaction.script()

    def parse(self, answer: Answer) -> str:
        return _lacking_room(_parts(answer)[1])

    def placeholder(self) -> str:
        return ""


def _parts(answer: Answer) -> tuple[str, list[str], str]:
    """What the solver says, rows, and foreign pins."""
    if repository_preview.failure(answer.text):
        return "", [], ""
    text, _, pins = repository_preview.without_sources(answer).text.partition("=pins\n")
    problem, *rows = re.split(r"^=", text, flags=re.MULTILINE)
    return problem, rows, pins


def _lacking_room(rows: Sequence[str]) -> str:
    """The filesystem that has less room than files and downloads need together, if that is known."""
    mounts = [row.strip().split(maxsplit=2)[1:] for row in rows if row.startswith("room ")]
    if len(mounts) != 2:
        return ""
    said = "".join(row for row in rows if row.startswith("size "))
    needs: dict[str, float] = {}
    for (_, mount), pattern in zip(mounts, (_FILES, _DOWNLOAD), strict=True):
        needs[mount] = needs.get(mount, 0) + _mib(pattern.search(said))
    return next(
        (
            f"{mount} has {int(kib) // 1024} MiB free, and the packages need {math.ceil(needs[mount])} MiB"
            for kib, mount in mounts
            if int(kib) / 1024 < needs[mount]
        ),
        "",
    )


def _mib(size: re.Match[str] | None) -> float:
    number, unit = [group for group in size.groups() if group is not None] if size else ("0", "")
    return float(number.replace(",", "")) * _MIB[unit.upper()]
