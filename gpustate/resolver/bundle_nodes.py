"""Bundles and nodes: query nodes for the content of a bundle, use a bundle in a policy, check a node against it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpustate import registry
from gpustate.bundle import reading, write
from gpustate.bundle.manifest import BASE, Manifest
from gpustate.core.facts import NodeFacts, meant_for
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.policy import Policy, build, parameters, resolve
from gpustate.core.state import AnyState
from gpustate.engine import fleet
from gpustate.errors import ConnectionFailed, PolicyError, ProbeError, RefusedError, UsageError
from gpustate.files import TextFiles
from gpustate.formats import aptsources
from gpustate.formats.rpm import MANAGERS, is_rpm
from gpustate.formats.words import quote
from gpustate.ops.upload import BUNDLE_FOLDER
from gpustate.plan.make import Observations
from gpustate.probes.kernels import Kernels
from gpustate.resolver import deb_bundles, rpm_bundle_nodes, rpm_bundles
from gpustate.resolver.bundle_roots import required_packages
from gpustate.resolver.deb_bundles import Case, key_here, keys_of
from gpustate.resolver.rpm_bundles import RpmCase
from gpustate.solve.packages import Repository, Universe, parse
from gpustate.states.bundle import BundleInPlace
from gpustate.states.repository.base import SOURCE_PATTERNS, RepositoryState

#: A kind of node with any package manager.
AnyCase = Case | RpmCase

_FILES = TextFiles("file of sources", UsageError, 4)
_RELEASE = re.compile(r"([a-z]+(?:-[a-z]+)?)([0-9]+)/([a-z0-9_]+)")
#: Distributions with rpm packages that no state supports.
_NOT_KNOWN = frozenset({"azl", "mariner"})
_KERNEL = re.compile(r"[0-9][0-9A-Za-z.+~_-]*")
#: sh: installed packages in the format of a package index.
_INSTALLED = (
    'awk \'BEGIN { RS = ""; FS = "\\n" } /\\nStatus: [a-z]+ ok installed\\n/ { for (i = 1; i <= NF; i++)'
    ' if ($i ~ /^(Package|Version|Architecture|Provides): /) print $i; print "" }\' /var/lib/dpkg/status'
)
#: sh: key rings for Signed-By of source entries, and the default ones.
_KEYS = (
    "for f in /usr/share/keyrings/*.gpg /usr/share/keyrings/*.asc /usr/share/keyrings/*.pgp /etc/apt/keyrings/*"
    " /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d/*; do\n"
    '  [ -f "$f" ] && [ "$(stat -Lc %s "$f")" -lt 300000 ] || continue\n'
    '  printf \'%s \' "$f"; base64 -w 0 <"$f"; echo; done'
)


def cases_of_nodes(
    inventory: Inventory, policy: Policy, known: Collection[str], forks: int
) -> list[AnyCase]:
    """Query all nodes.

    Raises:
        ConnectionFailed, ProbeError: a query failed; a bundle without that node would be incomplete.
    """
    states = {node.name: resolve(policy, node, known).states for node in inventory}
    cases: list[AnyCase] = []
    for node, case, error in fleet.question(
        inventory.nodes, forks, lambda node: _case(node, states[node.name])
    ):
        if case is None:
            kind = ConnectionFailed if isinstance(error, ConnectionFailed) else ProbeError
            raise kind(f"{node.name}: {error}", fix="exclude it with --exclude, or use --for")
        if case.facts.package_manager not in MANAGERS:
            raise UsageError(
                f"{node.name}: has neither apt, dnf nor zypper", fix="exclude it with --exclude"
            )
        cases.append(case)
    return cases


def _case(node: Node, states: Sequence[AnyState]) -> AnyCase:
    facts = node.facts()
    kernels = node.query(Kernels())
    releases = tuple(sorted(k.release for k in kernels if k.bootable or k.running))
    if is_rpm(facts.package_manager):
        return rpm_bundle_nodes.case(node, states, facts, releases)
    texts = node.read_texts(SOURCE_PATTERNS)
    installed = node.shell(_INSTALLED).stdout
    keys = keys_of(node.shell(_KEYS).stdout)
    trusted = b"".join(_plain(key) for path, key in keys.items() if "/trusted.gpg" in path)
    if trusted:
        keys[""] = trusted
    own = tuple(f"gpustate-{name}" for name in _repository_names())
    sources = tuple(
        source
        for source in aptsources.parse_sources(texts)
        if not os.path.basename(source.file).startswith(own)
        and not source.uri.startswith((f"file:{BUNDLE_FOLDER}", "cdrom:"))
    )
    return Case(
        facts,
        states,
        sources,
        keys,
        releases,
        (Universe(tuple(parse(installed, Repository("installed"), leaf=True))),),
    )


def _repository_names() -> list[str]:
    """Names of all states that add a repository: their sources are taken from the policy, not from the node."""
    return [name for name in registry.states() if issubclass(registry.get(name), RepositoryState)]


def _plain(key: bytes) -> bytes:
    from gpustate.formats import openpgp

    try:
        return openpgp.binary(key)
    except ValueError:
        return b""


def case_of_name(
    text: str, policy: Policy, sources: Sequence[str], gpus: str, installed: Sequence[str] = ()
) -> AnyCase:
    """A kind of node without queries: ``debian12/x86_64`` with source files.

    Args:
        text: distribution and machine.
        policy: selects the packages.
        sources: source files.
        gpus: such as ``8xH100``; empty if unknown.
        installed: files with the installed rpm packages of such nodes.

    Raises:
        UsageError: an invalid name, or a file cannot be read.
    """
    found = _RELEASE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--for: {quote(text)} is not a distribution and machine", fix="write debian12/x86_64"
        )
    if not sources:
        raise UsageError(
            "--for needs the repositories of the distribution",
            fix="pass them with --sources FILE, in the format of /etc/apt, /etc/yum.repos.d or /etc/zypp/repos.d",
        )
    if found[1] in _NOT_KNOWN:
        raise UsageError(
            f"--for: unsupported distribution {quote(text)}: no names of NVIDIA's packages",
            fix="use a mirror of the repositories (origin: mirror) for such nodes",
        )
    rpm = rpm_bundle_nodes.family(found[1])
    if installed and rpm is None:
        raise UsageError(
            "--installed is for distributions with dnf or zypper",
            fix="remove it: the essential packages of Debian and Ubuntu are known",
        )
    try:
        pci = meant_for(gpus)
    except ValueError as error:
        raise UsageError(f"--gpu: {error}") from None
    if rpm is not None:
        facts = NodeFacts(
            os_id=rpm.os_id,
            os_version=found[2],
            machine=found[3],
            package_manager=rpm.manager,
            pci=pci,
        )
        states = resolve(policy, InventoryNode(text)).states
        return rpm_bundle_nodes.named(facts, states, sources, installed)
    os_id, digits, machine = found.groups()
    entries, keys = _read_sources(sources)
    version = f"{digits[:2]}.{digits[2:]}" if os_id == "ubuntu" and len(digits) == 4 else digits
    main = (one.suite for one in entries if "main" in one.components)
    codename = next((one for one in main if not re.search(r"-|/", one)), "")
    facts = NodeFacts(
        os_id=os_id,
        os_version=version,
        os_codename=codename,
        machine=machine,
        package_manager="apt",
        pci=pci,
    )
    return Case(facts, resolve(policy, InventoryNode(text)).states, entries, keys)


def _read_sources(
    files: Sequence[str],
) -> tuple[tuple[aptsources.Source, ...], dict[str, bytes]]:
    """Entries of apt source files on this machine, and their keys."""
    texts: dict[str, str] = {}
    for file in files:
        data = _FILES.text(file)
        deb822 = re.search(r"^Types:", data, re.MULTILINE) is not None
        texts[f"{file}{'' if file.endswith('.sources') or not deb822 else '.sources'}"] = data
    entries = aptsources.parse_sources(texts)
    if not entries:
        raise UsageError(
            "contains no repository", place=files[0], fix="use the format of /etc/apt/sources.list"
        )
    keys: dict[str, bytes] = {}
    for entry in entries:
        for word in entry.signed_by.replace(",", " ").split():
            if word.startswith("/"):
                keys[word] = key_here(
                    word,
                    of="",
                    place=entry.file,
                    fix="set Signed-By to a key ring on this machine, or to the key itself",
                )
    return entries, keys


def with_sources(case: AnyCase, files: Sequence[str]) -> AnyCase:
    """Replace the repositories of a kind of node by those of files.

    Raises:
        UsageError: a file cannot be read.
    """
    if isinstance(case, RpmCase):
        rows, keys = rpm_bundle_nodes.read_sources(files, case.facts)
        return replace(case, sources=rows, keys=keys)
    entries, keys = _read_sources(files)
    return replace(case, sources=entries, keys=keys)


def select(
    cases: Sequence[AnyCase], cache: Path, say: Callable[[str], None]
) -> list[write.Selection]:
    """Select the packages for all kinds of nodes.

    Raises:
        GpustateError: a package is unavailable.
    """
    apt, rpm = deb_bundles.Read(cache, say), rpm_bundles.RpmRead(cache, say)
    debs = deb_bundles.merge_cases(one for one in cases if isinstance(one, Case))
    rpms = rpm_bundles.merge_cases(one for one in cases if isinstance(one, RpmCase))
    return [
        *(deb_bundles.select(case, apt) for case in debs),
        *(rpm_bundles.select(case, rpm) for case in rpms),
    ]


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
    own = _bundle_of(policy.states)
    if file is None and (own is None or own.file is None or own.absent):
        return policy
    named = file if file is not None or own is None else own.file
    path = os.path.abspath(named or "")
    bundle = reading.load(path)
    made: dict[str, AnyState] = {state.name: state for state in policy.states}
    made[BundleInPlace.name] = build(BundleInPlace, {"file": path})
    last = [("states", BundleInPlace.name, "file")]
    for name, cls in _users(bundle.manifest, path).items():
        if not made.keys() & {name, *cls.serves}:
            continue
        before = made.get(name)
        kept = {} if before is None else parameters(before)
        said = cls.bundle_parameters(f"file:{BUNDLE_FOLDER}/{bundle.id}/{name}")
        made[name] = build(cls, {**kept, **said})
        last += [("states", name, key) for key in said]
    return policy.but(*made.values(), name=policy.name, last=last)


def _bundle_of(states: Sequence[AnyState]) -> BundleInPlace | None:
    return next((state for state in states if isinstance(state, BundleInPlace)), None)


def _users(manifest: Manifest, path: str) -> dict[str, type[RepositoryState]]:
    """The states that use repositories of a bundle, by the repository's name.

    Raises:
        UsageError: a repository belongs to a state that does not exist here.
    """
    names = {one.name for target in manifest.targets for one in target.repositories} - {BASE}
    found: dict[str, type[RepositoryState]] = {}
    for name in sorted(names):
        cls = registry.find(name)
        if cls is None or not issubclass(cls, RepositoryState):
            raise UsageError(
                f"its repository {quote(name)} belongs to no state of this version",
                place=path,
                fix="use the version of gpustate that built the bundle",
            )
        found[name] = cls
    return found


def lacking(states: Sequence[AnyState], observations: Observations) -> RefusedError | None:
    """Why a bundle is insufficient for a node; ``None`` if it is sufficient, or not used."""
    own = _bundle_of(states)
    if own is None or own.file is None or own.absent:
        return None
    facts = observations.view.facts
    bundle = reading.load(own.file)
    target = bundle.manifest.target(facts.distribution, facts.machine)
    if target is None:
        return None  # the state reports it
    there = target.versions()
    wants = required_packages(
        states, facts, lambda name: there.get(name, ()), observed=observations.observed
    )
    missing, option = wants.problem, ""
    if not missing and wants.bare:
        kernel, missing = next(iter(wants.bare.items()))
        option = f" --kernel {kernel}"
    if not missing:
        return None
    return RefusedError(
        f"{missing} is not in the bundle {own.file}",
        fix=f"build one that has it: gpustate bundle POLICY -i INVENTORY{option} --out FILE",
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
