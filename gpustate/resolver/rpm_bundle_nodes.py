"""Installed packages and repositories of nodes with dnf or zypper, for bundles: queried, or read from files.

Surprising: libsolv needs everything that installed packages provide and require, files included. :data:`QUERY` prints
that; ``docs/bundle.md`` shows the command for users who pass it as a file.

Sources:
    rpm(8), query formats; createrepo_c, src/misc.c (which files repodata has); dnf, dnf/rpm/__init__.py
    ($releasever); dnf.conf(5), variables; os-release(5).
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpustate.bundle.rpmclosure import Installed, InstalledPackage
from gpustate.core.facts import NodeFacts
from gpustate.core.node import Node
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, UsageError
from gpustate.files import TextFiles
from gpustate.formats import openpgp, rpmversion
from gpustate.formats.driverschemes import RHEL, SUSE
from gpustate.formats.words import quote
from gpustate.resolver.deb_bundles import key_here, keys_of
from gpustate.resolver.rpm_bundles import RpmCase, RpmSource, parse_sources
from gpustate.solve import modules

#: What rpm prints of each package: itself after "=", what it provides after "+", what it needs after "-", its files.
QUERY = (
    r"=%{NAME}|%{EPOCHNUM}:%{VERSION}-%{RELEASE}|%{ARCH}\n[+%{PROVIDENAME}|%{PROVIDEVERSION}\n]"
    r"[-%{REQUIRENAME}|%{REQUIREFLAGS:depflags}|%{REQUIREVERSION}\n][%{FILENAMES}\n]"
)
#: sh: the same without files that repodata does not list.
_INSTALLED = (
    f"rpm -qa --qf '{QUERY}' 2>/dev/null | grep -E '^[=+-]|^/etc/|bin/|^/usr/lib/sendmail$'"
)
#: sh: key files, and the keys that rpm itself has.
_KEYS = (
    "for f in /etc/pki/rpm-gpg/* /usr/share/distribution-gpg-keys/*/* /usr/lib/rpm/gnupg/keys/*; do\n"
    '  [ -f "$f" ] && [ "$(stat -Lc %s "$f")" -lt 300000 ] || continue\n'
    '  case $f in */gpustate-*) continue ;; esac; printf \'%s \' "$f"; base64 -w 0 <"$f"; echo; done\n'
    "printf ' '; rpm -qa --qf '%{DESCRIPTION}\\n' 'gpg-pubkey*' 2>/dev/null | base64 -w 0; echo"
)
#: sh: variables of .repo files.
_VARIABLES = (
    'for f in /etc/yum/vars/* /etc/dnf/vars/*; do [ -f "$f" ] && printf \'%s=%s\\n\' "${f##*/}" "$(head -n 1 "$f")"; done\n'
    "for p in 'system-release(releasever)' 'distribution-release(releasever)'; do\n"
    "  rpm -q --qf '[%{PROVIDENAME}=%{PROVIDEVERSION}\\n]' --whatprovides \"$p\" 2>/dev/null | sed -n 's/^[a-z]*-release(releasever)=/releasever=/p'\n"
    "done\n"
    "rpm -q --qf 'releasever=%{VERSION}\\n' --whatprovides system-release 2>/dev/null | grep '=[0-9]'; :"
)
#: sh: kernels with installed headers.
_READY = 'cd /lib/modules && for k in *; do [ ! -e "$k/build/Makefile" ] || echo "$k"; done'
_OPERATORS = frozenset({"<", "<=", "=", ">=", ">"})
_FOLDERS = {"dnf": "/etc/yum.repos.d/*.repo", "zypper": "/etc/zypp/repos.d/*.repo"}
_FILES = TextFiles("file of sources", UsageError, 4)
_LISTS = TextFiles("list of what is installed", UsageError, 256)
#: Common names of distributions that have another ID in os-release.
_ALIASES = {"alma": "almalinux", "oraclelinux": "ol", "opensuse": "opensuse-leap", "suse": "sles"}


@dataclass(frozen=True, slots=True)
class Family:
    """A distribution with rpm packages.

    Args:
        os_id: as os-release has it.
        manager: dnf or zypper.
    """

    os_id: str
    manager: str


def family(name: str) -> Family | None:
    """A distribution by name; ``None`` when it has no rpm packages, or is unknown."""
    os_id = _ALIASES.get(name, name)
    if os_id in RHEL:
        return Family(os_id, "dnf")
    return Family(os_id, "zypper") if os_id in SUSE else None


def parse_installed(text: str, place: str) -> Installed:
    """Read the output of :data:`QUERY`.

    Raises:
        ProbeError: it is not such output.
    """
    packages: list[InstalledPackage] = []
    for part in re.split(r"^=", text, flags=re.MULTILINE)[1:]:
        head, *rows = part.splitlines()
        words = head.split("|")
        if len(words) != 3 or not rpmversion.is_version(words[1]):
            raise ProbeError(
                f"{place}: {quote(head[:80])} is not a package, expected name|version|machine"
            )
        name, version, arch = words[0], words[1].removeprefix("0:"), words[2]
        if name == "gpg-pubkey":
            continue
        provides, requires = dict.fromkeys(_provided(rows)), dict.fromkeys(_required(rows))
        packages.append(InstalledPackage(name, version, arch, tuple(provides), tuple(requires)))
    if not packages:
        raise ProbeError(f"{place}: lists no package", fix="see docs/bundle.md for the command")
    return Installed(tuple(packages))


def _provided(rows: Iterable[str]) -> Iterable[tuple[str, str]]:
    for row in rows:
        if row.startswith("/"):
            yield row, ""
        elif row.startswith("+"):
            name, _, version = row[1:].rpartition("|")
            yield name, version


def _required(rows: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    for row in rows:
        words = row[1:].rsplit("|", 2)
        if row.startswith("-") and len(words) == 3 and not words[0].startswith("rpmlib("):
            sign = words[1].strip() if words[2] else ""
            yield words[0], sign if sign in _OPERATORS else "", words[2]


# --- nodes ---------------------------------------------------------------------------------


def case(
    node: Node, states: Sequence[AnyState], facts: NodeFacts, kernels: tuple[str, ...]
) -> RpmCase:
    """Query one node.

    Raises:
        ProbeError: the answer is incomplete.
        UsageError: a repository uses an undefined variable.
    """
    texts = node.read_texts(_FOLDERS[facts.package_manager])
    installed = node.shell(_INSTALLED).stdout
    keys = _keys(node.shell(_KEYS).stdout)
    said = (line.partition("=") for line in node.shell(_VARIABLES).stdout.splitlines())
    variables = _variables(facts)
    for name, _, value in reversed([*said]):
        variables[name] = value
    streams = node.shell("cat /etc/dnf/modules.d/*.module 2>/dev/null; :").stdout
    ready = node.shell(_READY).stdout.split()
    sources = tuple(
        one for one in parse_sources(texts, variables) if not one.name.startswith("gpustate-")
    )
    return RpmCase(
        facts,
        states,
        tuple(one for one in sources if not one.get("baseurl").startswith(("cd:", "dvd:", "hd:"))),
        keys,
        kernels,
        (_known(installed),),
        streams=modules.enabled_streams([streams]),
        ready=frozenset(ready),
    )


#: Installed packages by digest, while in use: nodes of one image share them, and they are large.
_KNOWN: weakref.WeakValueDictionary[str, Installed] = weakref.WeakValueDictionary()


def _known(text: str) -> Installed:
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = _KNOWN.get(digest)
    if found is None:
        found = _KNOWN[digest] = parse_installed(text, "rpm's database")
    return found


def _keys(text: str) -> dict[str, bytes]:
    keys = keys_of(text)
    if openpgp.BEGIN.encode() not in keys.get("", b""):
        keys.pop("", None)
    return keys


def _variables(facts: NodeFacts) -> dict[str, str]:
    major = facts.os_version.partition(".")[0]
    release = major if facts.package_manager == "dnf" else facts.os_version
    arch = {"arch": facts.machine, "basearch": facts.machine, "releasever": release}
    return {
        **arch,
        "releasever_major": major,
        "releasever_minor": facts.os_version.partition(".")[2],
    }


# --- files ---------------------------------------------------------------------------------


def named(
    facts: NodeFacts, states: Sequence[AnyState], files: Sequence[str], installed: Sequence[str]
) -> RpmCase:
    """A kind of node that is not queried.

    Args:
        facts: its known facts.
        states: of the policy.
        files: .repo files of its repositories.
        installed: files with installed packages, one a node; without any, nothing counts as installed.

    Raises:
        UsageError: a file cannot be read, or has other contents.
    """
    sources, keys = read_sources(files, facts)
    nodes: list[Installed] = []
    for file in installed:
        try:
            nodes.append(parse_installed(_LISTS.text(file), file))
        except ProbeError as error:
            raise UsageError(error.message, fix="see docs/bundle.md for the command") from None
    return RpmCase(facts, states, sources, keys, nodes=tuple(nodes))


def read_sources(
    files: Sequence[str], facts: NodeFacts
) -> tuple[tuple[RpmSource, ...], Mapping[str, bytes]]:
    """Repositories of .repo files on this machine, and their key files.

    Raises:
        UsageError: a file or key cannot be read.
    """
    sources = parse_sources({file: _FILES.text(file) for file in files}, _variables(facts))
    if not sources:
        raise UsageError(
            "defines no repository", place=files[0], fix="pass a file as in /etc/yum.repos.d"
        )
    keys: dict[str, bytes] = {}
    for source in sources:
        for word in source.get("gpgkey").replace(",", " ").split():
            path = re.sub(r"^file:/+", "/", word)
            if path.startswith("/"):
                keys[path] = key_here(
                    path,
                    of=f"{source.name}: ",
                    place=source.file,
                    fix="set gpgkey to a key file on this machine",
                )
    return sources, keys
