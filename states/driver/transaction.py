"""Asks apt, dnf or zypper whether a set of packages can be installed, before anything is changed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import FOREIGN_PINS
from gpustate.formats import aptsources, driverset, package_errors
from gpustate.ops.package_steps import word
from gpustate.ops.rpmpackages import RPM_PACKAGES
from gpustate.ops.upload import RPM_REPOS
from gpustate.probes import repository_preview
from gpustate.states.driver import scripts
from gpustate.states.driver.observed import PIN_PATH
from gpustate.states.driver.rpmscripts import LOCKED

_HERE = "gpustate.states.driver"
_SIZE = r'"?([\d.,]+) ?([kKMGT]?)'
_DOWNLOAD = re.compile(
    rf"(?:Need to get|Need to download|Total download size:|download-size=) ?{_SIZE}"
)
#: What comes beside what leaves; dnf 4 says it where nothing leaves.
_FILES = re.compile(
    rf"After this operation, {_SIZE}i?B (?:of additional|extra)|(?:Installed size: |space-usage-diff=){_SIZE}"
)
#: A package that another one depends on, and its version.
_UNMET = re.compile(r"Depends:? (\S+)(?: \(= ([^)]+)\))?")
_MIB = {"": 1 / 2**20, "K": 1 / 2**10, "M": 1, "G": 2**10, "T": 2**20}


@dataclass(frozen=True, slots=True)
class TransactionQuery(Query[tuple[str, dict[str, str], dict[str, str]]]):
    """What the solver has against a transaction, in its own words; packages of the driver that it installs, name to version; and foreign pins.

    The pins are those of what it cannot install, or against what it installs since gpustate's pins override
    them: name and version to the file. All are empty where the solver has nothing, or cannot be asked.

    Args:
        manager: apt, dnf or zypper.
        install: names and versions.
        remove: names.
        preview: sh that adds repositories that are not there yet below ``$T``.
        pin: text of apt's pin that it is tried with.
    """

    manager: str
    install: tuple[tuple[str, str], ...]
    remove: tuple[str, ...]
    preview: str = ""
    pin: str = ""

    def script(self) -> str:
        preview = repository_preview.script(self.preview, PIN_PATH)
        if self.manager == "apt":
            set_words = f"set -- {scripts.apt_words(dict(self.install), self.remove)}\n"
            pin = {"PIN": PIN_PATH, "PIN_TEXT": self.pin}
            calls = f"{scripts.SPARES}{FOREIGN_PINS}"
            return f"{preview}\n{set_words}{calls}{shell.load('apt_transaction', _HERE, **pin)}"
        words = " ".join(word(self.manager, *row) for row in self.install)
        names = shlex.join((*(name for name, _ in self.install), *self.remove))
        return (
            preview
            + f"{RPM_PACKAGES}WANT={shlex.quote(words)}; GO={shlex.quote(' '.join(self.remove))}; BUNDLE={RPM_REPOS}\n"
            + f'RELEASED="{names} $({LOCKED})"\n'
            + shell.load("rpm_transaction", _HERE)
        )

    def parse(self, answer: Answer) -> tuple[str, dict[str, str], dict[str, str]]:
        if repository_preview.failure(answer.text):
            return self.placeholder()
        text = repository_preview.without_sources(answer).text
        text, _, pins = text.partition("=pins\n")
        problem, *rows = re.split(r"^=", text, flags=re.MULTILINE)
        installs = dict(r.split()[1:3] for r in rows if r.startswith("installs "))
        problem = package_errors.without_progress(problem).strip()
        wanted = _UNMET.findall(problem) if problem else installs.items()
        forbidden = {
            f"{name} {version}": path
            for (name, version), path in aptsources.forbidden(pins).items()
            if {(name, version), (name, "")} & {*wanted}
        }
        if lacking := _lacking_room(rows):
            problem, forbidden = lacking, {}
        members = {n: v for n, v in installs.items() if driverset.is_member(n, v)}
        return problem, members, forbidden

    def placeholder(self) -> tuple[str, dict[str, str], dict[str, str]]:
        return "", {}, {}


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
