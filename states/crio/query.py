"""What a node says about its CRI-O: one ask, so that a probe stays at one exec.

Sources:
    crio(8): ``--config``, ``--config-dir``; ``crio config`` prints what it makes of its files, with
    values that are its defaults as comments; ``crio status``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer
from gpustate.formats.crio import DROP_IN_NAME, FOLDER, MAIN_PATH, UNREAD_FOLDER
from gpustate.ops.daemon_seen import BLOBS, owed, read_rows, served, unit_command
from gpustate.runtimes.facts import CriQuery, RuntimeFacts

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
#: Defines ``low_level``: the programs that NVIDIA's runtime would wrap, those that are there.
LOW_LEVEL = shell.load("low_level", "gpustate.states.crio", TOOLKIT_CONFIG=TOOLKIT_CONFIG)


@dataclass(frozen=True, slots=True)
class Found(RuntimeFacts):
    """One CRI-O as the node has it.

    Args:
        main_path, folder: the file and the folder it reads.
        low_level: programs that NVIDIA's runtime would wrap, in its order, those that are there.
        unread: drop-ins for the handler in a folder that CRI-O does not read.
    """

    main_path: str = MAIN_PATH
    folder: str = FOLDER
    low_level: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CrioQuery(CriQuery[Found]):
    """How CRI-O is started here, what it reads, and what it makes of it.

    Args:
        unit: its service.
        drop_in: name of the file that is wholly ours.
        socket: where it answers.
    """

    unit: str
    drop_in: str = DROP_IN_NAME
    socket: str = "/var/run/crio/crio.sock"

    def fragment(self) -> str:
        script = shell.load(
            "query",
            "gpustate.states.crio",
            MAIN=MAIN_PATH,
            FOLDER=FOLDER,
            UNREAD=UNREAD_FOLDER,
            DROP_IN=self.drop_in,
            SOCKET=self.socket,
            OWED=owed("crio"),
            SERVED=served("crio"),
        )
        return unit_command(self.unit) + BLOBS + LOW_LEVEL + script

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "CRI-O's files", ("file", "dump", "error"))
        return Found.read(
            rows,
            main_path=rows.last("main") or MAIN_PATH,
            folder=rows.last("folder") or FOLDER,
            low_level=rows.keys.get("low", ()),
            unread=rows.keys.get("unread", ()),
        )

    def placeholder(self) -> Found:
        return Found()
