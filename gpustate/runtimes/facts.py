"""What a node reports of a container runtime, and what a state observes in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from gpustate.core.queries import Query, ShippedFile
from gpustate.ops.daemon_seen import Rows
from gpustate.probes import cri_queries, cri_status


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """One container runtime as the node has it.

    Args:
        program: of the process or unit, else the one on PATH; empty when there is none.
        version: such as ``1.7.24~ds1``.
        active: ``ActiveState`` of the unit; empty without systemd or without the unit.
        enabled: its ``UnitFileState``.
        starting_s: for how long it has been starting, where that is too long.
        files: path to text of the configuration files.
        originals: path to text as it was before gpustate; ``None`` for a file that was not there.
        links: those of the files that are symbolic links, to what they lead to.
        newer: files that were written after the service started.
        restart_pending: it has yet to read a change by gpustate.
        served: gpustate has had it read the handler.
        dump: its effective configuration; empty when it could not say.
        error: why it could not.
        cri: what the running process says; ``None`` where none was asked.
    """

    program: str = ""
    version: str = ""
    active: str = ""
    enabled: str = ""
    starting_s: int = 0
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    newer: tuple[str, ...] = ()
    restart_pending: bool = False
    served: bool = False
    dump: str = ""
    error: str = ""
    cri: cri_status.CriStatus | None = None

    @classmethod
    def read(cls, rows: Rows, **more: Any) -> Self:
        """Read the rows of a query.

        Args:
            rows: what it printed; its files are of the kind ``file``.
            more: fields of the runtime's own, and those that it has from elsewhere.

        Raises:
            RefusedError: something else is where a file belongs that is read or written here.
        """
        rows.only_files()
        active, enabled = rows.service
        common: dict[str, Any] = {
            "program": rows.last("program"),
            "version": rows.last("version"),
            "active": active,
            "enabled": enabled,
            "starting_s": rows.starting_s,
            "files": rows.blobs.get("file", {}),
            "originals": rows.originals,
            "links": rows.links,
            "newer": rows.keys.get("newer", ()),
            "restart_pending": "owed" in rows.keys,
            "served": "served" in rows.keys,
            "dump": rows.blobs.get("dump", {}).get("", ""),
            "error": rows.blobs.get("error", {}).get("", ""),
            "cri": cri_status.read(rows.keys),
        }
        return cls(**{**common, **more})


@dataclass(frozen=True, slots=True)
class RuntimeObservation:
    """A runtime's files, what it makes of them, and whether the service has read them.

    Args:
        found: all that the node reported.
        digest: of the files and their paths; files may hold passwords, so a saved plan has this instead.
        files: path to text of the configuration files.
        lacks: what the handler lacks in what the runtime makes of its files.
        read: the service has read what is on disk; true where it does not run.
        running: the service runs, or nobody wants it to.
        version: of the runtime; empty where there is none.
        kept: files of which a removal would leave bytes from before it kept.
        problem: why all this cannot be judged.
        dead: why no pod can start with the running process; empty where one can.
        missing_programs: programs of the handler that do not exist.
    """

    found: RuntimeFacts = field(default_factory=RuntimeFacts)
    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    lacks: tuple[str, ...] = ()
    read: bool = True
    running: bool = True
    version: str = ""
    kept: tuple[str, ...] = ()
    problem: str = ""
    dead: str = ""
    missing_programs: tuple[str, ...] = ()


FactsT = TypeVar("FactsT")


class CriQuery(Query[FactsT]):
    """A query that asks the running process over CRI as well."""

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """The programs that ask the process."""
        return cri_queries.SHIPS

    def script(self) -> str:
        return cri_queries.CRI_SAYS + self.fragment()

    @abstractmethod
    def fragment(self) -> str:
        """MUST: the sh of the query, for which ``cri_says`` is defined."""
