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

from gpustate.solve import rpmneeds, rpmrelations
from gpustate.solve.packages import Package, Repository
from gpustate.solve.relations import Relation
from gpustate.solve.repodata import HREF, MAX_ENTRIES, MAX_PACKAGES, NAME, Reader, evr
from gpustate.solve.rpmneeds import Need
from gpustate.text import rpmversion

#: Hash algorithms that are good enough, with the digits of their values.
_SUMS = {"sha256": 64, "sha384": 96, "sha512": 128}
_END = b"</package>"
#: The only prefix that createrepo_c writes, and dnf and zypper read.
_OTHER_PREFIX = re.compile(rb"</?(?!rpm:)[A-Za-z_][\w.-]*:")


@dataclass(frozen=True, slots=True)
class Listed:
    """One package of a repository.

    Args:
        package: with the files among what it provides; what it needs is in ``needs``.
        needs: all that it requires.
        href: its file below the repository's address.
        base: another address that ``href`` is below; empty for the repository's own.
        digest: of the file in hexadecimal digits, whose number tells the algorithm; empty without one.
        text: its element.
        unread: boolean dependencies that cannot be read.
    """

    package: Package
    needs: tuple[Need, ...]
    href: str
    base: str
    digest: str
    text: bytes = field(repr=False)
    unread: tuple[str, ...] = ()


@dataclass(slots=True)
class _Row:
    """One package as far as it is read."""

    start: int = 0
    name: str = ""
    arch: str = ""
    version: str = ""
    href: str = ""
    base: str = ""
    digest: str = ""
    size: int = 0
    entries: int = 0
    needs: list[Need] = field(default_factory=list[Need])
    unread: list[str] = field(default_factory=list[str])
    conflicts: list[Relation] = field(default_factory=list[Relation])
    provides: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


@dataclass(slots=True)
class _Whole(Reader):
    repository: Repository = field(default_factory=lambda: Repository(""))
    architectures: Collection[str] = ()
    data: bytes = b""
    row: _Row = field(default_factory=_Row)
    count: int = 0
    found: list[Listed] = field(default_factory=list[Listed])

    def begun(self, path: list[str]) -> None:
        if path == ["metadata", "package"]:
            self.row = _Row(self.at)

    def ended(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        if path[:2] != ["metadata", "package"]:
            return
        row = self.row
        match path[2:]:
            case []:
                self._take(attributes.get("type", "rpm"))
            case ["name"]:
                row.name = text
            case ["arch"]:
                row.arch = text
            case ["version"]:
                row.version = evr(attributes)
            case ["checksum"]:
                digits = _SUMS.get(attributes.get("type", "").lower(), 0)
                good = digits and re.fullmatch(f"[0-9a-f]{{{digits}}}", text.lower())
                row.digest = text.lower() if good else ""
            case ["size"]:
                size = attributes.get("package", "")
                row.size = int(size) if re.fullmatch(r"[0-9]{1,15}", size) else 0
            case ["location"]:
                row.href = attributes.get("href", "")
                row.base = attributes.get("xml:base", "")
            case ["format", "file"]:
                row.provides.append((text, ""))
            case ["format", kind, "entry"]:
                self._entry(kind, attributes)
            case _:
                pass

    def _entry(self, kind: str, attributes: Mapping[str, str]) -> None:
        row, name = self.row, attributes.get("name", "")
        flags, version = attributes.get("flags", ""), evr(attributes)
        row.entries += 1
        if row.entries > MAX_ENTRIES:
            raise self.refused(f"has a package with more than {MAX_ENTRIES} capabilities")
        if kind == "provides":
            if name and (not flags or flags == "EQ"):
                row.provides.append((name, version))
        elif kind == "requires":
            try:
                need = rpmneeds.read(name, flags, version)
            except ValueError:
                row.unread.append(name)
                return
            if need is not None:
                row.needs.append(need)
        elif kind in ("conflicts", "obsoletes"):
            clash = rpmrelations.plain(name, flags, version)
            if clash is not None:
                if kind == "obsoletes":
                    clash = rpmrelations.RpmRelation(clash.name, clash.op, clash.version, "", True)
                row.conflicts.append(clash)

    def _take(self, kind: str) -> None:
        row = self.row
        self.count += 1
        if self.count > MAX_PACKAGES:
            raise self.refused(f"has more than {MAX_PACKAGES} packages")
        if kind != "rpm" or not NAME.fullmatch(row.name) or row.arch not in self.architectures:
            return
        if not rpmversion.is_version(row.version):
            return
        if not HREF.fullmatch(row.href):
            raise self.refused(f"has no usable address for {row.name}: {row.href[:80]!r}")
        text = self.data[row.start : self.at + len(_END)]
        if not text.endswith(_END) or _OTHER_PREFIX.search(text):
            raise self.refused(f"has an element of {row.name} that cannot be taken over")
        package = Package(
            row.name,
            row.version,
            self.repository,
            row.arch,
            (),
            tuple(row.conflicts),
            tuple(dict.fromkeys(row.provides)),
            row.digest if len(row.digest) == _SUMS["sha256"] else "",
            row.size,
            rpm=True,
        )
        needs = tuple(dict.fromkeys(row.needs))
        self.found.append(
            Listed(package, needs, row.href, row.base, row.digest, text, tuple(row.unread))
        )


def parse(
    data: bytes, repository: Repository, place: str, architectures: Collection[str]
) -> list[Listed]:
    """Packages of a ``primary.xml`` in UTF-8.

    Args:
        data: the document, not compressed.
        repository: where it is from.
        place: for messages.
        architectures: the only ones of interest.

    Raises:
        ProbeError: it is no XML, or not within limits.
    """
    reader = _Whole(place, repository=repository, architectures=architectures, data=data)
    reader.feed(data)
    return reader.found
