"""Parse output and files of rpm, dnf and zypper into the data types of :mod:`gpustate.formats.dpkg`.

A version is ``epoch:version-release``, the epoch left out where it is 0 or not given. A package is held
where dnf's versionlock or a lock of zypper keeps it at what is installed: rpm itself knows no hold.

A package of a 32-bit architecture beside the node's own is one of its own: its name ends in the architecture, as dnf,
zypper and rpm take it (``libnvidia-ml.i686``).

Surprising: ``name`` alone in versionlock.list holds nothing, for it allows every version of the package;
only an entry with a version counts. A lock of zypper may be meant for a repository or a version only; such a
one does not count either.

Sources:
    rpm(8), rpm-queryformat(7); dnf-plugins-core, versionlock (file format, ``!`` excludes); zypper(8),
    "Package Locks Management"; libzypp, zypp/Locks.h (file /etc/zypp/locks).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from html import unescape

from gpustate import shell
from gpustate.formats import rpmversion
from gpustate.formats.dpkg import Candidate, Package

#: Package managers.
MANAGERS = ("apt", "dnf", "zypper")
#: The package with dnf's plugin versionlock.
LOCKS = "python3-dnf-plugin-versionlock"
#: sh: sets ``pm`` to one of them.
FAMILY = shell.load("package_manager", "gpustate.shell")
#: Name, architecture, version; one package a line.
QUERY_FORMAT = r"%{NAME}|%{ARCH}|%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n"

_FOREIGN = ("i386", "i586", "i686")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LABEL = re.compile(
    r"(?:(?P<epoch>[0-9]+):)?(?P<rest>[0-9A-Za-z][0-9A-Za-z.+~^_]*-[0-9A-Za-z.+~^_]+)"
)
_SOLVABLE = re.compile(r"<solvable\s([^>]*?)/?>")
_ATTRIBUTE = re.compile(r"([a-z-]+)=\"([^\"]*)\"")


def is_rpm(manager: str) -> bool:
    """Whether the package manager uses rpm packages."""
    return manager in ("dnf", "zypper")


def is_name(text: str) -> bool:
    """Whether the text is a package name, safe as an argument of a command."""
    return _NAME.fullmatch(text) is not None


def version(text: str) -> str | None:
    """A full version without an epoch of 0; ``None`` if it is not a version."""
    match = _LABEL.fullmatch(text)
    if match is None:
        return None
    epoch = (match["epoch"] or "0").lstrip("0")
    return f"{epoch}:{match['rest']}" if epoch else match["rest"]


def with_epoch(full: str) -> str:
    """A full version with its epoch, as in dnf's versionlock list."""
    return full if ":" in full else f"0:{full}"


def name_of(name: str, arch: str) -> str:
    """The name of a package of one architecture."""
    return f"{name}.{arch}" if arch in _FOREIGN else name


def parse_rows(text: str) -> Iterator[Package]:
    """Read ``rpm -qa --qf QUERY_FORMAT``, with several versions of one package."""
    for line in text.splitlines():
        parts = line.strip().split("|")
        full = version(parts[2]) if len(parts) == 3 else None
        if full is not None and is_name(parts[0]):
            yield Package(name_of(parts[0], parts[1]), full, parts[1], "ii")


def parse_query(text: str, held: Iterable[str] = ()) -> dict[str, Package]:
    """The same by name; of a package that is defined twice, as kernels are, the newest counts.

    Args:
        text: the output.
        held: names of held packages.
    """
    holds = frozenset(held)
    packages: dict[str, Package] = {}
    for package in parse_rows(text):
        known_package = packages.get(package.name)
        if known_package is None or rpmversion.compare(known_package.version, package.version) < 0:
            packages[package.name] = (
                replace(package, status="hi") if package.name in holds else package
            )
    return packages


def versionlocks(text: str) -> tuple[str, ...]:
    """The entries of a versionlock.list that hold a package, without exclusions."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("!"))


def held_by_dnf(entries: Iterable[str], packages: Mapping[str, Package]) -> frozenset[str]:
    """Installed packages that are locked at their version."""
    patterns = tuple(entries)
    return frozenset(
        package.name
        for package in packages.values()
        if any(fnmatch.fnmatchcase(label, p) for p in patterns for label in _labels(package))
    )


def _labels(package: Package) -> tuple[str, ...]:
    """Ways to name a package with its version."""
    full = with_epoch(package.version)
    version_release, name = full.partition(":")[2], package.name.removesuffix(f".{package.arch}")
    labels = [f"{name}-{full}"]
    if full.startswith("0:"):
        labels.append(f"{name}-{version_release}")
    return (*labels, *(f"{label}.{package.arch}" for label in labels))


def held_by_zypper(text: str, packages: Mapping[str, Package]) -> frozenset[str]:
    """Installed packages held by zypper's locks."""
    patterns: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        pairs = (line.partition(":") for line in block.splitlines() if not line.startswith("#"))
        keys = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if (
            keys.get("solvable_name")
            and keys.get("type", "package") == "package"
            and not (keys.get("version") or keys.get("repo") or keys.get("solvable_arch"))
        ):
            patterns.append(keys["solvable_name"])
    names = {n: n.removesuffix(f".{package.arch}") for n, package in packages.items()}
    return frozenset(
        key for key, name in names.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)
    )


def parse_repoquery(text: str) -> dict[str, tuple[Candidate, ...]]:
    """Read ``dnf repoquery --qf 'name|epoch:version-release|repository|architecture'``, the newest first."""
    rows = (line.strip().split("|") for line in text.splitlines())
    return _candidates(
        (name_of(parts[0], parts[3]), parts[1], parts[2]) for parts in rows if len(parts) == 4
    )


def parse_search(text: str) -> dict[str, tuple[Candidate, ...]]:
    """Read ``zypper -x search -s``: versions in repositories, newest first, without installed ones."""
    rows: list[tuple[str, str, str]] = []
    for solvable in _SOLVABLE.finditer(text):
        keys = {key: unescape(value) for key, value in _ATTRIBUTE.findall(solvable[1])}
        origin = keys.get("repository", "")
        if keys.get("kind") == "package" and origin and origin != "(System Packages)":
            name = name_of(keys.get("name", ""), keys.get("arch", ""))
            rows.append((name, keys.get("edition", ""), origin))
    return _candidates(rows)


def _candidates(rows: Iterable[tuple[str, str, str]]) -> dict[str, tuple[Candidate, ...]]:
    by_package: dict[str, dict[Candidate, None]] = {}
    for name, label, origin in rows:
        full = version(label)
        if full is not None and is_name(name):
            by_package.setdefault(name, {})[Candidate(full, origin)] = None
    return {
        name: tuple(sorted(some, key=lambda c: rpmversion.version_key(c.version), reverse=True))
        for name, some in by_package.items()
    }
