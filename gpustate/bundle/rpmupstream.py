"""Upstream repositories of rpm packages: download and verify their repodata, and list their packages.

Trust is as in dnf and zypper. Of a repository with signed metadata, ``repomd.xml`` is verified with
``repomd.xml.asc``, and everything else by its hashes. Of one with signed packages, each package of the bundle is
verified. A repository with neither signed by a pinned key is refused.

Surprising: where only packages are signed, a man in the middle can withhold packages or offer old ones, as with dnf
itself. Every package of the bundle is signed either way.

Sources:
    dnf.conf(5): gpgcheck, repo_gpgcheck, mirrorlist, metalink; metalink 3.0; createrepo_c, src/xml_dump_repomd.c.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import html
import lzma
import re
import subprocess
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from gpustate.bundle import fetch, rpmfile, upstream
from gpustate.bundle.manifest import Source
from gpustate.bundle.offers import Build, Offers
from gpustate.bundle.upstream import RepositorySource
from gpustate.errors import ConnectionFailed, ProbeError, RefusedError, UsageError
from gpustate.solve import modules, repodata, rpmprimary
from gpustate.solve.modules import Modules
from gpustate.solve.packages import Package, Repository
from gpustate.solve.repodata import Location
from gpustate.solve.rpmprimary import PrimaryEntry

_LIMIT = 2 << 30
#: Mirrors of a list that are tried.
_MIRRORS = 5
_LOCATION = re.compile(rb"<location\b[^>]*?(?:/>|>\s*</location\s*>)")
_METALINK = re.compile(r"<url\b[^>]*>\s*(https?://[^<\s]+)/repodata/repomd\.xml\s*</url>")


@dataclass(frozen=True, slots=True)
class RpmRepositorySource:
    """One upstream repository of rpm packages.

    Args:
        name: its id.
        uri: its URL without a trailing slash; empty where only a mirror list is given.
        mirrors: URL of a mirror list or metalink.
        keys, fingerprints: as of :class:`~gpustate.bundle.upstream.RepositorySource`.
        packages_signed, metadata_signed: what those keys sign.
        hotfixes: module streams do not hide its packages.
        excluded, included: name patterns; with ``included``, only matching packages.
    """

    name: str
    uri: str
    mirrors: str
    keys: tuple[bytes, ...] = field(repr=False)
    fingerprints: tuple[str, ...] = ()
    packages_signed: bool = True
    metadata_signed: bool = False
    hotfixes: bool = False
    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()


class RpmBuild(Build):
    """One build of an rpm package in a repository."""

    def __init__(
        self, entry: PrimaryEntry, place: RepositorySource, source: Source, *, signed: bool
    ) -> None:
        self.entry = entry
        self.place = place
        self.source = source
        self._signed = signed  # verify the package's own signature

    @property
    def package(self) -> Package:
        return self.entry.package

    @property
    def url(self) -> str:
        base = self.entry.base.rstrip("/") or self.place.uri
        return f"{base}/{urllib.parse.quote(self.entry.href, safe='/+~:@,=()^')}"

    @property
    def digest(self) -> str:
        return self.entry.digest

    @property
    def file(self) -> str:
        plain = self.package.version.rpartition(":")[2]
        return f"{self.package.name}-{plain}.{self.package.architecture}.rpm"

    def verify(self, path: Path) -> Source:
        if not self._signed:
            return self.source
        return replace(self.source, signed_by=rpmfile.check(path, self.file, self.place))

    def indexed(self) -> bytes:
        """Its XML element, with the location next to the bundle's repodata."""
        mine = f'<location href="{html.escape(self.file)}"/>'.encode()
        return _LOCATION.sub(lambda _: mine, self.entry.text)


def read(
    place: RpmRepositorySource,
    machine: str,
    streams: Mapping[str, str],
    cache: Path,
    say: fetch.Say = lambda _: None,
) -> Offers:
    """Download the repodata of a repository and list its packages for a machine.

    Args:
        place: the repository.
        machine: ``x86_64``.
        streams: enabled module stream by module.
        cache: folder for downloads.
        say: called with the URL of each download.

    Raises:
        ConnectionFailed: a download failed.
        RefusedError: it is not signed by a pinned key, or a hash does not match.
    """
    if not place.keys or not (place.packages_signed or place.metadata_signed):
        why = (
            "no key is pinned to it"
            if not place.keys
            else "neither packages nor metadata are signed"
        )
        raise RefusedError(
            f"{place.name}: {why}",
            fix="set gpgkey, and gpgcheck=1 or repo_gpgcheck=1: a bundle takes verified packages only",
        )
    uri = (place.uri or _mirror(place, say)).rstrip("/")
    checked = RepositorySource(uri, "/", (), place.keys, place.fingerprints)
    say(f"{uri}/repodata/repomd.xml")
    repomd, signed_by = _repomd(checked, place.metadata_signed)
    try:
        files = repodata.parse_repomd(repomd, f"{uri}/repodata/repomd.xml")
        data = _file(uri, files["primary"], cache, say)
        where = Repository(place.name, "/", "", uri)
        rows = rpmprimary.parse(data, where, f"primary.xml of {uri}", (machine, "noarch"))
        known = Modules()
        if "modules" in files and not place.hotfixes:
            text = _file(uri, files["modules"], cache, say).decode("utf-8", "replace")
            known = modules.parse(text, f"modules.yaml of {uri}")
    except ProbeError as error:
        raise RefusedError(error.message, fix="check what the repository serves") from None
    times = [int(one) for one in re.findall(rb"<timestamp>\s*([0-9]{1,12})", repomd)]
    source = Source(place.name, "/", "", uri, signed_by)
    shown = modules.apply_streams([row.package for row in rows], [known], streams)
    offers = Offers(max(times, default=0))
    for row, package in zip(rows, shown, strict=True):
        if not package.forbidden and _is_taken(package, place):
            build = RpmBuild(row, checked, source, signed=not place.metadata_signed)
            offers.add_build(
                package.name, build, dict.fromkeys(name for name, _ in package.provides)
            )
    return offers


def _repomd(place: RepositorySource, signed: bool) -> tuple[bytes, tuple[str, ...]]:
    address = f"{place.base}/repodata/repomd.xml"
    text = fetch.fetch_text(address)
    if text is None:
        raise ConnectionFailed(
            f"{address}: no such file: not an rpm repository",
            fix="check the URL: it must be the folder that contains repodata",
        )
    if not signed:
        return text, ()
    signature = fetch.fetch_text(f"{address}.asc")
    if signature is None:
        raise RefusedError(
            f"{address}: not signed, but repo_gpgcheck requires a signature",
            fix="check URL and repo_gpgcheck",
        )
    return text, upstream.verify_signature(place, text, signature)[1]


def _file(uri: str, file: Location, cache: Path, say: fetch.Say) -> bytes:
    """Content of a repodata file, uncompressed."""
    address = f"{uri}/{file.href}"
    if len(file.checksum) not in fetch.SUMS or not file.size:
        raise RefusedError(
            f"{uri}/repodata/repomd.xml: no SHA-256 or size for {file.href}",
            fix="use a repository that has them: a bundle takes verified packages only",
        )
    path = fetch.fetch_file(address, file.checksum, file.size, cache, say)
    end = file.href.rpartition(".")[2]
    try:
        if end == "zst":
            return _unzstd(path)
        with _opened(path, end) as stream:
            data = stream.read(_LIMIT + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise RefusedError(f"{address}: cannot decompress ({error})") from error
    if len(data) > _LIMIT:
        raise RefusedError(f"{address}: larger than {_LIMIT >> 20} MiB")
    return data


def _opened(path: Path, end: str) -> IO[bytes] | gzip.GzipFile:
    match end:
        case "gz":
            return gzip.open(path, "rb")
        case "xz":
            return lzma.open(path, "rb")
        case "bz2":
            return bz2.open(path, "rb")
        case _:
            return open(path, "rb")


def _unzstd(path: Path) -> bytes:
    try:
        done = subprocess.run(["zstd", "-dcq", str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError(
            "zstd is not installed, but a repository's repodata is compressed with it",
            fix="install zstd",
        ) from None
    if done.returncode or len(done.stdout) > _LIMIT:
        raise OSError(f"zstd: {done.stderr.decode('utf-8', 'replace')[-200:].strip()}")
    return done.stdout


def parse_mirrors(text: str) -> list[str]:
    """URLs of a metalink or mirror list, https first."""
    rows = [line.strip() for line in text.splitlines()]
    found = _METALINK.findall(text) or [r for r in rows if re.match(r"https?://", r)]
    found.sort(key=lambda one: not one.startswith("https:"))
    return [html.unescape(one).rstrip("/") for one in found]


def _mirror(place: RpmRepositorySource, say: fetch.Say) -> str:
    """The first mirror that responds."""
    if not place.mirrors:
        raise UsageError(f"{place.name}: no URL", fix="set a baseurl for the repository")
    say(place.mirrors)
    found = parse_mirrors((fetch.fetch_text(place.mirrors) or b"").decode("utf-8", "replace"))
    for uri in found[:_MIRRORS]:
        try:
            if fetch.fetch_text(f"{uri}/repodata/repomd.xml") is not None:
                return uri
        except ConnectionFailed:
            continue
    listed = f"{len(found)} mirrors, none of which responds" if found else "no mirror"
    raise ConnectionFailed(
        f"{place.mirrors}: lists {listed} for {place.name}",
        fix="check the proxy, or set a baseurl for the repository",
    )


def _is_taken(package: Package, place: RpmRepositorySource) -> bool:
    def hit(patterns: tuple[str, ...]) -> bool:
        names = (package.name, f"{package.name}.{package.architecture}", repodata.nevra(package))
        return any(fnmatch.fnmatchcase(name, one) for one in patterns for name in names)

    return not hit(place.excluded) and (not place.included or hit(place.included))
