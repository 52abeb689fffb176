"""Bundles and nodes: fetch the packages of a bundle on nodes, use a bundle in a policy, check a node against it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpustate import registry
from gpustate.bundle import reading
from gpustate.bundle.manifest import BASE, Manifest
from gpustate.bundle.write import Origin, Selection
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.policy import Policy, build, parameters, resolve
from gpustate.core.state import AnyState
from gpustate.engine import fleet
from gpustate.engine.probing import probe_states, query_node
from gpustate.errors import (
    ConnectionFailed,
    GpustateError,
    PolicyError,
    ProbeError,
    RefusedError,
    UsageError,
)
from gpustate.formats.dpkg import Candidate
from gpustate.formats.rpm import LOCKS, MANAGERS, is_rpm
from gpustate.formats.rpmrepos import PRIORITIES
from gpustate.formats.words import quote
from gpustate.ops.package_steps import word
from gpustate.ops.upload import BUNDLE_FOLDER
from gpustate.package_sets.bundle_roots import RequiredPackages, Root, required_packages
from gpustate.plan.make import Observations
from gpustate.probes.kernels import Kernels
from gpustate.remote import download
from gpustate.remote.session import Session
from gpustate.states.bundle import BundleInPlace
from gpustate.states.repository.base import RepositoryState

T = TypeVar("T")
_KERNEL = re.compile(r"[0-9][0-9A-Za-z.+~_-]*")


@dataclass(frozen=True, slots=True)
class Case:
    """One node, as far as it decides on the content of a bundle.

    Args:
        node: of the inventory.
        facts: distribution, machine and GPUs.
        states: of the policy, with its parameters.
        kernels: releases that need headers.
        ready: those that have headers.
        origins: repositories of the policy's states, by name.
    """

    node: InventoryNode
    facts: NodeFacts
    states: Sequence[AnyState]
    kernels: tuple[str, ...]
    ready: frozenset[str]
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])

    @property
    def name(self) -> str:
        """Name of its kind."""
        return f"{self.facts.distribution}-{self.facts.machine}"

    def versions(self, name: str, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """Offered versions of a package: of the policy's repository that has it, else of all.

        Args:
            name: of the package.
            candidates: what all repositories offer.
        """
        for origin in self.origins.values():
            origin_versions = [c.version for c in candidates if origin.has(name, c.origin)]
            if origin_versions:
                return tuple(dict.fromkeys(origin_versions))
        return tuple(dict.fromkeys(c.version for c in candidates))


def cases_of_nodes(
    inventory: Inventory, policy: Policy, state_names: Collection[str], forks: int
) -> list[Case]:
    """Query all nodes.

    Raises:
        ConnectionFailed, ProbeError, RefusedError: a bundle without that node would be incomplete.
    """
    states = {node.name: resolve(policy, node, state_names).states for node in inventory}
    answers = fleet.each(
        inventory.nodes, forks, lambda session: _case(session, states[session.node.name])
    )
    return [_result(*row) for row in answers]


def _result(node: InventoryNode, result: T | None, error: GpustateError | None) -> T:
    if result is None:
        kinds = (ConnectionFailed, RefusedError, UsageError)
        kind = next((c for c in kinds if isinstance(error, c)), ProbeError)
        why = error.message if error is not None else "no answer"
        fix = error.fix if error is not None else None
        raise kind(f"{node.name}: {why}", fix=fix or "exclude it with -l '!NODE'")
    return result


def _case(session: Session, states: Sequence[AnyState]) -> Case:
    repositories = [s for s in states if isinstance(s, RepositoryState) and not s.absent]
    repositories.sort(key=lambda s: (PRIORITIES.get(s.name, 50), s.name))
    observations, facts, answers = probe_states(
        session.node, repositories, session.answer, (Kernels(),)
    )
    if facts.package_manager not in MANAGERS:
        raise UsageError("has neither apt, dnf nor zypper")
    origins: dict[str, Origin] = {}
    for state in repositories:
        if state.name in observations.errors:
            raise ProbeError(f"{state.name}: {observations.errors[state.name]}")
        observed: Any = observations.observed[state.name]
        if state.refuse(observed) or state.plan(observed).changes:
            raise RefusedError(
                f"its {state.name} does not match the policy, and a bundle has what the node's repositories offer",
                fix="apply the policy to it, or at least this state, or exclude it with -l '!NODE'",
            )
        if not observed.offered:
            rpms = is_rpm(facts.package_manager)
            source = f"gpustate-{state.name}" if rpms else (observed.where.uri or "").rstrip("/")
            names = () if rpms else state.packages(facts.os_id)
            origins[state.name] = Origin(source, frozenset(names))
    kernels = [k for k in Kernels().parse(answers[Kernels()]) if k.bootable or k.running]
    return Case(
        session.node,
        facts,
        states,
        tuple(sorted(k.release for k in kernels)),
        frozenset(k.release for k in kernels if k.headers),
        origins,
    )


def select(
    cases: Sequence[Case],
    kernels: Sequence[str],
    packages: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
) -> list[Selection]:
    """Let the first node of each kind fetch the packages for all of its kind.

    Args:
        cases: of all nodes.
        kernels: further releases that need headers.
        packages: further packages, as ``name`` or ``name=version``.
        folder: where the files go.
        report: takes the progress.

    Raises:
        GpustateError: a package is unavailable.
    """
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.name, []).append(case)
    selections: list[Selection] = []
    for name, rows in sorted(kinds.items()):
        (folder / name).mkdir()
        work = partial(_selection, rows, kernels, packages, folder / name, report)
        (answer,) = fleet.each([rows[0].node], 1, work)
        selections.append(_result(*answer))
    return selections


def _selection(
    rows: Sequence[Case],
    kernels: Sequence[str],
    packages: Sequence[str],
    folder: Path,
    report: Callable[[str], None],
    session: Session,
) -> Selection:
    """What the first of some nodes of a kind fetches for all of them."""
    case = rows[0]
    releases = tuple(sorted({*kernels, *(kernel for row in rows for kernel in row.kernels)}))
    lacking = {*kernels, *(kernel for row in rows for kernel in {*row.kernels} - row.ready)}
    wants = _required(session, case, releases)
    if wants.problem:
        raise RefusedError(f"its repositories do not offer {wants.problem}")
    without_headers = [p for k, p in wants.missing_headers.items() if k in lacking]
    if without_headers:
        raise RefusedError(
            f"its repositories do not offer {without_headers[0]}, the headers of a kernel",
            fix="remove that kernel, or mirror a repository that has it",
        )
    manager = case.facts.package_manager
    named = tuple((name, version) for name, _, version in (p.partition("=") for p in packages))
    if manager == "dnf" and _offered(session, case, (LOCKS,))[LOCKS]:
        # A node without it gets it from the bundle alone.
        named = (*named, (LOCKS, ""))
    requested: dict[str, tuple[Root, ...]] = {
        **wants.by_state,
        **({"--package": named} if named else {}),
    }
    roots = dict.fromkeys(root for some in requested.values() for root in some)
    if not roots:
        raise RefusedError("the policy needs no package on it")
    report(f"{case.node.name} fetches the packages for {case.name}")
    return Selection(
        case.facts.distribution,
        case.facts.machine,
        releases,
        {
            state: tuple(f"{name}={version}" if version else name for name, version in some)
            for state, some in requested.items()
        },
        download.fetch(
            session, {word(manager, *root): root[0] for root in roots}, wants.pins, folder, report
        ),
        case.origins,
    )


def _required(session: Session, case: Case, kernels: Sequence[str]) -> RequiredPackages:
    """The packages of the states, from versions that are queried as states ask for them."""
    versions_by_name: dict[str, tuple[str, ...]] = {}
    missing: dict[str, None] = {}

    def versions(name: str) -> tuple[str, ...]:
        if name not in versions_by_name:
            missing[name] = None
        return versions_by_name.get(name, ())

    while True:
        missing.clear()
        wants = required_packages(case.states, case.facts, versions, kernels)
        if not missing:
            return wants
        versions_by_name |= _offered(session, case, tuple(missing))


def _offered(session: Session, case: Case, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Versions of packages; of those that a repository of the policy has, no others."""
    candidates = query_node(session.node, lambda node: node.candidates(*names), session.answer)
    return {name: case.versions(name, candidates.get(name, ())) for name in names}


def checked_kernels(kernels: Sequence[str]) -> tuple[str, ...]:
    """Validate kernel releases from the command line.

    Raises:
        UsageError: one is invalid.
    """
    for kernel in kernels:
        if not _KERNEL.fullmatch(kernel):
            raise UsageError(f"--kernel: {quote(kernel)} is not a kernel release (uname -r)")
    return tuple(kernels)


def onto(policy: Policy, file: str | None) -> Policy:
    """Make a policy install packages from a bundle: the given one, or that of its own state.

    Raises:
        UsageError: it is not a bundle.
    """
    bundle_state = _bundle_of(policy.states)
    if file is None and (bundle_state is None or bundle_state.file is None or bundle_state.absent):
        return policy
    named = file if file is not None or bundle_state is None else bundle_state.file
    path = os.path.abspath(named or "")
    bundle = reading.load(path)
    states_by_name: dict[str, AnyState] = {state.name: state for state in policy.states}
    states_by_name[BundleInPlace.name] = build(BundleInPlace, {"file": path})
    last = [("states", BundleInPlace.name, "file")]
    for name, cls in _users(bundle.manifest, path).items():
        if not states_by_name.keys() & {name, *cls.serves}:
            continue
        before = states_by_name.get(name)
        preserved = {} if before is None else parameters(before)
        bundle_values = cls.bundle_parameters(f"file:{BUNDLE_FOLDER}/{bundle.id}/{name}")
        states_by_name[name] = build(cls, {**preserved, **bundle_values})
        last += [("states", name, key) for key in bundle_values]
    return policy.with_states(*states_by_name.values(), name=policy.name, last=last)


def _bundle_of(states: Sequence[AnyState]) -> BundleInPlace | None:
    return next((state for state in states if isinstance(state, BundleInPlace)), None)


def _users(manifest: Manifest, path: str) -> dict[str, type[RepositoryState]]:
    """The states that use repositories of a bundle, by the repository's name.

    Raises:
        UsageError: a repository belongs to a state that does not exist here.
    """
    names = {item.name for target in manifest.targets for item in target.repositories} - {BASE}
    state_classes: dict[str, type[RepositoryState]] = {}
    for name in sorted(names):
        cls = registry.find(name)
        if cls is None or not issubclass(cls, RepositoryState):
            raise UsageError(
                f"its repository {quote(name)} belongs to no state of this version",
                place=path,
                fix="use the version of gpustate that built the bundle",
            )
        state_classes[name] = cls
    return state_classes


def lacking(states: Sequence[AnyState], observations: Observations) -> RefusedError | None:
    """Why a bundle is insufficient for a node; ``None`` if it is sufficient, or not used."""
    bundle_state = _bundle_of(states)
    if bundle_state is None or bundle_state.file is None or bundle_state.absent:
        return None
    facts = observations.view.facts
    bundle = reading.load(bundle_state.file)
    target = bundle.manifest.target(facts.distribution, facts.machine)
    if target is None:
        return None  # the state reports it
    bundled_versions = target.versions()
    wants = required_packages(
        states, facts, lambda name: bundled_versions.get(name, ()), observed=observations.observed
    )
    missing, option = wants.problem, ""
    if not missing and wants.missing_headers:
        kernel, missing = next(iter(wants.missing_headers.items()))
        option = f" --kernel {kernel}"
    if not missing:
        return None
    return RefusedError(
        f"{missing} is not in the bundle {bundle_state.file}",
        fix=f"build one that has it: gpustate image bundle make POLICY -i INVENTORY{option} --out FILE",
    )


def check_policy(policy: Policy) -> None:
    """Check that a policy installs packages from repositories, to build a bundle from it.

    Raises:
        PolicyError: it installs them from a bundle.
    """
    for state in policy.states:
        if isinstance(state, RepositoryState) and "gpustate-bundle" in (state.url or ""):
            raise PolicyError(
                f"{state.name} installs packages from a bundle",
                fix="build the bundle from a policy that uses repositories",
            )
