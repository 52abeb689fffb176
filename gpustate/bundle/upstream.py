"""Upstream repositories of deb packages: download and verify their indexes, and list their packages.

``InRelease`` (or ``Release`` with ``Release.gpg``) must be signed by a key that is pinned to the repository; gpgv
verifies it, as it does for apt. Only the signed part is read. It has the hashes of the indexes, and those have
the hashes of the packages.

Sources:
    Debian wiki, RepositoryFormat; sources.list(5); gpgv(1), DETAILS of GnuPG (``VALIDSIG``).
"""

from __future__ import annotations

import gzip
import lzma
import re
import subprocess
import tempfile
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from functools import cached_property
from pathlib import Path

from gpustate.bundle import fetch
from gpustate.bundle.manifest import Source
from gpustate.bundle.offers import Build, Offers
from gpustate.errors import ConnectionFailed, RefusedError, UsageError
from gpustate.formats import driverset, openpgp
from gpustate.solve import packages
from gpustate.solve.packages import Package

_LIMIT = 1 << 30
_FIELD = re.compile(r"^(?P<name>[A-Za-z0-9-]+):[ \t]*(?P<value>.*(?:\n[ \t].*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RepositorySource:
    """One upstream repository, from a policy or a source entry.

    Args:
        uri: without a trailing slash.
        suite: a name, or a path ending in ``/`` for a flat repository.
        components: empty for a flat repository.
        keys: pinned key rings, binary or armored.
        fingerprints: of those, the accepted keys; empty for all.
    """

    uri: str
    suite: str
    components: tuple[str, ...]
    keys: tuple[bytes, ...] = field(repr=False)
    fingerprints: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """URL of the folder with ``InRelease``."""
        if self.suite.endswith("/"):
            return f"{self.uri}/{self.suite.removeprefix('./').strip('/')}".rstrip("/")
        return f"{self.uri}/dists/{self.suite}"


class Stanza(Build):
    """One build of a package in an index."""

    def __init__(self, text: str, uri: str, source: Source) -> None:
        self.text = text
        self.uri = uri
        self.source = source

    def field(self, name: str) -> str:
        """A field's value on one line; empty without the field."""
        found = re.search(
            rf"^{name}:[ \t]*(.*(?:\n[ \t].*)*)", self.text, re.MULTILINE | re.IGNORECASE
        )
        return " ".join(found[1].split()) if found else ""

    @property
    def package(self) -> Package | None:
        return self._package

    @cached_property
    def _package(self) -> Package | None:
        place = packages.Repository(
            self.source.origin, self.source.suite, self.source.component, self.source.site
        )
        return next(packages.parse(self.text, place), None)

    @property
    def url(self) -> str:
        """URL of the file. A ``%`` in the name is part of the file's name, so it is escaped."""
        name = self.field("Filename").removeprefix("./")
        return f"{self.uri}/{urllib.parse.quote(name, safe='/+~:@,=()')}"

    @property
    def digest(self) -> str:
        return self.package.sha256 if self.package is not None else ""

    @property
    def file(self) -> str:
        if self.package is None:
            return ""
        plain = re.sub(r"^\d+:", "", self.package.version)
        return f"{self.package.name}_{plain}_{self.package.architecture or 'all'}.deb"

    @property
    def part_of_base(self) -> bool:
        """Whether every system of the distribution has it."""
        return self.field("Essential") == "yes" or self.field("Priority") == "required"


@dataclass(slots=True)
class Index(Offers):
    """All packages of one repository of deb packages; those of another architecture than the given one are left out."""

    architecture: str = ""

    def add(self, text: str, uri: str, source: Source) -> None:
        """Add the packages of a Packages file."""
        for part in text.split("\n\n"):
            name = re.search(r"^Package:[ \t]*(\S+)", part, re.MULTILINE)
            if name is None:
                continue
            one = Stanza(part.strip("\n"), uri, source)
            if self.architecture and one.field("Architecture") not in (
                "",
                "all",
                self.architecture,
            ):
                continue  # a flat repository has several
            if driverset.may_be_member(name[1]) and driverset.succeeded_by(
                name[1], one.field("Depends")
            ):
                continue  # an empty package of a branch that has ended in Ubuntu's archive
            provided: list[str] = []
            if "\nProvides:" in part:
                rows = (row.split() for row in one.field("Provides").split(","))
                provided = [words[0] for words in rows if words]
            self.add_build(name[1], one, provided)


def read(
    place: RepositorySource, architecture: str, cache: Path, say: fetch.Say = lambda _: None
) -> Index:
    """Download the indexes of a repository for an architecture.

    Args:
        place: the repository.
        architecture: as Debian writes it: ``amd64``.
        cache: folder for downloads.
        say: called with the URL of each download.

    Raises:
        ConnectionFailed: a download failed.
        RefusedError: it is not signed by a pinned key, or a hash does not match.
    """
    say(f"{place.base}/InRelease")
    release, signed_by = _release(place)
    fields = {m["name"].lower(): m["value"] for m in _FIELD.finditer(release)}
    files = _hashes(fields.get("sha256", ""))
    parsed = parsedate_tz(fields.get("date", ""))
    index = Index(mktime_tz(parsed) if parsed else 0, architecture=architecture)
    for component in place.components or ("",):
        stem = f"{component}/binary-{architecture}/Packages" if component else "Packages"
        text = _packages(place, stem, files, cache, say)
        source = Source(
            fields.get("origin", "") or place.uri,
            fields.get("codename", "") or place.suite,
            component,
            place.uri,
            signed_by,
        )
        index.add(text, place.uri, source)
    return index


def _release(place: RepositorySource) -> tuple[str, tuple[str, ...]]:
    whole = fetch.fetch_text(f"{place.base}/InRelease")
    if whole is not None:
        return verify_signature(place, whole, None)
    text = fetch.fetch_text(f"{place.base}/Release")
    signature = fetch.fetch_text(f"{place.base}/Release.gpg")
    if text is None or signature is None:
        raise ConnectionFailed(
            f"{place.base}: neither InRelease nor Release with Release.gpg: not a signed repository",
            fix="check the URL: it must be the folder that contains dists, or that of a flat repository",
        )
    return verify_signature(place, text, signature)


def verify_signature(
    place: RepositorySource, text: bytes, signature: bytes | None
) -> tuple[str, tuple[str, ...]]:
    """Verify a signature: the signed text, and the pinned keys that signed it.

    Raises:
        RefusedError: no pinned key signed it.
        UsageError: gpgv is not installed.
    """
    if not place.keys:
        raise RefusedError(
            f"{place.base}: no key is pinned to it",
            fix="set Signed-By in its source entry, or a key in the repository's state",
        )
    with tempfile.TemporaryDirectory(prefix="gpustate-") as name:
        folder = Path(name)
        (folder / "keys.gpg").write_bytes(b"".join(map(openpgp.binary, place.keys)))
        (folder / "text").write_bytes(text)
        words = ["gpgv", "--keyring", str(folder / "keys.gpg"), "--status-fd", "1"]
        if signature is None:
            words += ["--output", str(folder / "plain"), str(folder / "text")]
        else:
            (folder / "signature").write_bytes(signature)
            words += [str(folder / "signature"), str(folder / "text")]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        except FileNotFoundError:
            raise UsageError(
                "gpgv is not installed, but it is needed to verify signatures of repositories",
                fix="install gpgv (it comes with GnuPG)",
            ) from None
        rows = [line.split() for line in done.stdout.splitlines()]
        good = {r[i] for r in rows if r[1:2] == ["VALIDSIG"] for i in (2, -1)}
        counted = {r[-1] for r in rows if r[1:2] == ["VALIDSIG"]}
        if place.fingerprints:
            counted = set(place.fingerprints) & good
        if not counted or any(r[1:2] == ["BADSIG"] for r in rows):
            raise RefusedError(
                f"{place.base}: {_why(rows, place)}", fix="check key and fingerprint"
            )
        plain = text if signature is not None else (folder / "plain").read_bytes()
    return plain.decode("utf-8", "replace"), tuple(sorted(counted))


def _why(rows: Sequence[Sequence[str]], place: RepositorySource) -> str:
    kinds = {row[1]: row for row in rows if len(row) > 2}
    if "BADSIG" in kinds:
        return "its signature does not match its content"
    if "VALIDSIG" in kinds:
        return f"signed by {kinds['VALIDSIG'][-1]}, expected {', '.join(place.fingerprints)}"
    if "NO_PUBKEY" in kinds:
        return f"signed by {kinds['NO_PUBKEY'][2]}, which is not a key pinned to it"
    if "EXPKEYSIG" in kinds or "KEYEXPIRED" in kinds:
        return "the key pinned to it has expired"
    return "it has no valid signature"


def _hashes(text: str) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and re.fullmatch(r"[0-9a-f]{64}", words[0]) and words[1].isdigit():
            found[words[2].removeprefix("./")] = (words[0], int(words[1]))
    return found


def _packages(
    place: RepositorySource,
    stem: str,
    files: dict[str, tuple[str, int]],
    cache: Path,
    say: fetch.Say,
) -> str:
    for end, unpack in ((".xz", lzma.open), (".gz", gzip.open), ("", open)):
        if stem + end not in files:
            continue
        sha256, size = files[stem + end]
        path = fetch.fetch_file(f"{place.base}/{stem}{end}", sha256, size, cache, say)
        try:
            with unpack(path, "rb") as file:
                data = file.read(_LIMIT + 1)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise RefusedError(f"{place.base}/{stem}{end}: cannot decompress ({error})") from error
        if len(data) > _LIMIT:
            raise RefusedError(f"{place.base}/{stem}{end}: larger than {_LIMIT >> 20} MiB")
        return bytes(data).decode("utf-8", "replace")
    raise RefusedError(
        f"{place.base}: its signed index does not list {stem}",
        fix="check component and architecture",
    )
