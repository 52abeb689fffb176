"""Bundle contents for nodes with dnf or zypper: like :mod:`~gpustate.resolver.deb_bundles`, for rpm packages.

Surprising: packages of the policy's repositories come from there only, whatever others offer, as with dnf and
zypper. A repository of the distribution is trusted as dnf trusts it, by signed metadata or signed packages.

Sources:
    dnf.conf(5): repository options, variables; zypper(8); dnf, dnf/rpm/__init__.py (what $releasever stands for).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustate.bundle import fetch, rpmclosure, rpmupstream
from gpustate.bundle.closure import SOURCES, Available
from gpustate.bundle.manifest import BASE
from gpustate.bundle.offers import Offers
from gpustate.bundle.rpmclosure import Installed
from gpustate.bundle.rpmupstream import RpmRepositorySource
from gpustate.bundle.write import Selection
from gpustate.core.facts import NodeFacts
from gpustate.core.state import AnyState
from gpustate.errors import RefusedError, UsageError
from gpustate.formats import openpgp, rpm, rpmrepos
from gpustate.resolver.bundle_roots import RequiredPackages, required_packages
from gpustate.resolver.deb_bundles import (
    by_kind,
    fetched_key,
    package_names,
    repositories,
    with_named,
)
from gpustate.states.repository.base import RepositoryState

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
#: Options of a repository with which it wants more than an address.
_SECRETS = ("sslclientcert", "username")


@dataclass(frozen=True, slots=True)
class RpmSource:
    """An enabled repository of a .repo file.

    Args:
        name: its id.
        file: path of the .repo file.
        options: its options, with variables replaced.
    """

    name: str
    file: str
    options: tuple[tuple[str, str], ...]

    def get(self, key: str, default: str = "") -> str:
        """Value of an option."""
        return dict(self.options).get(key, default)

    def is_on(self, key: str, default: str) -> bool:
        """Value of a boolean option."""
        return self.get(key, default).lower() not in rpmrepos.OFF


@dataclass(frozen=True, slots=True)
class RpmCase:
    """One kind of node with rpm packages.

    Args:
        facts, states, kernels, packages: as of :class:`~gpustate.resolver.deb_bundles.Case`.
        sources: repositories of the distribution.
        keys: key files by path; those of rpm's own database are under "".
        nodes: installed packages of each; empty when unknown.
        streams: enabled module stream by module.
        ready: kernels with installed headers, from any source.
    """

    facts: NodeFacts
    states: Sequence[AnyState]
    sources: tuple[RpmSource, ...]
    keys: Mapping[str, bytes]
    kernels: tuple[str, ...] = ()
    nodes: tuple[Installed, ...] = ()
    packages: tuple[str, ...] = ()
    streams: Mapping[str, str] = field(default_factory=dict[str, str])
    ready: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.facts.distribution}-{self.facts.machine}"


def parse_sources(texts: Mapping[str, str], variables: Mapping[str, str]) -> tuple[RpmSource, ...]:
    """Enabled repositories of .repo files, by path.

    Args:
        texts: the files.
        variables: values of ``$basearch`` and the like.

    Raises:
        UsageError: a variable is not defined.
    """
    return tuple(
        RpmSource(
            one.id,
            file,
            tuple((k, _filled(v, variables, one.id, file)) for k, v in one.options.items()),
        )
        for file, text in texts.items()
        for one in rpmrepos.sections(text)
    )


def _filled(text: str, variables: Mapping[str, str], section: str, file: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise UsageError(
                f"{section}: undefined variable ${match[1]}",
                place=file,
                fix="write its value instead",
            )
        return variables[match[1]]

    return _VARIABLE.sub(value, text)


@dataclass(slots=True)
class RpmRead:
    """Repositories, each read once for all cases."""

    cache: Path
    say: fetch.Say = lambda _: None
    known: dict[Any, Offers] = field(default_factory=dict[Any, Offers])

    def offers(
        self, place: RpmRepositorySource, machine: str, streams: Mapping[str, str]
    ) -> Offers:
        """One repository."""
        key = (place, machine, tuple(sorted(streams.items())))
        if key not in self.known:
            self.known[key] = rpmupstream.read(place, machine, streams, self.cache, self.say)
        return self.known[key]


def select(case: RpmCase, read: RpmRead) -> Selection:
    """The bundle's packages for one kind of node.

    Raises:
        GpustateError: a package is unavailable.
    """
    facts = case.facts
    if facts.machine not in ("x86_64", "aarch64"):
        raise UsageError(
            f"{case.name}: unsupported machine {facts.machine}", fix="x86_64 or aarch64"
        )
    offers: dict[str, list[Offers]] = {}
    for state in sorted(repositories(case.states), key=_priority):
        offers[state.name] = [read.offers(_own(state, case), facts.machine, case.streams)]
    pins = _pins(offers)
    offers[BASE] = [
        read.offers(_place(source, case), facts.machine, case.streams) for source in case.sources
    ]
    world = Available(offers, pins)
    wants = _complete(required_packages(case.states, facts, world.versions, case.kernels), case)
    # A node without it gets it from the bundle alone.
    plugin = tuple((rpm.LOCKS, "") for one in offers[BASE] if rpm.LOCKS in one.stanzas)[:1]
    builds = rpmclosure.resolve(world, (*wants.roots, *plugin), case.nodes)
    date = max((one.date for rows in offers.values() for one in rows), default=0)
    return Selection(
        facts.distribution, facts.machine, case.kernels, package_names(wants), builds, date
    )


def _pins(offers: Mapping[str, Sequence[Offers]]) -> dict[str, frozenset[str]]:
    """Names that come from the policy's repositories only, each from the one with the best priority, which is first."""
    pins: dict[str, frozenset[str]] = {}
    for name, rows in offers.items():
        there = frozenset(n for one in rows for n in one.stanzas)
        pins[name] = there.difference(*pins.values())
    return pins


def _priority(state: RepositoryState) -> tuple[int, str]:
    return rpmrepos.PRIORITIES.get(state.name, 50), state.name


def _complete(wants: RequiredPackages, case: RpmCase) -> RequiredPackages:
    if wants.problem:
        raise RefusedError(f"{case.name}: {wants.problem}")
    for kernel, package in wants.bare.items():
        if kernel not in case.ready:
            raise RefusedError(
                f"{case.name}: no repository offers {package}, the headers of kernel {kernel}",
                fix=SOURCES,
            )
    return RequiredPackages(with_named(wants.by_state, case.packages))


def _own(state: RepositoryState, case: RpmCase) -> RpmRepositorySource:
    """The upstream repository of a state."""
    where = state.rpm_place(case.facts)
    if where.problem or where.uri is None:
        raise RefusedError(f"{case.name}: {state.name}: {where.problem}")
    if state.login is not None:
        fetch.log_in(where.uri, state.login.user, state.login.password)
    if where.key_url is not None:
        key, fingerprint = fetched_key(where.key_url, where.fingerprint or "", where.sha256)
        fingerprints: tuple[str, ...] = (fingerprint,)
    else:
        key = (state.key or "").encode()
        fingerprints = openpgp.fingerprints(state.key or "")
    return RpmRepositorySource(
        state.name,
        where.uri,
        "",
        (key,),
        fingerprints,
        packages_signed=where.signed in ("packages", "both"),
        metadata_signed=where.signed in ("metadata", "both"),
        hotfixes=True,
    )


def _place(source: RpmSource, case: RpmCase) -> RpmRepositorySource:
    """A repository of the distribution with the keys that its gpgkey names."""
    secret = next((key for key in _SECRETS if source.get(key)), "")
    if secret:
        raise UsageError(
            f"{source.name}: requires {secret}, which is not supported here",
            place=source.file,
            fix="mirror it with dnf reposync and pass the mirror with --sources",
        )
    keys: list[bytes] = []
    for word in source.get("gpgkey").replace(",", " ").split():
        path = re.sub(r"^file:/+", "/", word)
        if path.startswith("/") and path in case.keys:
            keys.append(case.keys[path])
        elif path.startswith("/"):
            raise UsageError(f"{source.name}: key file {path} is missing", place=source.file)
    if not keys and "" in case.keys:
        keys.append(case.keys[""])
    # zypper verifies packages where it does not verify metadata; dnf does as configured.
    metadata = "1" if case.facts.package_manager == "zypper" else "0"
    metadata = metadata if source.is_on("gpgcheck", "1") else "0"
    uri = (source.get("baseurl").replace(",", " ").split() or [""])[0]
    return RpmRepositorySource(
        source.name,
        re.sub(r"/+$", "", uri) + source.get("path", "").rstrip("/") if uri else "",
        source.get("metalink") or source.get("mirrorlist"),
        tuple(keys),
        packages_signed=source.is_on("pkg_gpgcheck", source.get("gpgcheck", "1")),
        metadata_signed=source.is_on("repo_gpgcheck", metadata),
        hotfixes=source.is_on("module_hotfixes", "0"),
        excluded=_patterns(source, "exclude"),
        included=_patterns(source, "include"),
    )


def _patterns(source: RpmSource, kind: str) -> tuple[str, ...]:
    words = f"{source.get(kind)} {source.get(f'{kind}pkgs')}"
    return tuple(filter(None, re.split(r"[\s,]+", words)))


def merge_cases(cases: Iterable[RpmCase]) -> list[RpmCase]:
    """One case for all nodes of a kind: all kernels, and the installed packages of each node."""
    made: list[RpmCase] = []
    for rows in by_kind(cases):
        first = rows[0]
        bare = {kernel for row in rows for kernel in row.kernels if kernel not in row.ready}
        made.append(
            RpmCase(
                first.facts,
                first.states,
                tuple(dict.fromkeys(source for row in rows for source in row.sources)),
                {path: key for row in rows for path, key in row.keys.items()},
                tuple(sorted({kernel for row in rows for kernel in row.kernels})),
                tuple({id(node): node for row in rows for node in row.nodes}.values()),
                first.packages,
                first.streams,
                frozenset(kernel for row in rows for kernel in row.ready) - bare,
            )
        )
    return made
