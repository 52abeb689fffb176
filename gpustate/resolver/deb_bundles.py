"""What a bundle is made for: what the states of a policy would install on nodes of a kind.

A *case* is one distribution on one architecture: nodes of the inventory that were asked, or a name with
a file of sources. For each, the repositories of the policy and those of the distribution are read, the
states' packages chosen from what they offer, as the states themselves would, and all they need is added.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from gpustate.bundle import fetch, upstream
from gpustate.bundle.closure import Available, Baseline, resolve
from gpustate.bundle.manifest import BASE
from gpustate.bundle.upstream import Index, RepositorySource
from gpustate.bundle.write import Selection
from gpustate.core.facts import NodeFacts
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, RefusedError, UsageError
from gpustate.formats import openpgp
from gpustate.formats.aptsources import Source
from gpustate.resolver.bundle_roots import KERNELS, Asked, Root, asked
from gpustate.solve.packages import Universe
from gpustate.states.repository.base import RepositoryState

#: As Debian and Ubuntu call machines.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of node.

    Args:
        facts: of the first of them; GPUs, distribution, machine.
        states: of the policy, with that node's parameters.
        sources: entries of the distribution's own repositories.
        keys: key rings by path; those without a Signed-By are under "".
        kernels: releases that want headers.
        nodes: what each has installed; empty when none was asked.
        packages: to be taken along whatever the states say: names, or ``name=version``.
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
        """As Debian writes it.

        Raises:
            UsageError: there are no packages for such a machine.
        """
        found = ARCHITECTURES.get(self.facts.machine)
        if found is None:
            raise UsageError(
                f"{self.name}: no packages for {self.facts.machine}", fix="x86_64 or aarch64"
            )
        return found


@dataclass(slots=True)
class Read:
    """Repositories that were read, each once for all cases."""

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


def chosen(case: Case, read: Read) -> Selection:
    """Everything that one kind of node gets.

    Raises:
        GpustateError: something is not to be had.
    """
    indexes: dict[str, list[Index]] = {}
    pins: dict[str, frozenset[str]] = {}
    for state in repositories(case.states):
        place = _own(state, case)
        if place is not None:
            indexes[state.name] = [read.index(place, case.architecture)]
            pins[state.name] = frozenset(state.packages(case.facts.os_id))
    own = {index for rows in indexes.values() for index in map(id, rows)}
    indexes[BASE] = [
        one
        for source in case.sources
        if id(one := read.index(_place(source, case), case.architecture)) not in own
    ]
    world = Available(indexes, pins)
    wants = asked(case.states, case.facts, world.versions, case.kernels)
    wants = _complete(wants, case)
    stanzas = resolve(world, wants.roots, Baseline(case.nodes, essential=not case.nodes))
    date = max((one.date for rows in indexes.values() for one in rows), default=0)
    facts = case.facts
    return Selection(
        facts.distribution, facts.machine, case.kernels, package_names(wants), stanzas, date
    )


def repositories(states: Iterable[AnyState]) -> list[RepositoryState]:
    """The states of repositories that are wanted, by name."""
    found = (one for one in states if isinstance(one, RepositoryState) and not one.absent)
    return sorted(found, key=lambda state: state.name)


def _complete(wants: Asked, case: Case) -> Asked:
    """With packages that somebody named, and with headers that are not offered, unless all nodes have them."""
    if wants.problem:
        raise RefusedError(f"{case.name}: {wants.problem}")
    base = Baseline(case.nodes)
    rows = dict(wants.by_state)
    wanted = tuple((name, "") for name in wants.bare.values() if not base.has(name))
    rows[KERNELS] = (*rows.get(KERNELS, ()), *wanted)
    return Asked(with_named(rows, case.packages))


def with_named(
    rows: Mapping[str, tuple[Root, ...]], packages: Sequence[str]
) -> dict[str, tuple[Root, ...]]:
    """What states want, and packages that somebody named as ``name`` or ``name=version``."""
    split = (one.partition("=") for one in packages)
    named = tuple((name, version) for name, _, version in split)
    return {state: some for state, some in {**rows, "--package": named}.items() if some}


def package_names(wants: Asked) -> dict[str, tuple[str, ...]]:
    """What was asked for, as the manifest has it."""
    return {
        state: tuple(f"{name}={version}" if version else name for name, version in rows)
        for state, rows in wants.by_state.items()
    }


def _own(state: RepositoryState, case: Case) -> RepositorySource | None:
    """Where a repository's state takes packages from; ``None``: from the distribution's own entries."""
    where = state.place(case.facts, case.sources)
    if where.problem:
        raise RefusedError(f"{case.name}: {state.name}: {where.problem}")
    if where.uri is None:
        return None
    if where.uri.startswith("mirror"):
        raise UsageError(
            f"{state.name}: {where.uri} is not an address that can be fetched from here"
        )
    if state.login is not None:
        fetch.log_in(where.uri, state.login.user, state.login.password)
    if where.key_url is not None:
        key = fetched_key(where.key_url, where.fingerprint or "")
        return RepositorySource(
            where.uri, where.suite, where.components, (key,), (where.fingerprint or "",)
        )
    if state.key is not None:
        key = state.key.encode()
        return RepositorySource(
            where.uri, where.suite, where.components, (key,), openpgp.fingerprints(state.key)
        )
    entry = Source("", where.uri, where.suite, where.components, where.signed_by)
    return _place(entry, case)


def fetched_key(url: str, fingerprint: str) -> bytes:
    """The key at an address, when it is the one whose fingerprint is wanted.

    Raises:
        RefusedError: it is another, or none.
    """
    key = fetch.fetch_text(url)
    if key is None:
        raise RefusedError(f"{url}: there is no such key", fix="set key")
    try:
        have = openpgp.primaries(openpgp.binary(key))
    except ValueError as error:
        raise RefusedError(f"{url}: is not a key ({error})") from None
    if fingerprint not in have:
        raise RefusedError(f"{url}: has the key {', '.join(have)}, wanted {fingerprint}")
    return key


def keys_of(text: str) -> dict[str, bytes]:
    """Keys that a node printed, by path: a line each, the bytes as base64 behind the last blank.

    Raises:
        ProbeError: one did not arrive whole.
    """
    keys: dict[str, bytes] = {}
    for line in text.splitlines():
        path, _, body = line.rpartition(" ")
        try:
            keys[path.strip()] = base64.b64decode(body, validate=True)
        except ValueError:
            raise ProbeError(f"the key {path} did not arrive whole") from None
    return keys


def key_here(path: str, *, of: str, place: str, fix: str) -> bytes:
    """A key file of this machine.

    Args:
        path: the file.
        of: whose it is, for the message, with a colon; empty where the path says it.
        place: the file that names it.
        fix: the next move.

    Raises:
        UsageError: it is not to be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UsageError(
            f"{of}the key {path} cannot be read ({why})", place=place, fix=fix
        ) from error


def _place(source: Source, case: Case) -> RepositorySource:
    """A source entry with the keys that its Signed-By names."""
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
            raise UsageError(f"{source.uri}: its key {path} is not there", place=source.file)
        keys.append(case.keys[path])
    if not keys and "" in case.keys:
        keys.append(case.keys[""])
    return RepositorySource(source.uri, source.suite, source.components, tuple(keys), fingerprints)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


AnyNamed = TypeVar("AnyNamed", bound=_Named)


def by_kind(cases: Iterable[AnyNamed]) -> list[list[AnyNamed]]:
    """Cases of one kind of node together, sorted by its name."""
    kinds: dict[str, list[AnyNamed]] = {}
    for case in cases:
        kinds.setdefault(case.name, []).append(case)
    return [rows for _, rows in sorted(kinds.items())]


def grouped(cases: Iterable[Case]) -> list[Case]:
    """One case for all nodes of a kind: all their kernels, and what every one of them has."""
    made: list[Case] = []
    for rows in by_kind(cases):
        first = rows[0]
        kernels = tuple(sorted({kernel for row in rows for kernel in row.kernels}))
        sources = tuple(dict.fromkeys(source for row in rows for source in row.sources))
        keys = {path: key for row in rows for path, key in row.keys.items()}
        nodes = tuple(one for row in rows for one in row.nodes)
        made.append(Case(first.facts, first.states, sources, keys, kernels, nodes, first.packages))
    return made
