"""Parse the output of dpkg and apt.

Sources:
    dpkg-query(1): ``db:Status-Abbrev``, ``${Package}``; apt-cache(8): ``madison``;
    deb-version(7): how versions compare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import zip_longest

from gpustate.formats.numbers import parse_uint

#: Name, architecture, version, two-letter status (desired, state), one package a line.
QUERY_FORMAT = "${Package}|${Architecture}|${Version}|${db:Status-Abbrev}\\n"


# deb-control(5), deb-version(7). Both become arguments of commands, so nothing else may match.
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")
#: A copy for another architecture has that in its name: ``libcuda1:i386``.
_COPY = re.compile(_NAME.pattern + "(:[a-z0-9-]+)?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+:~-]*")
_HEADS_AND_NUMBERS = re.compile("([^0-9]*)([0-9]*)")


def is_name(text: str) -> bool:
    """Whether the text is the name of a package, or of its copy for another architecture, safe as an argument of a command."""
    return _COPY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Package:
    """One package of dpkg's database."""

    name: str
    version: str
    arch: str
    status: (
        str  # "ii" installed, "hi" installed and held, "iF" half-configured, "rc" only conffiles
    )

    @property
    def installed(self) -> bool:
        """Fully installed and configured."""
        return self.status[1:2] == "i"

    @property
    def held(self) -> bool:
        """Marked ``hold``."""
        return self.status[:1] == "h"

    @property
    def broken(self) -> bool:
        """Unpacked, half-configured or half-installed: dpkg was interrupted here."""
        return self.status[1:2] in ("U", "F", "H", "W", "t") or "R" in self.status[2:3]


def parse_query(text: str) -> dict[str, Package]:
    """Read the output of ``dpkg-query -W -f QUERY_FORMAT``; packages never installed are left out.

    A copy for another architecture than the node's has it in its name, as apt writes it: ``libcuda1:i386``. The
    row of dpkg itself tells the node's; without it, the architecture that most rows have.
    """
    rows: list[Package] = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 4:
            continue
        name, arch, version, status = (part.strip() for part in parts)
        if _NAME.fullmatch(name) and _VERSION.fullmatch(version) and status[1:2] != "n":
            rows.append(Package(name, version, arch, status))
    architectures = [row.arch for row in rows if row.arch != "all"]
    common = max(architectures, key=architectures.count, default="")
    native = next((row.arch for row in rows if row.name == "dpkg"), common)
    return {
        row.name if row.arch in (native, "all") else f"{row.name}:{row.arch}": row for row in rows
    }


@dataclass(frozen=True, slots=True)
class Candidate:
    """One version of a package that one repository offers."""

    version: str
    origin: str  # the repository's address and suite, as apt prints it
    forbidden_by: str = ""  # foreign file of pins that keeps apt from it


def repository(origin: str) -> str:
    """Address and suite of a source of apt's, without architecture; of rpm's its id or name."""
    words = origin.removesuffix(" Packages").split()
    return " ".join(words[:2]) if ":/" in origin else origin


def parse_madison(text: str) -> dict[str, tuple[Candidate, ...]]:
    """Read ``apt-cache madison``: ``name | version | origin``, newest first as apt lists it."""
    candidates_by_package: dict[str, list[Candidate]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or parts[2].endswith(" Sources"):
            continue
        if not _COPY.fullmatch(parts[0]) or not _VERSION.fullmatch(parts[1]):
            continue
        candidates_by_package.setdefault(parts[0], []).append(Candidate(parts[1], parts[2]))
    return {name: tuple(candidates) for name, candidates in candidates_by_package.items()}


def _order(char: str) -> int:
    # deb-version(7): letters sort before non-letters, and a tilde before anything, even the end.
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256


def _parts(text: str) -> list[tuple[list[int], int, str]]:
    """Heads and numbers in turn; numbers as such, but of any length."""
    rows = ((head, digits.lstrip("0")) for head, digits in _HEADS_AND_NUMBERS.findall(text))
    return [([*map(_order, head), 0], len(number), number) for head, number in rows]


def _compare_part(version: str, other_version: str) -> int:
    rows = zip_longest(_parts(version), _parts(other_version), fillvalue=([0], 0, ""))
    return next(((a > b) - (a < b) for a, b in rows if a != b), 0)


def _split(version: str) -> tuple[int, str, str]:
    epoch, _, version_text = version.partition(":") if ":" in version else ("0", "", version)
    upstream, _, revision = version_text.rpartition("-")
    return parse_uint(epoch) or 0, upstream or version_text, revision if upstream else ""


def compare_versions(version: str, other_version: str) -> int:
    """-1, 0 or 1, in the order of ``dpkg --compare-versions``."""
    le, lu, lr = _split(version)
    re_, ru, rr = _split(other_version)
    if le != re_:
        return -1 if le < re_ else 1
    return _compare_part(lu, ru) or _compare_part(lr, rr)


version_key = cmp_to_key(compare_versions)


def upstream_version(version: str) -> str:
    """The software's own version: no epoch, no Debian revision (``1:580.65.06-0`` gives ``580.65.06``)."""
    return _split(version)[1]
