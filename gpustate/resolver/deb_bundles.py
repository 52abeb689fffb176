"""Bundle contents for nodes with apt.

A *case* is one distribution on one architecture: queried nodes of the inventory, or a name with a source file.
For each, the repositories of the policy and of the distribution are read, the states' packages are chosen as by
the states themselves, and all dependencies are added.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from gpustate.bundle import fetch, upstream
from gpustate.bundle.closure import Available, Baseline, resolve
from gpustate.bundle.manifest import BASE
from gpustate.bundle.offers import Offers
from gpustate.bundle.upstream import Index, RepositorySource
from gpustate.bundle.write import Selection
from gpustate.core.facts import NodeFacts
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, RefusedError, UsageError
from gpustate.formats import openpgp
from gpustate.formats.aptsources import Source
from gpustate.resolver.bundle_roots import KERNELS, RequiredPackages, Root, required_packages
from gpustate.solve.packages import Universe
from gpustate.states.repository.base import RepositoryState
from gpustate.states.repository.where import archive_sources

#: Debian's names of machines.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of node.

    Args:
        facts: of the first node; GPUs, distribution, machine.
        states: of the policy, with that node's parameters.
        sources: entries of the distribution's own repositories.
        keys: key rings by path; the default ones are under "".
        kernels: releases that need headers.
        nodes: installed packages of each; empty if none was queried.
        packages: additional packages: names, or ``name=version``.
    """

    facts: NodeFacts
    states: Sequence[AnyState]
    sources: tuple[Source, ...]
    keys: Mapping[str, bytes]
    kernels: tuple[str, ...] = ()
    nodes: tuple[Universe, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.facts.distribution}-{self.facts.machine}"

    @property
    def architecture(self) -> str:
        """Debian's name of the architecture.

        Raises:
            UsageError: the machine is unsupported.
        """
        found = ARCHITECTURES.get(self.facts.machine)
        if found is None:
            raise UsageError(
                f"{self.name}: unsupported machine {self.facts.machine}",
                fix="use x86_64 or aarch64",
            )
        return found


@dataclass(slots=True)
class Read:
    """Repositories, each read once for all cases."""

    cache: Path
    say: fetch.Say = lambda _: None
    known: dict[tuple[RepositorySource, str], Index] = field(
        default_factory=dict[tuple[RepositorySource, str], Index]
    )

    def index(self, place: RepositorySource, architecture: str) -> Index:
        """One repository."""
        key = (place, architecture)
        if key not in self.known:
            self.known[key] = upstream.read(place, architecture, self.cache, self.say)
        return self.known[key]


def select(case: Case, read: Read) -> Selection:
    """Select the packages for one kind of node.

    Raises:
        GpustateError: a package is unavailable.
    """
    indexes: dict[str, list[Offers]] = {}
    pins: dict[str, frozenset[str]] = {}
    base = [read.index(_place(source, case), case.architecture) for source in case.sources]
    for state in repositories(case.states):
        rows = [read.index(place, case.architecture) for place in _own(state, case)]
        if not rows:
            continue
        names = frozenset(state.packages(case.facts.os_id))
        pins[state.name] = names
        indexes[state.name] = [*rows]
        if state.source == "distribution":
            # The archive has everything else, too.
            base += rows
            indexes[state.name] = [index.only(names) for index in rows]
    own = {id(one) for rows in indexes.values() for one in rows}
    indexes[BASE] = [*{id(one): one for one in base if id(one) not in own}.values()]
    world = Available(indexes, pins)
    wants = required_packages(case.states, case.facts, world.versions, case.kernels)
    wants = _complete(wants, case)
    stanzas = resolve(world, wants.roots, Baseline(case.nodes, essential=not case.nodes))
    date = max((one.date for rows in indexes.values() for one in rows), default=0)
    facts = case.facts
    return Selection(
        facts.distribution, facts.machine, case.kernels, package_names(wants), stanzas, date
    )


def repositories(states: Iterable[AnyState]) -> list[RepositoryState]:
    """The repository states that are not removed, by name."""
    found = (one for one in states if isinstance(one, RepositoryState) and not one.absent)
    return sorted(found, key=lambda state: state.name)


def _complete(wants: RequiredPackages, case: Case) -> RequiredPackages:
    """Add packages from the command line, and unavailable headers unless all nodes have them."""
    if wants.problem:
        raise RefusedError(f"{case.name}: {wants.problem}")
    base = Baseline(case.nodes)
    rows = dict(wants.by_state)
    wanted = tuple((name, "") for name in wants.bare.values() if not base.has(name))
    rows[KERNELS] = (*rows.get(KERNELS, ()), *wanted)
    return RequiredPackages(with_named(rows, case.packages))


def with_named(
    rows: Mapping[str, tuple[Root, ...]], packages: Sequence[str]
) -> dict[str, tuple[Root, ...]]:
    """Packages of states, and additional ones as ``name`` or ``name=version``."""
    split = (one.partition("=") for one in packages)
    named = tuple((name, version) for name, _, version in split)
    return {state: some for state, some in {**rows, "--package": named}.items() if some}


def package_names(wants: RequiredPackages) -> dict[str, tuple[str, ...]]:
    """Required packages in the manifest's form."""
    return {
        state: tuple(f"{name}={version}" if version else name for name, version in rows)
        for state, rows in wants.by_state.items()
    }


def _own(state: RepositoryState, case: Case) -> tuple[RepositorySource, ...]:
    """The repository of a state; of the archive, each of its entries."""
    where = state.place(case.facts, case.sources)
    if where.problem:
        raise RefusedError(f"{case.name}: {state.name}: {where.problem}")
    if state.source == "distribution":
        return tuple(_place(one, case) for one in archive_sources(case.facts, where, case.sources))
    if where.uri is None:
        return ()
    if where.uri.startswith("mirror"):
        raise UsageError(f"{state.name}: {where.uri} is not a URL that can be downloaded")
    if state.login is not None:
        fetch.log_in(where.uri, state.login.user, state.login.password)
    if where.key_url is not None:
        key, fingerprint = fetched_key(where.key_url, where.fingerprint or "", where.sha256)
        prints: tuple[str, ...] = (fingerprint,)
    else:
        key, prints = (state.key or "").encode(), openpgp.fingerprints(state.key or "")
    return (RepositorySource(where.uri, where.suite, where.components, (key,), prints),)


def fetched_key(url: str, fingerprint: str, sha256: str) -> tuple[bytes, str]:
    """Download a key and check its fingerprint, or the end of that and its file; the key and its whole fingerprint.

    Raises:
        RefusedError: it is missing or another key.
    """
    key = fetch.fetch_text(url)
    if key is None:
        raise RefusedError(f"{url}: no such key", fix="set key")
    try:
        have = openpgp.primaries(openpgp.binary(key))
    except ValueError as error:
        raise RefusedError(f"{url}: is not a key ({error})") from None
    matches = [one for one in have if one.endswith(fingerprint)]
    file = b"".join(row for row in key.splitlines(True) if not row.startswith(b"Version"))
    if not matches or sha256 not in ("", hashlib.sha256(file).hexdigest()):
        raise RefusedError(
            f"{url}: has the key {', '.join(have)}, wanted {fingerprint} {sha256}".rstrip()
        )
    return key, matches[0]


def keys_of(text: str) -> dict[str, bytes]:
    """Parse keys printed by a node, by path: one per line, as base64 after the last blank.

    Raises:
        ProbeError: one is incomplete.
    """
    keys: dict[str, bytes] = {}
    for line in text.splitlines():
        path, _, body = line.rpartition(" ")
        try:
            keys[path.strip()] = base64.b64decode(body, validate=True)
        except ValueError:
            raise ProbeError(f"the key {path} is incomplete") from None
    return keys


def key_here(path: str, *, of: str, place: str, fix: str) -> bytes:
    """Read a key file on this machine.

    Args:
        path: the file.
        of: its repository, for the message, with a colon; may be empty.
        place: the file that refers to it.
        fix: the next step.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UsageError(
            f"{of}the key {path} cannot be read ({why})", place=place, fix=fix
        ) from error


def _place(source: Source, case: Case) -> RepositorySource:
    """A source entry with the keys of its Signed-By."""
    if openpgp.BEGIN in source.signed_by:
        lines = (line.strip() for line in source.signed_by.splitlines())
        text = "\n".join("" if line == "." else line for line in lines)
        return RepositorySource(source.uri, source.suite, source.components, (text.encode(),))
    words = source.signed_by.replace(",", " ").split()
    fingerprints = tuple(word.rstrip("!").upper() for word in words if not word.startswith("/"))
    paths = [word for word in words if word.startswith("/")]
    keys: list[bytes] = []
    for path in paths:
        if path not in case.keys:
            raise UsageError(f"{source.uri}: its key {path} is missing", place=source.file)
        keys.append(case.keys[path])
    if not keys and "" in case.keys:
        keys.append(case.keys[""])
    return RepositorySource(source.uri, source.suite, source.components, tuple(keys), fingerprints)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


AnyNamed = TypeVar("AnyNamed", bound=_Named)


def by_kind(cases: Iterable[AnyNamed]) -> list[list[AnyNamed]]:
    """Group cases by kind of node, sorted by name."""
    kinds: dict[str, list[AnyNamed]] = {}
    for case in cases:
        kinds.setdefault(case.name, []).append(case)
    return [rows for _, rows in sorted(kinds.items())]


def merge_cases(cases: Iterable[Case]) -> list[Case]:
    """Merge the nodes of a kind into one case: all kernels, and all installed packages."""
    made: list[Case] = []
    for rows in by_kind(cases):
        first = rows[0]
        kernels = tuple(sorted({kernel for row in rows for kernel in row.kernels}))
        sources = tuple(dict.fromkeys(source for row in rows for source in row.sources))
        keys = {path: key for row in rows for path, key in row.keys.items()}
        nodes = tuple(one for row in rows for one in row.nodes)
        made.append(Case(first.facts, first.states, sources, keys, kernels, nodes, first.packages))
    return made
