"""What a state may ask of a node."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from gpustate.core import file_queries, queries
from gpustate.core.facts import FactsQuery, NodeFacts
from gpustate.formats import dpkg, systemd

T = TypeVar("T")


def _is_unit(path: str) -> bool:
    return "/systemd/system/" in path and path.endswith((".service", ".timer", ".socket", ".path"))


class Node(ABC):
    """The other side of a probe: every method asks the node and only reads.

    Ask everything unconditionally where that is cheap: asks that do not depend on answers leave
    together, in one exec. :class:`gpustate.testing.FakeNode` is the stand-in for tests.

    Attributes:
        name: the node's name in the inventory.
        vars: its inventory variables.
    """

    name: str
    vars: Mapping[str, object]

    @property
    def shared(self) -> dict[Any, Any]:
        """What a probe keeps for the other nodes of the same run; by default nothing is kept."""
        return {}

    @abstractmethod
    def query(self, query: queries.Query[T]) -> T:
        """Ask anything; the methods below are the common asks."""

    def facts(self) -> NodeFacts:
        """Operating system, kernel, boot id, runtimes and NVIDIA devices on PCI."""
        return self.query(FactsQuery())

    def read_text(self, path: str) -> str | None:
        """Text of a file, ``None`` where there is none. Paths under /proc and /sys are rooted."""
        return self.query(file_queries.FileText(path))

    def own_text(self, path: str, *, private: bool = False) -> str | None:
        """Text of a file that gpustate itself writes, for all to read or for root alone: as :meth:`read_text`.

        Where owner or mode are not as it was written, the text says so in a line ahead: so it differs
        from what is wanted. A unit that is masked is not a file of ours.

        Raises:
            RefusedError: something else is in its place.
        """
        stat = self.stats(path).get(path)
        if stat is not None and stat.target == "/dev/null" and _is_unit(path):
            return None
        text = self.read_text(path)
        if stat is None:
            return text
        if stat.kind == "link":
            self.linked(path, stat.target or "")
        if stat.kind == "link" and text is None:
            raise file_queries.no_file(
                path, f"a symbolic link to {stat.target}, which is not there"
            )
        note = stat.otherwise(private=private) if text is not None else ""
        return file_queries.noted(note, text or "") if note else text

    def linked(self, path: str, target: str) -> None:  # noqa: B027  nothing but the engine has to
        """MAY: take note that a symbolic link stands where a file of gpustate's own belongs."""

    def otherwise(self, path: str, *, private: bool = False) -> str:
        """Owner and mode of a file that gpustate itself writes, where they are not as written.

        For a file of which more is judged than its text. Empty where it is as written, no file, or not there.
        """
        stat = self.stats(path).get(path)
        return stat.otherwise(private=private) if stat is not None else ""

    def read_texts(self, pattern: str) -> dict[str, str]:
        """Text of every regular file that a shell pattern (without blanks) matches."""
        return self.query(file_queries.FileTexts(pattern))

    def stats(self, *patterns: str) -> dict[str, file_queries.FileStat]:
        """Kind, mode and owner of everything that shell patterns match; links are not followed."""
        return self.query(file_queries.FileStats(patterns))

    def command(self, *argv: str, timeout_s: int = 20) -> queries.CommandResult:
        """Run a command that only reads."""
        return self.query(queries.command(argv, timeout_s=timeout_s))

    def shell(self, text: str, *, assume: str = "") -> queries.CommandResult:
        """Run a sh fragment that only reads. ``assume``: output to go on with until it answers."""
        return self.query(queries.Shell(text, assume))

    def packages(self, *patterns: str) -> dict[str, dpkg.Package]:
        """Packages in the database of dpkg or rpm whose names match shell patterns."""
        return self.query(queries.Packages(patterns))

    def candidates(self, *names: str) -> dict[str, tuple[dpkg.Candidate, ...]]:
        """Versions of packages that the configured repositories offer and no foreign pin forbids, best first."""
        offers = self.query(queries.Candidates(names))
        return {n: tuple(c for c in rows if not c.forbidden_by) for n, rows in offers.items()}

    def forbidden(self, *names: str) -> dict[str, str]:
        """Packages with versions that repositories offer and foreign pins forbid: the file of pins."""
        return {
            f"{name} {candidate.version}": candidate.forbidden_by
            for name, candidates in self.query(queries.Candidates(names)).items()
            for candidate in candidates
            if candidate.forbidden_by
        }

    def units(self, *names: str) -> dict[str, systemd.Unit]:
        """systemd units by full name (``containerd.service``); empty where there is no systemd."""
        return self.query(queries.Units(names))

    def drop_ins(self, unit: str) -> dict[str, str]:
        """Text of the drop-ins of a unit on the disk by path, in the order in which systemd reads them.

        What systemd itself tells of them is what it read at its last reload.
        """
        texts = self.read_texts(" ".join(f"{place}/{unit}.d/*.conf" for place in systemd.FOLDERS))
        # Of those with one name, the one in the first of the folders.
        paths = {
            posixpath.basename(path): path
            for place in reversed(systemd.FOLDERS)
            for path in texts
            if path.startswith(f"{place}/")
        }
        return {paths[name]: texts[paths[name]] for name in sorted(paths)}

    def modules(self) -> frozenset[str]:
        """Names of the loaded kernel modules, with underscores."""
        return self.query(queries.LoadedModules())
