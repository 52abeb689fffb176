"""A node takes packages from a bundle that was brought to it, and asks no other repository.

For air-gapped nodes. ``gpustate image bundle`` makes the bundle where there is one; this state brings
the part of it that a node needs over the connection that is there, and gives apt a configuration, and dnf
and zypper a folder of repositories, in which that is all there is. Everything gpustate does with packages
on such a node uses it: no other repository is asked, not even tried. The user's own apt, dnf or zypper is
left as it is.

``--bundle FILE`` of plan, apply and bake puts this state into a policy, and points ``driver-repository`` and
``toolkit-repository`` at it; a policy that names the state itself gets the same.

Surprising: the bundle is kept, for a package that is to be repaired or rolled back needs it. It goes
when the state is removed. Another bundle has another id and so another folder; the one before it goes
when the new one is there. Not below /var/lib/gpustate: apt reads repositories without root's rights.

Sources:
    apt.conf(5): ``APT_CONFIG``, Dir::Etc::sourcelist, sourceparts; sources.list(5): ``file:``.
    dnf.conf(5): ``reposdir``; zypper(8): ``--reposd-dir``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from gpustate import Node, Plan, State, Step, diff, ops, shell
from gpustate.bundle.manifest import BASE, Target
from gpustate.errors import GpustateError
from gpustate.formats.rpm import MANAGERS, is_rpm
from gpustate.formats.rpmrepos import PRIORITIES, render_repo
from gpustate.ops.upload import APT_CONF, BUNDLE_CACHES, BUNDLE_FOLDER, RPM_REPOS

if TYPE_CHECKING:
    from gpustate.bundle.reading import Bundle

SOURCES_PATH = f"{BUNDLE_FOLDER}/sources.list"
REPOS_PATH = f"{RPM_REPOS}/gpustate.repo"
_WRITTEN = "# Written by gpustate; changes are overwritten.\n"
CONF_TEXT = (
    "// Written by gpustate; changes are overwritten.\n"
    f'Dir::Etc::sourcelist "{SOURCES_PATH}";\n'
    'Dir::Etc::sourceparts "-";\n'
    f'Dir::Cache::pkgcache "{BUNDLE_FOLDER}/pkgcache.bin";\n'
    'Dir::Cache::srcpkgcache "";\n'
    'APT::Get::List-Cleanup "false";\n'
    'Acquire::Languages "none";\n'
)
#: sh: the bundles that are there, each with a digest of its files' names and sizes.
_PROBE = (
    f"cd {BUNDLE_FOLDER} 2>/dev/null || exit 0\n"
    'for d in [0-9a-f]*/; do [ -d "$d" ] || continue; printf \'%s \' "${d%/}"\n'
    "  ( cd \"$d\" && find . -type f -printf '%s %P\\n' | LC_ALL=C sort | sha256sum | cut -c 1-64 ); done\n"
)
_LISTS = "/var/lib/apt/lists"
#: sh: what apt, dnf or zypper has read of bundles: names of apt's lists, hashes of the others' repodata.
_READ = (
    f'cd {_LISTS} && for f in *gpustate-bundle*; do [ ! -e "$f" ] || echo "$f"; done\n'
    "for f in /var/cache/dnf/gpustate-*/repodata/repomd.xml "
    '/var/cache/zypp/raw/gpustate-*/repodata/repomd.xml; do [ ! -s "$f" ] || sha256sum <"$f" | cut -c 1-64; done'
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there of bundles."""

    bundles: tuple[tuple[str, str], ...] = ()  # id, digest of names and sizes
    conf_text: str | None = None
    sources_text: str | None = None
    lists_read: bool = False  # the indexes of the bundle that is wanted have been read
    manager: str = "apt"
    distribution: str = ""
    machine: str = ""
    wanted_id: str = ""


def _load(file: str) -> Bundle:
    """Open a bundle. What reads archives and repositories takes memory, and is imported where there is one."""
    from gpustate.bundle import reading

    return reading.load(file)


class BundleInPlace(State[Observed]):
    """The node has its part of a bundle, and whatever gpustate does with apt, dnf or zypper uses that alone.

    Args:
        file: the bundle, a folder or tar file on the controller; without one this state does nothing.

    Disruption:
        ``NONE``: nothing is installed.

    Raises:
        StepFailed: the node has no room for it.
    """

    name: ClassVar[str] = "bundle"
    labels: ClassVar[Mapping[str, str]] = {"bundles": "unpacked bundles"}
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    before: ClassVar[tuple[str, ...]] = ("driver-repository", "toolkit-repository")
    brings_bundle: ClassVar[bool] = True
    stable: ClassVar[tuple[str, ...] | None] = (
        *("bundles", "conf_text", "sources_text", "lists_read", "wanted_id"),
    )

    file: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> BundleInPlace:
        if self.file is not None and not self.absent:
            try:
                _load(self.file)
            except GpustateError as error:
                raise ValueError(str(error)) from None
        return self

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        output = node.shell(_PROBE).stdout
        manager = facts.package_manager
        paths = (APT_CONF, _sources_path(manager))
        conf, sources = (node.own_text(path) for path in paths)
        lists = node.shell(_READ).stdout.split()
        identity = self._wanted_id()
        target = self._target(facts.distribution, facts.machine)
        return Observed(
            bundles=tuple(
                (words[0], words[1])
                for line in output.splitlines()
                if len(words := line.split()) == 2
            ),
            conf_text=conf,
            sources_text=sources,
            lists_read=target is None or _is_read(target, identity, lists),
            manager=manager,
            distribution=facts.distribution,
            machine=facts.machine,
            wanted_id=identity,
        )

    def _wanted_id(self) -> str:
        return "" if self.absent or self.file is None else _load(self.file).id

    def _target(self, distribution: str, machine: str) -> Target | None:
        if self.absent or self.file is None:
            return None
        return _load(self.file).manifest.target(distribution, machine)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, bundles=(), conf_text=None, sources_text=None, lists_read=True)
        target = self._target(observed.distribution, observed.machine)
        if self.file is None or target is None:
            return observed
        bundle = _load(self.file)
        return replace(
            observed,
            bundles=((bundle.id, _digest(target)),),
            conf_text=None if is_rpm(observed.manager) else CONF_TEXT,
            sources_text=_sources(bundle.id, target, observed.manager),
            lists_read=True,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or self.file is None:
            return None
        if observed.manager not in MANAGERS:
            return (
                "no apt, dnf or zypper on this node, and bundles need one of them; exclude the "
                "node from this state with only="
            )
        try:
            target = _load(self.file).target(observed.distribution, observed.machine)
        except GpustateError as error:
            return str(error)
        if target.repositories and target.rpm != is_rpm(observed.manager):
            return (
                f"the bundle {self.file} has no packages of {target.name} for {observed.manager}; "
                "rebuild the bundle for this node: gpustate image bundle make"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            paths={"conf_text": APT_CONF, "sources_text": _sources_path(observed.manager)},
            why={"lists_read": "refreshed once per bundle"},
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if self.absent:
            yield ops.Run(
                f"rm -rf {BUNDLE_FOLDER} {BUNDLE_CACHES}; effect removed", "remove the bundle"
            )
            return
        target = self._target(observed.distribution, observed.machine)
        if self.file is None or target is None:
            return
        desired = self.desired(observed)
        folder = f"{BUNDLE_FOLDER}/{observed.wanted_id}"
        if "bundles" in plan.fields:
            files = tuple(
                (f"{repository.name}/{file.name}", file.sha256, file.size)
                for repository in target.repositories
                for file in repository.files
            )
            yield ops.Upload(self.file, target.name, folder, files)
        for path, text, name in (
            (_sources_path(observed.manager), desired.sources_text, "sources_text"),
            (APT_CONF, desired.conf_text, "conf_text"),
        ):
            if name in plan.fields and text is not None:
                yield ops.PutText(path, text, mode=0o644)
        # In the same program as the files: from here on there is no other repository.
        tidy = _tidy(folder, target)
        if is_rpm(observed.manager):
            yield ops.Run(f"{tidy}effect tidied", "remove files that are not part of the bundle")
            for repository in target.repositories:
                yield ops.RpmUpdate(observed.manager, repository_id(repository.name))
            return
        read = (
            "apt_wait && apt update -o APT::Update::Error-Mode=any && apt_lists_kept; effect read"
        )
        yield ops.Run(tidy + read, "refresh the package lists of the bundle only")


def _tidy(folder: str, target: Target) -> str:
    names = " ".join(
        f"{repository.name}/{f.name}"
        for repository in target.repositories
        for f in repository.files
    )
    words = {"FOLDER": folder, "KNOWN": f" {names} ", "LISTS": _LISTS}
    return shell.load("bundle_tidy", "gpustate.states", **words)


def _sources_path(manager: str) -> str:
    return REPOS_PATH if is_rpm(manager) else SOURCES_PATH


def _is_read(target: Target, identity: str, lists: list[str]) -> bool:
    return all(
        repository.repomd.sha256 in lists
        if repository.repomd is not None
        else any(f"_{identity}_{repository.name}_" in path for path in lists)
        for repository in target.repositories
    )


def repository_id(name: str) -> str:
    """What dnf and zypper call a repository of a bundle: as the repositories' own states do."""
    return "gpustate-bundle-base" if name == BASE else f"gpustate-{name}"


def _sources(identity: str, target: Target, manager: str) -> str:
    if is_rpm(manager):
        return _WRITTEN + "\n".join(
            render_repo(
                manager,
                id=repository_id(repository.name),
                uri=f"file:{BUNDLE_FOLDER}/{identity}/{repository.name}",
                key_path="",
                packages_signed=False,
                metadata_signed=False,
                priority=PRIORITIES.get(repository.name, 99),
                title="gpustate bundle",
            )
            for repository in target.repositories
        )
    lines = (
        f"deb [trusted=yes] file:{BUNDLE_FOLDER}/{identity}/{repository.name} /\n"
        for repository in target.repositories
    )
    return _WRITTEN + "".join(lines)


def _digest(target: Target) -> str:
    """What :data:`_LOOK` prints where all is there."""
    rows = sorted(
        f"{file.size} {repository.name}/{file.name}\n".encode()
        for repository in target.repositories
        for file in repository.files
    )
    return hashlib.sha256(b"".join(rows)).hexdigest()


__all__ = ["BundleInPlace", "Observed"]
