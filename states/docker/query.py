"""What a node says about its docker daemon: one ask, so that a probe stays at one exec.

Which file the daemon reads and what its command line sets is read from the process where it runs, from
its unit where it does not. What it runs with it says itself, to its own client program.

Sources:
    dockerd(8). Docker Engine API, ``/info``: ``CDISpecDirs`` is empty where CDI is off, and unknown
    before 25.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats.docker import CONFIG_PATH, File
from gpustate.formats.numbers import parse_uint
from gpustate.formats.words import quote
from gpustate.ops.daemon_seen import BLOBS, owed, read_rows, served, unit_command
from gpustate.runtimes.facts import RuntimeFacts

#: Keys of ``daemon.json`` that gpustate has set, a line each; below ``$G``.
OURS = "docker.ours"
SNAP, SNAP_PROGRAM = "/snap/docker/current", "/snap/bin/docker"


@dataclass(frozen=True, slots=True)
class Found(RuntimeFacts):
    """One docker daemon as the node has it.

    Args:
        arguments: of its command line, with the program.
        config_path: the file it reads.
        ours: see :class:`gpustate.formats.docker.File`.
        runtimes: name to program, as it runs with them; empty when it does not say.
        default_runtime: what it runs with.
        live_restore: containers survive its restart.
        containers: how many run.
        cgroup_driver: ``systemd`` or ``cgroupfs``.
        cdi: it injects CDI devices; ``None`` when it does not say.
        mute: it runs, and gave its client no answer in 10 s.
        snap: there is a snap of docker.
        containerd: gpustate has configured containerd, so it is more than what docker runs on.
    """

    arguments: tuple[str, ...] = ()
    config_path: str = CONFIG_PATH
    ours: tuple[str, ...] = ()
    runtimes: Mapping[str, str] = field(default_factory=dict[str, str])
    default_runtime: str = ""
    live_restore: bool = False
    containers: int = 0
    cgroup_driver: str = ""
    cdi: bool | None = None
    mute: bool = False
    snap: bool = False
    containerd: bool = False

    @property
    def text(self) -> str | None:
        """The file it reads; ``None`` where there is none."""
        return self.files.get(self.config_path)

    @property
    def original(self) -> str | None:
        """That file as it was before gpustate."""
        return self.originals.get(self.config_path)

    def file(self) -> File:
        """Its configuration file, for the editor."""
        return File(
            *(self.config_path, self.text, self.ours, self.original),
            *(self.arguments[1:], self.version),
        )


@dataclass(frozen=True, slots=True)
class DockerQuery(Query[Found]):
    """How docker is started here, what it reads, and what it runs with.

    Args:
        unit: its service.
    """

    unit: str

    def script(self) -> str:
        script = shell.load(
            "query",
            "gpustate.states.docker",
            SNAP=SNAP,
            SNAP_PROGRAM=SNAP_PROGRAM,
            CONFIG=CONFIG_PATH,
            OWED=owed("docker"),
            SERVED=served("docker"),
            CONTAINERD=served("containerd"),
            OURS=OURS,
        )
        return unit_command(self.unit) + BLOBS + script

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "docker's files", ("file",))
        info = rows.last("info").split()
        cdi = rows.last("cdi")
        return Found.read(
            rows,
            arguments=rows.keys.get("arg", ()),
            config_path=rows.last("config") or CONFIG_PATH,
            ours=tuple(key for key in rows.keys.get("ours", ()) if key),
            runtimes=rows.pairs("runtime"),
            default_runtime=info[0] if len(info) == 4 else "",
            live_restore=info[1:2] == ["true"],
            containers=parse_uint(info[3]) or 0 if len(info) == 4 else 0,
            cgroup_driver=quote(info[2]).strip("'\"") if len(info) == 4 else "",
            cdi=None if not cdi else cdi not in ("null", "[]"),
            mute="mute" in rows.keys,
            snap="snap" in rows.keys,
            containerd="containerd" in rows.keys,
        )

    def placeholder(self) -> Found:
        return Found()
