"""Complete entries of a ``primary.xml``, to build repositories from. Pure.

:mod:`~gpustate.solve.repodata` reads what a driver set needs. This keeps everything else too: provided files, the
location of each package, and its XML element, byte for byte.

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
#: createrepo_c writes only the prefix ``rpm``, and dnf and zypper read only that.
_OTHER_PREFIX = re.compile(rb"</?(?!rpm:)[A-Za-z_][\w.-]*:")


@dataclass(frozen=True, slots=True)
class PrimaryEntry:
    """One package of a repository.

    Args:
        package: name, version, and everything it provides, files included.
        href: its file, relative to the repository's URL.
        base: another base URL; empty for the repository's own.
        digest: of the file, hexadecimal; its length tells the algorithm; empty without one.
        text: its XML element.
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
            raise self.invalid(f"invalid location of {row.name}: {row.href[:80]!r}")
        text = self.data[row.start : self.at + len(_END)]
        if not text.endswith(_END) or _OTHER_PREFIX.search(text):
            raise self.invalid(f"the element of {row.name} cannot be copied")
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
    """Read a ``primary.xml`` in UTF-8.

    Args:
        data: the document, uncompressed.
        repository: that it describes.
        place: for messages.
        architectures: to keep.

    Raises:
        ProbeError: it is not well-formed XML, or exceeds the limits.
    """
    reader = _EntryReader(place, repository=repository, architectures=architectures, data=data)
    reader.feed(data)
    return reader.found
