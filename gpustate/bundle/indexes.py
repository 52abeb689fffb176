"""Build the index of a bundle's repository from its packages, for apt, or for dnf and zypper. Pure.

A package is described by its own metadata: the control fields that ``dpkg-deb -f`` prints, or the header in
:data:`RPM_FORMAT`. ``filelists`` and ``other`` are left out; dnf and zypper need neither.

Sources:
    createrepo_c, src/xml_dump_primary.c, src/misc.c (which files are in primary.xml); libsolv, ext/repo_rpmmd.c.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from gpustate.bundle.manifest import REPOMD, File
from gpustate.errors import ProbeError

PRIMARY = "repodata/primary.xml.gz"
#: Query format of rpm: the header of a package, one line for each relation and file.
RPM_FORMAT = "=%{NAME}|%{EPOCHNUM}:%{VERSION}-%{RELEASE}|%{ARCH}\\n" + "".join(
    rf"[{letter}%{{{tag}NAME}}|%{{{tag}FLAGS:depflags}}|%{{{tag}VERSION}}\n]"
    for letter, tag in (("P", "PROVIDE"), ("R", "REQUIRE"), ("C", "CONFLICT"), ("O", "OBSOLETE"))
)
RPM_FORMAT += "[F%{FILENAMES}\\n]"
_RELATIONS = {"P": "provides", "R": "requires", "C": "conflicts", "O": "obsoletes"}
_FLAGS = {"<": "LT", "<=": "LE", "=": "EQ", ">=": "GE", ">": "GT"}
_PRIMARY_FILE = re.compile(r"/etc/|.*bin/|/usr/lib/sendmail$")
_EVR = re.compile(r"(?:([0-9]+):)?([^-]*)(?:-([^-]*))?")
_SPACE = "http://linux.duke.edu/metadata"


@dataclass(frozen=True, slots=True)
class FetchedPackage:
    """A package that a node has fetched.

    Args:
        file: its file.
        source: address, or id, of its repository.
        text: its metadata.
        path: of its content.
    """

    file: File
    source: str
    text: str
    path: Path

    @property
    def is_rpm(self) -> bool:
        """Whether it is a package of rpm."""
        return self.file.name.endswith(".rpm")

    @property
    def identity(self) -> tuple[str, str, str]:
        """Name, full version and architecture.

        Raises:
            ProbeError: the metadata has none.
        """
        if self.is_rpm:
            words = self.text.partition("\n")[0].removeprefix("=").split("|")
        else:
            words = [_field(self.text, key) for key in ("Package", "Version", "Architecture")]
        if len(words) != 3 or not all(words):
            raise ProbeError(f"{self.file.name} is not a package", fix="run it again")
        return words[0], words[1].removeprefix("0:"), words[2]


def _field(text: str, key: str) -> str:
    match = re.search(rf"^{key}: *(.*)$", text, re.MULTILINE)
    return match[1] if match else ""


def build_indexes(packages: Sequence[FetchedPackage], label: str) -> dict[str, bytes]:
    """The index files of a repository, by name; the same bytes for the same packages.

    Args:
        packages: its packages, whose files are beside the index.
        label: of the repository, for apt.
    """
    if packages and packages[0].is_rpm:
        return _repodata(packages)
    rows = sorted(
        f"{package.text.rstrip()}\nFilename: {package.file.name}\nSize: {package.file.size}\nSHA256: {package.file.sha256}\n\n"
        for package in packages
    )
    index = "".join(rows).encode()
    release = (
        f"Origin: gpustate bundle\nLabel: gpustate bundle {label}\n"
        "Date: Thu, 01 Jan 1970 00:00:00 GMT\nSHA256:\n"
        f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    )
    return {"Release": release.encode(), "Packages": index}


def _repodata(packages: Sequence[FetchedPackage]) -> dict[str, bytes]:
    rows = "".join(sorted(_element(package) for package in packages))
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="{_SPACE}/common" '
        f'xmlns:rpm="{_SPACE}/rpm" packages="{len(packages)}">\n{rows}</metadata>\n'
    ).encode()
    packed = gzip.compress(text, 9, mtime=0)
    repomd = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<repomd xmlns="{_SPACE}/repo" '
        f'xmlns:rpm="{_SPACE}/rpm">\n<revision>0</revision>\n<data type="primary">\n'
        f'<checksum type="sha256">{hashlib.sha256(packed).hexdigest()}</checksum>\n'
        f'<open-checksum type="sha256">{hashlib.sha256(text).hexdigest()}</open-checksum>\n'
        f'<location href="{PRIMARY}"/>\n<timestamp>0</timestamp>\n'
        f"<size>{len(packed)}</size>\n<open-size>{len(text)}</open-size>\n</data>\n</repomd>\n"
    )
    return {REPOMD: repomd.encode(), PRIMARY: packed}


def _element(package: FetchedPackage) -> str:
    name, version, architecture = package.identity
    relations: dict[str, dict[str, None]] = {letter: {} for letter in _RELATIONS}
    files: dict[str, None] = {}
    for line in package.text.splitlines()[1:]:
        letter, value = line[:1], line[1:]
        if letter == "F" and _PRIMARY_FILE.match(value):
            files[f"<file>{escape(value)}</file>\n"] = None
        elif letter in relations and not value.startswith("rpmlib("):
            relations[letter][_entry(value)] = None
    groups = "".join(
        f"<rpm:{_RELATIONS[letter]}>\n{''.join(rows)}</rpm:{_RELATIONS[letter]}>\n"
        for letter, rows in relations.items()
        if rows
    )
    return (
        f'<package type="rpm">\n<name>{escape(name)}</name>\n<arch>{escape(architecture)}</arch>\n'
        f"<version {_attributes(_evr(version))}/>\n"
        f'<checksum type="sha256" pkgid="YES">{package.file.sha256}</checksum>\n'
        f'<size package="{package.file.size}"/>\n<location href={quoteattr(package.file.name)}/>\n'
        f"<format>\n{groups}{''.join(files)}</format>\n</package>\n"
    )


def _entry(row: str) -> str:
    name, flags, version = row.rsplit("|", 2) if row.count("|") >= 2 else (row, "", "")
    sign = _FLAGS.get(flags.strip(), "")
    words: dict[str, str] = {"name": name}
    if sign:
        words |= {"flags": sign, **_evr(version)}
    return f"<rpm:entry {_attributes(words)}/>\n"


def _evr(version: str) -> dict[str, str]:
    match = _EVR.fullmatch(version)
    epoch, number, release = match.groups() if match else (None, version, None)
    return {"epoch": epoch or "0", "ver": number, **({"rel": release} if release else {})}


def _attributes(words: Mapping[str, str]) -> str:
    return " ".join(f"{key}={quoteattr(value)}" for key, value in words.items())
