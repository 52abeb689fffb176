"""Packages of a node's rpm repositories, as far as a driver set can need them.

There are two queries, after :mod:`~gpustate.resolver.rpm_repositories`. :class:`RpmDriverQuery`
returns the packages of the driver, cut out of ``primary.xml`` on the node, and the module streams they belong
to; :class:`OtherRpmsQuery` what those need of others, out of repositories and rpm's database.

Surprising: a file that does not match its hash in ``repomd.xml`` is refused; only the node decompresses.

Sources:
    createrepo_c, src/xml_dump_primary.c; dnf.conf(5): excludepkgs, includepkgs, priority, module_hotfixes;
    rpm(8), query formats.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats import driverset
from gpustate.formats.dpkg import upstream_version
from gpustate.resolver.rpm_repositories import FIX, Repositories, RpmRepository
from gpustate.solve import modules, repodata
from gpustate.solve.modules import Modules
from gpustate.solve.packages import Package, Repository

#: Names of parts of the driver in XML, for awk: as ``driverset.MEMBER_ERE`` has them.
_NAMES = "<name>((lib)?(nvidia|cuda-drivers)[^<]*|[^<]*-nvidia[^<]*)</name>"
_SUMS = {"sha256": "sha256sum", "sha512": "sha512sum", "sha384": "sha384sum"}
_SUMS |= {"sha224": "sha224sum", "sha1": "sha1sum", "sha": "sha1sum"}
_DAMAGED = 70
_CONTENT = (
    'content() { case $1 in *.gz) gzip -dc <"$1";; *.xz) xz -dc <"$1";; *.bz2) bzip2 -dc <"$1";;\n'
    '  *.zst) command -v zstd >/dev/null || { echo \'=zstd\'; exit 71; }; zstd -dcq <"$1";; *) cat "$1";; esac; }\n'
)


# --- the driver's packages -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RpmDriverQuery(Query[tuple[Package, ...]]):
    """All builds of packages named like parts of the driver, with those marked that dnf's settings forbid.

    Args:
        repositories: of the node.
    """

    repositories: Repositories

    def script(self) -> str:
        cut = "".join(
            f'gsub(/<{tag}>[^<]*<\\/{tag}>/, ""); ' for tag in ("description", "summary", "url")
        )
        awk = (
            f'BEGIN {{ RS = "</package>" }} $0 ~ "{_NAMES}" {{ sub(/^.*<package /, "<package ");'
            f' {cut}gsub(/<file[ >][^<]*<\\/file>/, ""); print $0 "</package>" }}'
        )
        streams = 'BEGIN { RS = "\\n---" } /nvidia|cuda/ { sub(/^---/, ""); print "---" $0 }'
        lines = [_CONTENT]
        for row in self.repositories.rows:
            lines.append(_part(row, row.primary, "primary", awk))
            if row.modules is not None:
                lines.append(_part(row, row.modules, "modules", streams))
        return "\n".join(lines)

    def parse(self, answer: Answer) -> tuple[Package, ...]:
        by_name = {row.name: row for row in self.repositories.rows}
        found: list[Package] = []
        known: list[Modules] = []
        for kind, name, body in _parts(answer):
            row = by_name[name]
            if kind == "modules":
                known.append(modules.parse(body, f"modules.yaml of {name}"))
                continue
            wanted = (self.repositories.machine, "noarch")
            found += [
                _excluded(one, row)
                for one in repodata.parse_primary(
                    _whole(body), row.origin, f"primary.xml of {name}", architectures=wanted
                )
                if is_part(one.name, one.version)
            ]
        hotfixes = {row.name for row in by_name.values() if row.hotfixes}
        plain = [one for one in found if one.repository.origin in hotfixes]
        rest = [one for one in found if one.repository.origin not in hotfixes]
        visible = (*plain, *modules.apply_streams(rest, known, dict(self.repositories.streams)))
        return tuple(_by_priority(visible, {n: row.priority for n, row in by_name.items()}))

    def placeholder(self) -> tuple[Package, ...]:
        return ()


def is_part(name: str, version: str) -> bool:
    """Whether an rpm package belongs to the driver: by its name and version."""
    return driverset.is_member(name, version) and driverset.is_version(upstream_version(version))


def _part(row: RpmRepository, file: repodata.Location, kind: str, awk: str) -> str:
    """Script that verifies a file's hash and prints the relevant part of it."""
    path, mark = shlex.quote(f"{row.folder}/{file.href}"), shlex.quote(f"={kind}|{row.name}")
    check = ""
    if file.algorithm:
        damaged = shlex.quote(f"=damaged|{row.name}")
        check = (
            f"case $({_SUMS[file.algorithm]} <{path} 2>/dev/null) in {file.checksum}*) ;; "
            f"*) echo {damaged}; exit {_DAMAGED};; esac\n"
        )
    return f"{check}echo {mark}; content {path} | awk {shlex.quote(awk)}\n"


def _parts(answer: Answer) -> Iterator[tuple[str, str, str]]:
    text = f"\n{answer.text}"
    if answer.status == _DAMAGED:
        name = text.rpartition("\n=damaged|")[2].strip()
        raise RefusedError(f"dnf's repodata of {name[:80]} does not match its repomd.xml", fix=FIX)
    if "\n=zstd" in text:
        raise RefusedError(
            "dnf's repodata is compressed with zstd, but zstd is not installed on the node",
            fix="install the package zstd on the node",
        )
    if answer.status != 0:
        raise ProbeError(f"cannot read dnf's repodata: {answer.text[-80:]!r}")
    for part in re.split(r"\n=(?=(?:primary|modules|installed)\|)", text)[1:]:
        head, _, body = part.partition("\n")
        kind, _, name = head.partition("|")
        yield kind, name, body


def _whole(packages: str) -> bytes:
    """Wrap part of a primary.xml as a document."""
    return b"<metadata>" + packages.encode() + b"</metadata>"


def _excluded(package: Package, row: RpmRepository) -> Package:
    def hit(patterns: tuple[str, ...]) -> bool:
        full = repodata.nevra(package)
        names = (
            package.name,
            f"{package.name}.{package.architecture}",
            full,
            full.replace("-0:", "-"),
        )
        return any(fnmatch.fnmatchcase(name, one) for one in patterns for name in names)

    if hit(row.excluded) or (row.included and not hit(row.included)):
        return replace(package, forbidden=True, forbidden_by="an excludepkgs or includepkgs of dnf")
    return package


def _by_priority(packages: Iterable[Package], priority: Mapping[str, int]) -> Iterator[Package]:
    """Apply dnf's priorities: a package comes only from the repositories with the lowest number."""
    packages = tuple(packages)
    best: dict[str, int] = {}
    for one in packages:
        if not one.forbidden:
            mine = priority[one.repository.origin]
            best[one.name] = min(best.get(one.name, mine), mine)
    for one in packages:
        if not one.forbidden and priority[one.repository.origin] > best[one.name]:
            yield replace(one, forbidden=True, forbidden_by="a repository with a better priority")
        else:
            yield one


# --- what they need ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OtherRpmsQuery(Query[tuple[Package, ...]]):
    """Builds that provide some names, offered or installed.

    Args:
        repositories: of the node.
        names: packages or capabilities that are needed.
    """

    repositories: Repositories
    names: tuple[str, ...]

    def script(self) -> str:
        want = 'n = split(names, a, "\\n"); for (i = 1; i <= n; i++) want[a[i]]'
        awk = (
            f'BEGIN {{ RS = "</package>"; {want} }} {{'
            ' sub(/^.*<package /, "<package "); head = $0; sub(/<rpm:provides>.*/, "", head);'
            " if (!match($0, /<rpm:provides>/)) next; rest = substr($0, RSTART);"
            ' sub(/<\\/rpm:provides>.*/, "", rest); hit = "";'
            " m = split(rest, rows, /<rpm:entry /); for (i = 2; i <= m; i++) { row = rows[i];"
            ' if (!match(row, /name="[^"]*"/)) continue;'
            ' if (substr(row, RSTART + 6, RLENGTH - 7) in want) { sub(/>[^>]*$/, ">", row); hit = hit "<rpm:entry " row } }'
            ' if (hit == "") next; match(head, /<name>[^<]*<\\/name>/); out = substr(head, RSTART, RLENGTH);'
            " match(head, /<arch>[^<]*<\\/arch>/); out = out substr(head, RSTART, RLENGTH);"
            " match(head, /<version [^>]*>/); out = out substr(head, RSTART, RLENGTH);"
            ' print "<package type=\\"rpm\\">" out "<format><rpm:provides>" hit "</rpm:provides></format></package>" }'
        )
        given = f"names={shlex.quote(chr(10).join(self.names))}; export names\n"
        awk = awk.replace("BEGIN {", 'BEGIN { names = ENVIRON["names"];', 1)
        rows = 'BEGIN { FS = "|"; names = ENVIRON["names"]; ' + want + " } $4 in want { print }"
        query = "[%{=NAME}|%{=EPOCHNUM}:%{=VERSION}-%{=RELEASE}|%{=ARCH}|%{PROVIDENAME}|%{PROVIDEVERSION}\\n]"
        parts = (_part(row, row.primary, "primary", awk) for row in self.repositories.rows)
        return (
            _CONTENT + given + "\n".join(parts) + "\necho '=installed|'; "
            f"rpm -qa --qf {shlex.quote(query)} 2>/dev/null | awk {shlex.quote(rows)}"
        )

    def parse(self, answer: Answer) -> tuple[Package, ...]:
        by_name = {row.name: row for row in self.repositories.rows}
        found: list[Package] = []
        for kind, name, body in _parts(answer):
            if kind == "installed":
                found += _installed(body)
                continue
            row = by_name[name]
            found += [
                _excluded(one, row)
                for one in repodata.parse_primary(
                    _whole(body),
                    row.origin,
                    f"primary.xml of {name}",
                    architectures=(self.repositories.machine, "noarch"),
                    leaf=True,
                )
            ]
        return tuple(found)

    def placeholder(self) -> tuple[Package, ...]:
        return ()


def _installed(text: str) -> Iterator[Package]:
    here = Repository("installed")
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == 5:
            name, version, arch, provided, bound = words
            yield Package(
                name,
                version.removeprefix("0:"),
                here,
                arch,
                provides=((provided, bound),),
                leaf=True,
                rpm=True,
            )


def with_others(mine: tuple[Package, ...], others: Iterable[Package]) -> tuple[Package, ...]:
    """Driver packages and the other packages; capabilities of one build are merged."""
    names = {one.name for one in mine}
    merged: dict[tuple[str, str, str, str], Package] = {}
    for one in others:
        if one.name in names:
            continue
        key = (one.name, one.version, one.architecture, one.repository.origin)
        have = merged.get(key)
        together = dict.fromkeys((*(have.provides if have else ()), *one.provides))
        merged[key] = replace(one, provides=tuple(together))
    return (*mine, *merged.values())


__all__ = ["OtherRpmsQuery", "RpmDriverQuery", "is_part", "with_others"]
