"""The workload as gpustate's states, one for each kind of resource.

A node's root folder is its inventory variable ``root``; observations carry it along for the steps.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from bench import workload
from gpustate import Node, Plan, State, Step, ops

_OWNED = "644 root root"


def _root(node: Node) -> str:
    return str(node.vars["root"])


@dataclass(frozen=True, slots=True)
class Installed:
    """Which of the wanted packages are installed."""

    packages: tuple[str, ...]


class Packages(State[Installed]):
    """Packages of the distribution are installed."""

    name: ClassVar[str] = "bench-packages"
    wanted: ClassVar[tuple[str, ...]] = tuple(n for group in workload.PACKAGES for n in group)

    def probe(self, node: Node) -> Installed:
        found = node.packages(*self.wanted)
        return Installed(tuple(n for n in self.wanted if n in found and found[n].installed))

    def desired(self, observed: Installed) -> Installed:
        return Installed(self.wanted)

    def apply(self, observed: Installed, plan: Plan) -> Iterator[Step]:
        missing = [name for name in self.wanted if name not in observed.packages]
        yield ops.AptInstall(tuple((name, "") for name in missing))


@dataclass(frozen=True, slots=True)
class Content:
    """Hash, mode and owner of each file that is there."""

    root: str
    files: dict[str, tuple[str, str]]


class Files(State[Content]):
    """Files have their content, mode and owner."""

    name: ClassVar[str] = "bench-files"
    wanted: ClassVar[Mapping[str, bytes]] = workload.FILES

    def probe(self, node: Node) -> Content:
        root = _root(node)
        names = " ".join(shlex.quote(path) for path in self.wanted)
        said = node.shell(
            f"cd {shlex.quote(root)} && sha256sum {names}; stat -c '%n %a %U %G' {names}"
        )
        lines = said.stdout.splitlines()
        sums = {line[66:]: line[:64] for line in lines if line[64:66] == "  "}
        stats = dict(line.split(" ", 1) for line in lines if line[64:66] != "  ")
        return Content(root, {path: (sums[path], stats.get(path, "")) for path in sums})

    def desired(self, observed: Content) -> Content:
        wanted = {
            path: (hashlib.sha256(data).hexdigest(), _OWNED) for path, data in self.wanted.items()
        }
        return replace(observed, files=wanted)

    def apply(self, observed: Content, plan: Plan) -> Iterator[Step]:
        for path, wanted in self.desired(observed).files.items():
            if observed.files.get(path) != wanted:
                text = self.wanted[path].decode("utf-8", "surrogateescape")
                yield ops.PutText(f"{observed.root}/{path}", text, mode=0o644, owner="root:root")


class Repositories(Files):
    """Repositories and their keys, which are files."""

    name: ClassVar[str] = "bench-repositories"
    wanted: ClassVar[Mapping[str, bytes]] = workload.REPOSITORIES


@dataclass(frozen=True, slots=True)
class Texts:
    """Text of each file; ``None`` where there is none."""

    root: str
    texts: dict[str, str | None]


class Lines(State[Texts]):
    """Files that others own have some lines."""

    name: ClassVar[str] = "bench-lines"

    def probe(self, node: Node) -> Texts:
        root = _root(node)
        return Texts(root, {path: node.read_text(f"{root}/{path}") for path in workload.LINES})

    def desired(self, observed: Texts) -> Texts:
        texts: dict[str, str | None] = {}
        for path, lines in workload.LINES.items():
            text = observed.texts.get(path) or ""
            have = text.splitlines()
            texts[path] = text + "".join(f"{line}\n" for line in lines if line not in have)
        return replace(observed, texts=texts)

    def apply(self, observed: Texts, plan: Plan) -> Iterator[Step]:
        for path, text in self.desired(observed).texts.items():
            if text is not None and observed.texts.get(path) != text:
                yield ops.PutText(f"{observed.root}/{path}", text)


@dataclass(frozen=True, slots=True)
class Links:
    """Where each link leads."""

    root: str
    targets: dict[str, str | None]


class Units(State[Links]):
    """Units are wanted by the multi-user target."""

    name: ClassVar[str] = "bench-units"

    def probe(self, node: Node) -> Links:
        root = _root(node)
        paths = [f"{root}/{workload.WANTS}/{unit}.service" for unit in workload.UNITS]
        found = node.stats(*paths)
        return Links(root, {path: stat.target for path, stat in found.items()})

    def desired(self, observed: Links) -> Links:
        wanted: dict[str, str | None] = {
            f"{observed.root}/{workload.WANTS}/{unit}.service": f"{observed.root}/lib/{unit}.service"
            for unit in workload.UNITS
        }
        return replace(observed, targets=wanted)

    def apply(self, observed: Links, plan: Plan) -> Iterator[Step]:
        for path, target in self.desired(observed).targets.items():
            if target is not None and observed.targets.get(path) != target:
                link = f"ln -sfn {shlex.quote(target)} {shlex.quote(path)}"
                yield ops.Run(link, f"enable {path}")


@dataclass(frozen=True, slots=True)
class Looked:
    """What some commands said."""

    said: tuple[str, ...]


class Looks(State[Looked]):
    """Looks at the driver and the kernel; changes nothing."""

    name: ClassVar[str] = "bench-looks"

    def probe(self, node: Node) -> Looked:
        return Looked(tuple(node.shell(look).stdout for look in workload.LOOKS))

    def desired(self, observed: Looked) -> Looked:
        return observed

    def apply(self, observed: Looked, plan: Plan) -> Iterator[Step]:
        yield from ()
