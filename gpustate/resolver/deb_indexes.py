"""The packages in a node's apt indexes that a driver set may need.

There are three queries. :class:`PackageListsQuery` returns a digest of a node's indexes, so that of a thousand
nodes with equal indexes only one is read. :class:`DebDriverQuery` returns the stanzas of packages named like parts
of the driver. :class:`OtherPackagesQuery`, which depends on its result, returns names and versions of their
dependencies, and apt's pins.

Surprising: apt's indexes may be compressed in several formats, and only ``apt-get indextargets`` shows which file
belongs to which repository.

Sources:
    apt-get(8), indextargets; doc/acquire-additional-files.md of apt; apt-cache(8), policy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats import aptsources, driverset
from gpustate.solve import packages, relations
from gpustate.solve.packages import Package, Repository

#: Names of parts of the driver, for awk: those of ``driverset.MEMBER_ERE``.
_NAMES = (
    "((lib)?(nvidia|cuda-drivers|cuda1|cudadebugger1|nvcuvid1|nvoptix1|nvsdm|xnvctrl)[^\\n]*"
    "|[^\\n]*-nvidia[^\\n]*)"
)
_FIELDS = "Package|Version|Architecture|Depends|Pre-Depends|Conflicts|Breaks|Provides|SHA256|Size"
_LISTED = "FILENAME ORIGIN RELEASE COMPONENT SITE ARCHITECTURE"
#: One index a line: file, origin, suite, component, address.
_TARGETS = shell.fill(
    shell.load("deb_targets", "gpustate.resolver"),
    FORMAT="|".join(f"$({word})" for word in _LISTED.split()),
)
_NO_APT = 69
_USER = re.compile(r"//[^/@]*@")


def _origin(origin: str, site: str) -> str:
    return origin or _USER.sub("//", site)


@dataclass(frozen=True, slots=True)
class Lists:
    """The package indexes of a node; equal indexes have the same ``digest``."""

    digest: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class PackageListsQuery(Query[Lists]):
    """Digest of all package indexes and apt's pins."""

    def script(self) -> str:
        return (
            _TARGETS + "t=$(targets) || exit $?\n"
            'printf "%s\\n" "$t" | grep -c .\n'
            '{ printf "%s\\n" "$t" | while IFS="|" read -r f r; do [ -n "$f" ] || continue; echo "$r"; sha256sum <"$f"; done\n'
            "  cat /etc/apt/preferences /etc/apt/preferences.d/* 2>/dev/null; } | sha256sum"
        )

    def parse(self, answer: Answer) -> Lists:
        if answer.status == _NO_APT:
            return Lists()
        count, _, digest = answer.text.strip().partition("\n")
        found = re.match(r"[0-9a-f]{64}", digest)
        if found is None or not count.isdigit():
            raise ProbeError(f"unexpected list of apt indexes: {answer.text[:80]!r}")
        return Lists(found[0], int(count))

    def placeholder(self) -> Lists:
        return Lists()


@dataclass(frozen=True, slots=True)
class DebDriverQuery(Query[tuple[Package, ...]]):
    """All builds of packages named like parts of the driver, with their relations.

    Args:
        kernels: releases whose prebuilt modules are of interest.
    """

    kernels: tuple[str, ...] = ()

    def script(self) -> str:
        ends = "|".join(kernel.replace(".", "[.]").replace("+", "[+]") for kernel in self.kernels)
        package_of = f"&& ($0 !~ /(^|\\n)Package: linux-/ || $0 ~ /(^|\\n)Package: linux-modules-nvidia-[^\\n]*-({ends or '-'})\\n/)"
        awk = (
            f'BEGIN {{ RS = ""; FS = "\\n" }} $0 ~ /(^|\\n)Package: {_NAMES}\\n/ {package_of} {{'
            f" for (i = 1; i <= NF; i++) {{ if ($i !~ /^[ \\t]/) keep = ($i ~ /^({_FIELDS}):/);"
            ' if (keep) print $i } print "" }'
        )
        return (
            _TARGETS + "t=$(targets) || exit $?\ndpkg --print-architecture\n"
            'printf "%s\\n" "$t" | while IFS="|" read -r f r; do [ -n "$f" ] || continue\n'
            f'  printf \'=index|%s\\n\' "$r"; content "$f" | awk {shlex.quote(awk)}\n'
            "done"
        )

    def parse(self, answer: Answer) -> tuple[Package, ...]:
        native = answer.text.partition("\n")[0]
        found = _indexes(answer.text, leaf=False)
        ours = (one for one in found if one.architecture in (native, "all", ""))
        return tuple(one for one in ours if _is_named(one.name) and not _is_empty(one))

    def placeholder(self) -> tuple[Package, ...]:
        return ()


def _is_empty(one: Package) -> bool:
    """A package of a branch that has ended in Ubuntu's archive."""
    needs = ", ".join(map(relations.clause_text, one.depends))
    return driverset.succeeded_by(one.name, needs) is not None


def _is_named(name: str) -> bool:
    return re.fullmatch(_NAMES.replace("\\n", "\n"), name) is not None


def _indexes(text: str, *, leaf: bool) -> Iterator[Package]:
    for part in text.split("=index|")[1:]:
        head, _, body = part.partition("\n")
        words = [*head.split("|"), "", "", "", ""]
        origin, suite, component, site = words[:4]
        where = Repository(_origin(origin, site), suite or "/", component, _USER.sub("//", site))
        yield from packages.parse(body, where, leaf=leaf)


@dataclass(frozen=True, slots=True)
class Others:
    """Packages that driver packages depend on, and apt's pins.

    Args:
        packages: available or installed dependencies.
        forbidden: names and versions that pins forbid.
    """

    packages: tuple[Package, ...] = ()
    forbidden: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class OtherPackagesQuery(Query[Others]):
    """Builds of packages that are or provide some names, and pins of others.

    Args:
        names: packages or provided names that are needed.
        pinned: packages whose pins are of interest.
    """

    names: tuple[str, ...]
    pinned: tuple[str, ...]

    def script(self) -> str:
        awk = (
            'BEGIN { RS = ""; FS = "\\n"; n = split(names, a, " "); for (i = 1; i <= n; i++) want[a[i]] }'
            ' { p = v = d = s = ""; for (i = 1; i <= NF; i++) {'
            " if ($i ~ /^Package: /) p = substr($i, 10); else if ($i ~ /^Version: /) v = $i;"
            " else if ($i ~ /^Provides: /) d = $i; else if ($i ~ /^Status: /) s = $i }"
            ' if (s != "" && s !~ / installed$/) next; hit = (p in want);'
            ' if (!hit && d != "") { m = split(substr(d, 11), b, /[ ,]+/);'
            " for (i = 1; i <= m; i++) if (b[i] in want) { hit = 1; break } }"
            ' if (hit) { print "Package: " p; print v; if (d != "") print d; print "" } }'
        )
        names = shlex.quote(" ".join(self.names))
        return (
            _TARGETS + "t=$(targets) || exit $?\n"
            'printf "%s\\n" "$t" "/var/lib/dpkg/status|installed" | while IFS="|" read -r f r; do [ -n "$f" ] || continue\n'
            f'  printf \'=index|%s\\n\' "$r"; content "$f" | awk -v names={names} {shlex.quote(awk)}\n'
            "done\n"
            f"echo '=policy'; apt-cache policy {shlex.join(self.pinned)}"
        )

    def parse(self, answer: Answer) -> Others:
        listed, _, policy = answer.text.partition("=policy\n")
        offers = aptsources.parse_policy(policy)
        forbidden = ((n, o.version) for n, rows in offers.items() for o in rows if o.priority < 0)
        return Others(tuple(_indexes(listed, leaf=True)), frozenset(forbidden))

    def placeholder(self) -> Others:
        return Others()


def with_pins(found: tuple[Package, ...], others: Others) -> tuple[Package, ...]:
    """Driver packages with apt's pins applied, and the other packages."""
    mine = tuple(
        replace(one, forbidden=True) if (one.name, one.version) in others.forbidden else one
        for one in found
    )
    names = {one.name for one in mine}
    return (*mine, *(one for one in others.packages if one.name not in names))


__all__ = [
    "DebDriverQuery",
    "Lists",
    "OtherPackagesQuery",
    "Others",
    "PackageListsQuery",
    "with_pins",
]
