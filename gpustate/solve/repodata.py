"""Repodata of rpm repositories: ``repomd.xml`` and the packages of ``primary.xml``. Pure.

The XML is untrusted: it comes from the network, or through a node. It is parsed as a stream. A document
type, an entity, or anything larger or deeper than real repodata is refused.

Surprising: primary.xml lists only files of a few folders, so file dependencies are left to dnf.

Sources:
    createrepo_c, src/xml_dump_primary.c and src/xml_dump_repomd.c; rpm metadata namespaces
    http://linux.duke.edu/metadata/common, .../rpm, .../repo.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from xml.parsers import expat

from gpustate.errors import ProbeError
from gpustate.formats import rpmversion
from gpustate.solve import rpmrelations
from gpustate.solve.packages import Package, Repository
from gpustate.solve.relations import Clause, Relation

#: Far above any real repository: Fedora's has 70,000 packages, the largest with 20,000 capabilities.
_MAX_DEPTH = 16
MAX_PACKAGES = 1_000_000
MAX_ENTRIES = 200_000
_MAX_TEXT = 1 << 20
_MAX_ATTRIBUTE = 1 << 16
NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z._+-]*")
_ARCH = re.compile(r"[0-9A-Za-z_]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
HREF = re.compile(r"(?:[0-9A-Za-z_+~^-][0-9A-Za-z._+~^-]*/)*[0-9A-Za-z_+~^-][0-9A-Za-z._+~^-]*")
#: Hash algorithms that are good enough, with the digits of their values.
SUMS = {"sha256": 64, "sha384": 96, "sha512": 128}
#: Those of repomd.xml.
_SUMS = {**SUMS, "sha224": 56, "sha": 40, "sha1": 40}


@dataclass(frozen=True, slots=True)
class Location:
    """One file of a repository.

    Args:
        href: relative to the repository's URL: ``repodata/...-primary.xml.gz``.
        algorithm, checksum: of the file as served; empty when not given.
        size: in bytes; 0 when not given.
    """

    href: str
    algorithm: str = ""
    checksum: str = ""
    size: int = 0


@dataclass(slots=True)
class Reader:
    """Parses XML within limits and calls :meth:`element_started` and :meth:`element_ended`.

    Names are without their prefix: ``rpm:entry`` is ``entry``.
    """

    place: str
    at: int = 0  # offset of the current tag, in bytes
    path: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    attributes: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])

    def element_ended(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        """An element is complete; ``path`` ends with its own name."""
        raise NotImplementedError

    def element_started(self, path: list[str]) -> None:
        """An element begins; ``path`` ends with its own name."""

    def invalid(self, why: str) -> ProbeError:
        return ProbeError(f"{self.place}: {why}", fix="check what the repository serves")

    def feed(self, data: bytes) -> None:
        """Parse the whole document.

        Raises:
            ProbeError: it is not well-formed XML, or exceeds the limits.
        """
        parser = expat.ParserCreate()
        parser.buffer_text = True

        def start(name: str, attributes: dict[str, str]) -> None:
            self.at = parser.CurrentByteIndex
            self._start(name, attributes)

        def end(name: str) -> None:
            self.at = parser.CurrentByteIndex
            self._end(name)

        parser.StartElementHandler = start
        parser.EndElementHandler = end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.ExternalEntityRefHandler = self._entity
        try:
            for at in range(0, len(data), _MAX_TEXT):
                parser.Parse(data[at : at + _MAX_TEXT], False)
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            why = expat.ErrorString(error.code)
            raise self.invalid(f"not well-formed XML: {why}, line {error.lineno}") from None
        except (ValueError, LookupError) as error:
            raise self.invalid(f"unsupported encoding ({error})") from None

    def _doctype(self, *_: Any) -> None:
        raise self.invalid("contains a document type, which repodata never has")

    def _entity(self, *_: Any) -> Any:
        raise self.invalid("defines an entity, which repodata never does")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= _MAX_DEPTH:
            raise self.invalid(f"is nested deeper than {_MAX_DEPTH} elements")
        if any(len(value) > _MAX_ATTRIBUTE for value in attributes.values()):
            raise self.invalid(f"has an attribute of more than {_MAX_ATTRIBUTE} characters")
        self.path.append(name.rpartition(":")[2])
        self.attributes.append(attributes)
        self.texts.append("")
        self.element_started(self.path)

    def _text(self, text: str) -> None:
        if self.texts:
            self.texts[-1] += text
            if len(self.texts[-1]) > _MAX_TEXT:
                raise self.invalid(f"has a text of more than {_MAX_TEXT} characters")

    def _end(self, _: str) -> None:
        self.element_ended(self.path, self.attributes[-1], self.texts[-1].strip())
        self.path.pop()
        self.attributes.pop()
        self.texts.pop()


# --- repomd.xml ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Repomd(Reader):
    found: dict[str, Location] = field(default_factory=dict[str, Location])
    href: str = ""
    checksum: tuple[str, str] = ("", "")
    size: int = 0

    def element_ended(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        if path[:2] != ["repomd", "data"]:
            return
        if path[2:] == ["location"]:
            self.href = attributes.get("href", "")
        elif path[2:] == ["checksum"]:
            self.checksum = (attributes.get("type", "").lower(), text.lower())
        elif path[2:] == ["size"]:
            self.size = int(text) if re.fullmatch(r"[0-9]{1,15}", text) else 0
        elif len(path) == 2:
            self._take(attributes.get("type", ""))

    def _take(self, kind: str) -> None:
        algorithm, checksum = self.checksum
        if not HREF.fullmatch(self.href):
            raise self.invalid(f"invalid location of {kind or 'a file'}: {self.href[:80]!r}")
        if algorithm not in _SUMS or not re.fullmatch(f"[0-9a-f]{{{_SUMS[algorithm]}}}", checksum):
            algorithm = checksum = ""
        self.found.setdefault(kind, Location(self.href, algorithm, checksum, self.size))
        self.href, self.checksum, self.size = "", ("", ""), 0


def parse_repomd(data: bytes, place: str) -> dict[str, Location]:
    """Files of a repository by type: ``primary``, ``modules``.

    Raises:
        ProbeError: it is not a ``repomd.xml``, or lists no primary.xml.
    """
    reader = _Repomd(place)
    reader.feed(data)
    if "primary" not in reader.found:
        raise reader.invalid("not a repomd.xml: it lists no primary")
    return reader.found


# --- primary.xml ---------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """The package of a ``primary.xml`` that is being read, without its requirements."""

    name: str = ""
    arch: str = ""
    version: str = ""
    size: int = 0
    entries: int = 0
    conflicts: list[Relation] = field(default_factory=list[Relation])
    provides: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


R = TypeVar("R", bound=Row)


@dataclass(slots=True)
class PrimaryReader(Reader, Generic[R]):
    """Reads the packages of a ``primary.xml``; subclasses decide what to keep of them."""

    repository: Repository = field(default_factory=lambda: Repository(""))
    architectures: Collection[str] = ()
    count: int = 0
    row: R = field(init=False)  # the package that is being read

    def new_row(self) -> R:
        """An empty row for the next package."""
        raise NotImplementedError

    def other_element(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        """Another element of a package is complete; ``path`` begins below the package."""
        raise NotImplementedError

    def requirement(self, name: str, flags: str, version: str) -> None:
        """A requirement of the package."""
        raise NotImplementedError

    def package_ended(self) -> None:
        """A package with valid name and version is complete."""
        raise NotImplementedError

    def element_started(self, path: list[str]) -> None:
        if path == ["metadata", "package"]:
            self.row = self.new_row()

    def element_ended(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        if path[:2] != ["metadata", "package"]:
            return
        match path[2:]:
            case []:
                self._complete(attributes.get("type", "rpm"))
            case ["name"]:
                self.row.name = text
            case ["arch"]:
                self.row.arch = text
            case ["version"]:
                self.row.version = evr(attributes)
            case ["size"]:
                size = attributes.get("package", "")
                self.row.size = int(size) if re.fullmatch(r"[0-9]{1,15}", size) else 0
            case ["format", kind, "entry"]:
                self._entry(kind, attributes)
            case rest:
                self.other_element(rest, attributes, text)

    def _entry(self, kind: str, attributes: Mapping[str, str]) -> None:
        row, name = self.row, attributes.get("name", "")
        flags, version = attributes.get("flags", ""), evr(attributes)
        row.entries += 1
        if row.entries > MAX_ENTRIES:
            raise self.invalid(f"has a package with more than {MAX_ENTRIES} capabilities")
        if kind == "provides":
            # A provided name with another operator than "=" cannot be matched.
            if name and (not flags or flags == "EQ"):
                row.provides.append((name, version))
        elif kind == "requires":
            self.requirement(name, flags, version)
        elif kind in ("conflicts", "obsoletes"):
            clash = rpmrelations.plain(name, flags, version)
            if clash is not None:
                if kind == "obsoletes":
                    clash = rpmrelations.RpmRelation(clash.name, clash.op, clash.version, "", True)
                row.conflicts.append(clash)

    def _complete(self, kind: str) -> None:
        self.count += 1
        if self.count > MAX_PACKAGES:
            raise self.invalid(f"has more than {MAX_PACKAGES} packages")
        named = kind == "rpm" and NAME.fullmatch(self.row.name)
        if named and rpmversion.is_version(self.row.version):
            self.package_ended()


@dataclass(slots=True)
class _Raw(Row):
    sha256: str = ""
    depends: list[Clause] = field(default_factory=list[Clause])


@dataclass(slots=True)
class _Primary(PrimaryReader[_Raw]):
    leaf: bool = False
    packages: list[Package] = field(default_factory=list[Package])

    def new_row(self) -> _Raw:
        return _Raw()

    def other_element(self, path: list[str], attributes: Mapping[str, str], text: str) -> None:
        if path == ["checksum"] and attributes.get("type") == "sha256":
            self.row.sha256 = text.lower() if _SHA256.fullmatch(text.lower()) else ""

    def requirement(self, name: str, flags: str, version: str) -> None:
        if self.leaf:
            return
        if name.startswith("("):
            self.row.depends += rpmrelations.parse(name)
        elif (needed := rpmrelations.plain(name, flags, version)) is not None:
            self.row.depends.append((needed,))

    def package_ended(self) -> None:
        raw = self.row
        if not _ARCH.fullmatch(raw.arch) or raw.arch == "src":
            return
        if self.architectures and raw.arch not in self.architectures:
            return
        self.packages.append(
            Package(
                raw.name,
                raw.version,
                self.repository,
                raw.arch,
                tuple(dict.fromkeys(raw.depends)),
                tuple(raw.conflicts),
                tuple(dict.fromkeys(raw.provides)),
                raw.sha256,
                raw.size,
                self.leaf,
                rpm=True,
            )
        )


def evr(attributes: Mapping[str, str]) -> str:
    """Epoch, version and release of an element as one text; empty without a version."""
    epoch, version = attributes.get("epoch") or "0", attributes.get("ver", "")
    if not version:
        return ""
    number = int(epoch) if re.fullmatch(r"[0-9]{1,9}", epoch) else 0
    return str(rpmversion.Evr(number, version, attributes.get("rel", "")))


def parse_primary(
    data: bytes,
    repository: Repository,
    place: str,
    *,
    architectures: Collection[str] = (),
    leaf: bool = False,
) -> Iterator[Package]:
    """Packages of a ``primary.xml``, or of a part of one; anything else is skipped.

    Args:
        data: the document, uncompressed.
        repository: that it describes.
        place: for messages.
        architectures: to keep; empty for all but source packages.
        leaf: packages outside of the driver: their requirements are not read.

    Raises:
        ProbeError: it is not well-formed XML, or exceeds the limits.
    """
    reader = _Primary(place, repository=repository, architectures=architectures, leaf=leaf)
    reader.feed(data)
    yield from reader.packages


def nevra(package: Package) -> str:
    """Name, epoch, version, release and architecture, as module streams list them."""
    evr = rpmversion.parse(package.version)
    release = f"-{evr.release}" if evr.release else ""
    return f"{package.name}-{evr.epoch}:{evr.version}{release}.{package.architecture}"
