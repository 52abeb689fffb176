"""What a node says about its containerd: one ask, so that a probe stays at one exec.

Which file containerd reads is known to its unit alone, so the fragment finds that out and goes on
from there. Costs two short runs of the containerd binary (version and dump) and a few forks.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer
from gpustate.core.shared_probes import KEPT
from gpustate.formats.containerd import ROOT_PATH
from gpustate.ops.daemon_seen import BLOBS, owed, read_rows, served, unit_command
from gpustate.probes.cri_status import KUBELET
from gpustate.runtimes.facts import CriQuery, RuntimeFacts

#: Where containerd answers unless told otherwise.
SOCKET = "/run/containerd/containerd.sock"
#: The file that is wholly ours, beside the one that containerd reads.
DROP_IN = "conf.d/99-nvidia.toml"


@dataclass(frozen=True, slots=True)
class Found(RuntimeFacts):
    """One containerd as the node has it: the file it reads, and all that it might import.

    Args:
        started_with: the file the unit starts it with.
        trapped: an imported file is newer than the root, so containerd does not do what they say.
        kubelet_cgroup: the cgroup driver of the kubelet that runs here and where that is set, separated by ``|``.
    """

    started_with: str = ROOT_PATH
    trapped: bool = False
    kubelet_cgroup: str = ""


@dataclass(frozen=True, slots=True)
class ContainerdQuery(CriQuery[Found]):
    """How containerd is started here, what it reads, and what it makes of it.

    Args:
        unit: its service.
        drop_in: a further file to read; ``None`` for none.
        socket: where it answers; ``None`` for the one its files name.
    """

    unit: str
    drop_in: str | None = None
    socket: str | None = None

    def fragment(self) -> str:
        dump = shell.load("dump", "gpustate.states.containerd")
        script = shell.load(
            "query",
            "gpustate.states.containerd",
            ROOT=ROOT_PATH,
            DROP_IN=DROP_IN,
            MORE=self.drop_in or "",
            SOCKET=self.socket or "",
            DEFAULT_SOCKET=SOCKET,
            OWED=owed("containerd"),
            SERVED=served("containerd"),
        )
        return unit_command(self.unit) + BLOBS + KEPT + dump + script + KUBELET

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "containerd's files", ("file", "dump", "error"))
        return Found.read(
            rows,
            started_with=rows.last("root") or ROOT_PATH,
            kubelet_cgroup=rows.last("kubelet_cgroup"),
        )

    def placeholder(self) -> Found:
        return Found()
