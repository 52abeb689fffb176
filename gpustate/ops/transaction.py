"""Asks apt, dnf or zypper whether packages can be installed, and whether there is room, before anything is changed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import FOREIGN_PINS
from gpustate.formats import aptsources, dpkg, package_errors, rpm
from gpustate.ops.package_steps import apt_words, word
from gpustate.ops.rpmpackages import RPM_PACKAGES
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


class Transaction(NamedTuple):
    """What the solver says of a transaction; all empty where it cannot be asked.

    Args:
        problem: what it has against it, in its own words.
        installs: packages that it installs, by name.
        pins: foreign pins against what it cannot install, or against what it installs since other pins
            override them: name, and version if it is a certain one, to the file.
        shortage: the filesystem that has less room than files and downloads need together, if that is known.
    """

    problem: str = ""
    installs: Mapping[str, dpkg.Candidate] = {}
    pins: Mapping[str, str] = {}
    shortage: str = ""

    def overridden_pins(self) -> Iterator[str]:
        """Somebody's pins against what is installed nevertheless."""
        for path in () if self.problem else dict.fromkeys(self.pins.values()):
            packages = ", ".join(package for package, of in self.pins.items() if of == path)
            yield f"pins in {path} forbid {packages}; pins in files that apt reads before override them"


@dataclass(frozen=True, slots=True)
class TransactionQuery(Query[Transaction]):
    """What the solver says of a transaction.

    Args:
        manager: apt, dnf or zypper.
        install: names and versions.
        remove: names.
        preview: sh that adds repositories that are not there yet below ``$T``.
        pin: text of the driver's pin that it is tried with; ``None``: that of the node.
        spares: sh that defines ``spares``, which says what apt would remove and must not.
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
        pin_path = "" if self.pin is None else PIN_PATH
        preview = repository_preview.script(self.preview, pin_path)
        if self.manager == "apt":
            set_words = f"set -- {apt_words(dict(self.install), self.remove)}\n"
            pin = {"PIN": pin_path, "PIN_TEXT": self.pin or ""}
            calls = f"{self.spares or 'spares() { :; }'}\n{FOREIGN_PINS}"
            return f"{preview}\n{set_words}{calls}{shell.load('apt_transaction', _HERE, **pin)}"
        words = " ".join(word(self.manager, *row) for row in self.install)
        names = shlex.join((*(name for name, _ in self.install), *self.remove))
        return (
            preview
            + f"{RPM_PACKAGES}WANT={shlex.quote(words)}; GO={shlex.quote(' '.join(self.remove))}\n"
            + f'RELEASED="{names} $({self.released})"\n'
            + shell.load("rpm_coming", _HERE)
            + shell.load("rpm_transaction", _HERE)
        )

    def parse(self, answer: Answer) -> Transaction:
        if repository_preview.failure(answer.text):
            return Transaction()
        text, _, pins = repository_preview.without_sources(answer).text.partition("=pins\n")
        problem, *rows = re.split(r"^=", text, flags=re.MULTILINE)
        offers = "".join(row for row in rows if row.startswith("offers\n"))
        origins = {
            (name, candidate.version): candidate.origin
            for offered in (dpkg.parse_madison(offers), rpm.parse_search(offers))
            for name, candidates in offered.items()
            for candidate in reversed(candidates)
        }
        installs: dict[str, dpkg.Candidate] = {}
        for row in rows:
            if row.startswith("installs "):
                name, version, *origin = row.split()[1:]
                source = " ".join(origin) or origins.get((name, version), "")
                installs[name] = dpkg.Candidate(version, source)
        problem = package_errors.without_progress(problem).strip()
        named = ((name, candidate.version) for name, candidate in installs.items())
        unmet = {*(_UNMET.findall(problem) if problem else named)}
        forbidden = {
            f"{name} {version}" if (name, version) in unmet else name: path
            for (name, version), path in aptsources.forbidden(pins, overridden=not problem).items()
            if {(name, version), (name, "")} & unmet
        }
        return Transaction(problem, installs, forbidden, _lacking_room(rows))

    def placeholder(self) -> Transaction:
        return Transaction()


def _lacking_room(rows: Sequence[str]) -> str:
    """The filesystem that has less room than files and downloads need together, if that is known."""
    mounts = [row.strip().split(maxsplit=2)[1:] for row in rows if row.startswith("room ")]
    if len(mounts) != 2:
        return ""
    sizes = "".join(row for row in rows if row.startswith("size "))
    needs: dict[str, float] = {}
    for (_, mount), pattern in zip(mounts, (_FILES, _DOWNLOAD), strict=True):
        needs[mount] = needs.get(mount, 0) + _mib(pattern.search(sizes))
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
