"""What can be asked of a node, as data.

A probe is ordinary Python that asks a node. Each ask is a frozen value with three parts: the sh
fragment that finds the answer, the function that reads it, and what probing goes on with while
the answer is still on its way. The engine runs all probes of a node against those stand-ins
first, collects what they ask, and sends it in one exec; it then runs them again with the answers.
Only an ask that comes up because of an answer costs another round trip.

Fragments run as root in a subshell with ``LC_ALL=C`` and standard input closed, some of them side by side, may
only read, and use ``$PROC`` and ``$SYS`` for the roots of proc and sys.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpustate import shell
from gpustate.core.shared_probes import APT_KEY, FOREIGN_PINS, KEPT, RPM_KEY, show_unit, unit_files
from gpustate.errors import ProbeError
from gpustate.formats import aptsources, dpkg, rpm, systemd

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A program or library that an ask needs on the node.

    The engine puts it at ``$SHIPPED/<digest>/<name>`` in the exec that asks, once for each content;
    the ask lists it in an attribute ``ships``. Where the node has no room for it, it is not there:
    the fragment must do without.

    Args:
        name: file name on the node.
        package: Python package, or top-level module, that has it.
        resource: file within the package; ``None`` for the source of a top-level module.
    """

    name: str
    package: str
    resource: str | None = None

    def load(self) -> bytes:
        """The content."""
        return _shipped(self.package, self.resource)

    @property
    def packed(self) -> bytes:
        """The content as it travels: gzip."""
        return _packed(self.package, self.resource)

    @property
    def digest(self) -> str:
        """Hash of the content: 16 hexadecimal digits."""
        return _digest(self.package, self.resource)

    @property
    def path(self) -> str:
        """Where it lies on a node, for a fragment; contains ``$SHIPPED``, to be put in double quotes."""
        return f"$SHIPPED/{self.digest}/{self.name}"


@cache
def _shipped(package: str, resource: str | None) -> bytes:
    # Most runs ship nothing, and these take a while to import.
    from importlib import resources, util

    if resource is not None:
        return resources.files(package).joinpath(resource).read_bytes()
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ProbeError(f"the Python module {package} is not installed here")
    return Path(spec.origin).read_bytes()


@cache
def _packed(package: str, resource: str | None) -> bytes:
    return gzip.compress(_shipped(package, resource), 6, mtime=0)


@cache
def _digest(package: str, resource: str | None) -> str:
    return hashlib.sha256(_shipped(package, resource)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a fragment printed and how it ended."""

    status: int
    out: bytes

    @property
    def text(self) -> str:
        """Output as text; bytes that are not UTF-8 are replaced."""
        return self.out.decode("utf-8", "replace")


class Query(ABC, Generic[T]):
    """One question to a node. Subclasses are frozen dataclasses: equal asks are sent once."""

    @abstractmethod
    def script(self) -> str:
        """The sh fragment."""

    @abstractmethod
    def parse(self, answer: Answer) -> T:
        """Read the answer; raise ``ProbeError`` when it makes no sense."""

    @abstractmethod
    def placeholder(self) -> T:
        """What probing assumes before the answer is there: the common, harmless case."""


class SharedQuery(Query[T]):
    """One of several questions of a kind that a single call answers: they leave as one.

    Each reads what it asked for out of the answer to all; so what others asked must not matter to it.
    """

    @abstractmethod
    def joined(self, queries: Sequence[Query[Any]]) -> Query[T]:
        """One ask for this one and others of its class."""


def rooted(path: str) -> str:
    """Quote a path for sh, with ``/proc`` and ``/sys`` taken from the node's roots."""
    for prefix, variable in (("/proc/", '"$PROC"/'), ("/sys/", '"$SYS"/')):
        if path.startswith(prefix):
            return variable + shlex.quote(path.removeprefix(prefix))
    return shlex.quote(path)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. 127: not found; 124: ran out of time."""

    status: int
    stdout: str

    @property
    def ok(self) -> bool:
        """Exit status 0."""
        return self.status == 0


@dataclass(frozen=True, slots=True)
class Shell(Query[CommandResult]):
    """A read-only sh fragment of the state's own; standard error is dropped unless it says ``2>&1``."""

    text: str
    assume: str = ""  # standard output to go on with until the answer is there
    waits: bool = False  # goes ahead of everything else, which then finds what was waited for

    def script(self) -> str:
        return self.text

    def parse(self, answer: Answer) -> CommandResult:
        return CommandResult(answer.status, answer.text)

    def placeholder(self) -> CommandResult:
        return CommandResult(0, self.assume)


def command(argv: tuple[str, ...], *, timeout_s: int = 20) -> Shell:
    """Ask for one command, killed after ``timeout_s`` seconds; ``proc`` and ``sys`` paths are rooted."""
    return Shell(f"timeout -k 2 {timeout_s} " + " ".join(rooted(word) for word in argv))


#: Between the parts of an answer of a node with rpm.
_RPM, _LOCKS = "=rpm ", "=locks"


@dataclass(frozen=True, slots=True)
class Packages(SharedQuery[dict[str, dpkg.Package]]):
    """Installed (and half-installed) packages whose names match shell patterns, of dpkg or of rpm.

    No package manager is started on a node with rpm: what holds packages there are files.
    """

    patterns: tuple[str, ...]

    def script(self) -> str:
        names = " ".join(shlex.quote(pattern) for pattern in self.patterns)
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        text = shell.fill(
            shell.load("package_rows", "gpustate.core"),
            NAMES=names,
            FORMAT=dpkg.QUERY_FORMAT,
            RPM_FORMAT=rpm.QUERY_FORMAT,
            MARK=_RPM,
            LOCKS=_LOCKS,
            KEPT=digest,
            APT_KEY=APT_KEY,
        )
        return f"{rpm.FAMILY}{KEPT}{text}"

    def parse(self, answer: Answer) -> dict[str, dpkg.Package]:
        text = answer.text
        if not text.startswith(_RPM):
            return self._matching(dpkg.parse_query(text))
        head, _, locks = text.partition(f"{_LOCKS}\n")
        manager, _, rows = head.removeprefix(_RPM).partition("\n")
        packages = rpm.parse_query(rows)
        if manager == "dnf":
            held = rpm.held_by_dnf(rpm.versionlocks(locks), packages)
        else:
            held = rpm.held_by_zypper(locks, packages)
        return self._matching(rpm.parse_query(rows, held))

    def _matching(self, packages: dict[str, dpkg.Package]) -> dict[str, dpkg.Package]:
        return {
            name: package
            for name, package in packages.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
        }

    def joined(self, queries: Sequence[Query[Any]]) -> Packages:
        patterns = (
            pattern
            for query in queries
            if isinstance(query, Packages)
            for pattern in query.patterns
        )
        return Packages(tuple(dict.fromkeys((*self.patterns, *patterns))))

    def placeholder(self) -> dict[str, dpkg.Package]:
        return {}


@dataclass(frozen=True, slots=True)
class Candidates(SharedQuery[dict[str, tuple[dpkg.Candidate, ...]]]):
    """Every version of some packages that the configured repositories offer, best first, forbidden ones too.

    Nothing is fetched. dnf and zypper take a second for an answer, so it is kept as long as their files say the
    same.
    """

    names: tuple[str, ...]

    def script(self) -> str:
        names = " ".join(shlex.quote(name) for name in self.names)
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        text = shell.fill(
            shell.load("offers", "gpustate.core"),
            NAMES=names,
            MARK=_RPM,
            KEPT=digest,
            APT_KEY=APT_KEY,
            RPM_KEY=RPM_KEY,
        )
        return f"{rpm.FAMILY}{KEPT}{FOREIGN_PINS}{text}"

    def parse(self, answer: Answer) -> dict[str, tuple[dpkg.Candidate, ...]]:
        text = answer.text
        if not text.startswith(_RPM):
            text, _, pins = text.partition("=pins\n")
            files = aptsources.forbidden(pins)
            offers = {
                name: tuple(
                    replace(row, forbidden_by=files.get((name, row.version), "")) for row in rows
                )
                for name, rows in dpkg.parse_madison(text).items()
            }
            return self._matching(offers)
        manager, _, rows = text.removeprefix(_RPM).partition("\n")
        read = rpm.parse_repoquery if manager == "dnf" else rpm.parse_search
        return self._matching(read(rows))

    def _matching(
        self, candidates: dict[str, tuple[dpkg.Candidate, ...]]
    ) -> dict[str, tuple[dpkg.Candidate, ...]]:
        return {name: rows for name, rows in candidates.items() if name in self.names}

    def joined(self, queries: Sequence[Query[Any]]) -> Candidates:
        names = (name for query in queries if isinstance(query, Candidates) for name in query.names)
        return Candidates(tuple(dict.fromkeys((*self.names, *names))))

    def placeholder(self) -> dict[str, tuple[dpkg.Candidate, ...]]:
        return {}


#: Around the parts of an answer: the names that were asked for, and what the disk says of them.
_NAMES, _UNIT_FILES = "=asked", "=unit-files"


@dataclass(frozen=True, slots=True)
class Units(SharedQuery[dict[str, systemd.Unit]]):
    """State of systemd units; a unit that does not exist has ``load_state`` ``not-found``.

    What systemd remembers of a running unit that was enabled without a reload is what it was before; so
    whether it is enabled is read from the disk, as ``systemctl list-unit-files`` does.
    """

    names: tuple[str, ...]

    def script(self) -> str:
        names = " ".join(shlex.quote(name) for name in self.names)
        blocks = "; ".join(f"printf '%s\\n\\n' \"{show_unit(name)}\"" for name in self.names)
        return shell.fill(
            shell.load("unit_states", "gpustate.core"),
            ASKED=_NAMES,
            NAMES=names,
            BLOCKS=blocks,
            MARK=_UNIT_FILES,
            FILES=unit_files(self.names),
        )

    def parse(self, answer: Answer) -> dict[str, systemd.Unit]:
        names, _, text = ("" if not answer.text.startswith(_NAMES) else answer.text).partition("\n")
        properties, _, files = (text or answer.text).partition(f"{_UNIT_FILES}\n")
        units = systemd.as_on_disk(systemd.parse_show(properties), files)
        # One that was asked for by another name, an alias, shows under its own.
        aliases = set(names.split()[1:]) - set(self.names)
        return {name: unit for name, unit in units.items() if name not in aliases}

    def joined(self, queries: Sequence[Query[Any]]) -> Units:
        names = (name for query in queries if isinstance(query, Units) for name in query.names)
        return Units(tuple(dict.fromkeys((*self.names, *names))))

    def placeholder(self) -> dict[str, systemd.Unit]:
        return {}


@dataclass(frozen=True, slots=True)
class LoadedModules(Query[frozenset[str]]):
    """Names in ``/proc/modules``; with underscores, as the kernel has them."""

    def script(self) -> str:
        return '[ -e "$PROC/modules" ] || exit 0; while read -r m _; do echo "$m"; done <"$PROC/modules"'

    def parse(self, answer: Answer) -> frozenset[str]:
        return frozenset(answer.text.split())

    def placeholder(self) -> frozenset[str]:
        return frozenset()
