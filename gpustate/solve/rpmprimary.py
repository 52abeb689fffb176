"""All that ``primary.xml`` says of packages, for repositories that are made from others. Pure.

Where :mod:`~gpustate.solve.repodata` reads what a driver set can need, this keeps everything: what packages need
with all its words, the files they provide, where they lie, and their element as it stands there.

Sources:
    createrepo_c, src/xml_dump_primary.c; rpm metadata namespaces http://linux.duke.edu/metadata/common, .../rpm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpustate.solve.packages import Package, Repository
from gpustate.solve.repodata import HREF, SUMS, PrimaryReader, Row

_END = b"</package>"
#: The only prefix that createrepo_c writes, and dnf and zypper read.
_OTHER_PREFIX = re.compile(rb"</?(?!rpm:)[A-Za-z_][\w.-]*:")


@dataclass(frozen=True, slots=True)
class PrimaryEntry:
    """One package of a repository.

    Args:
        package: name, version, and everything it provides, files included.
        href: its file below the repository's address.
        base: another address that ``href`` is below; empty for the repository's own.
        digest: of the file in hexadecimal digits, whose number tells the algorithm; empty without one.
        text: its element.
        boolean: boolean dependencies among its requirements.
    """

    package: Package
    href: str
    base: str
    digest: str
    text: bytes = field(repr=False)
    boolean: tuple[str, ...] = ()


@dataclass(slots=True)
class _Row(Row):
    start: int = 0
    href: str = ""
    base: str = ""
    digest: str = ""
    boolean: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _EntryReader(PrimaryReader[_Row]):
    data: bytes = b""
    found: list[PrimaryEntry] = field(default_factory=list[PrimaryEntry])

    def new_row(self) -> _Row:
        return _Row(start=self.at)

    def other_element(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        row = self.row
        match path:
            case ["checksum"]:
                digits = SUMS.get(attributes.get("type", "").lower(), 0)
                good = digits and re.fullmatch(f"[0-9a-f]{{{digits}}}", text.lower())
                row.digest = text.lower() if good else ""
            case ["location"]:
                row.href = attributes.get("href", "")
                row.base = attributes.get("xml:base", "")
            case ["format", "file"]:
                row.provides.append((text, ""))
            case _:
                pass

    def requirement(self, name: str, flags: str, version: str) -> None:
        if name.startswith("("):
            self.row.boolean.append(name)

    def package_ended(self) -> None:
        row = self.row
        if row.arch not in self.architectures:
            return
        if not HREF.fullmatch(row.href):
            raise self.invalid(f"has no usable address for {row.name}: {row.href[:80]!r}")
        text = self.data[row.start : self.at + len(_END)]
        if not text.endswith(_END) or _OTHER_PREFIX.search(text):
            raise self.invalid(f"has an element of {row.name} that cannot be taken over")
        package = Package(
            row.name,
            row.version,
            self.repository,
            row.arch,
            (),
            tuple(row.conflicts),
            tuple(dict.fromkeys(row.provides)),
            row.digest if len(row.digest) == SUMS["sha256"] else "",
            row.size,
            rpm=True,
        )
        self.found.append(
            PrimaryEntry(package, row.href, row.base, row.digest, text, tuple(row.boolean))
        )


def parse(
    data: bytes, repository: Repository, place: str, architectures: Collection[str]
) -> list[PrimaryEntry]:
    """Packages of a ``primary.xml`` in UTF-8.

    Args:
        data: the document, not compressed.
        repository: where it is from.
        place: for messages.
        architectures: the only ones of interest.

    Raises:
        ProbeError: it is no XML, or not within limits.
    """
    reader = _EntryReader(place, repository=repository, architectures=architectures, data=data)
    reader.feed(data)
    return reader.found
