"""Slurm over the nodes of a lab: slurmctld on a head of its own, slurmd on every node.

The head is one more machine of the lab, with systemd and sshd as the nodes have them and without GPUs:
it stays up when a node is rebooted or loses power, and people log in to it to submit jobs. It runs
Debian's Slurm of the nodes' own release, so versions cannot differ.

``slurm.conf`` counts the GPUs that the nodes should have. A node without a driver has none, so Slurm
drains it until ``gpustate apply`` has brought them, as it would on real machines.

Sources:
    Slurm 22.05 and 24.11: slurm.conf(5), sinfo(1), scontrol(1): states and reasons of nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import slurm_files
from gpustate_lab.command import tail
from gpustate_lab.node import Node
from gpustate_lab.record import Lab

#: Seconds until every slurmd has registered after its node is up; it took two on idle cores.
REGISTERED_TIMEOUT_S = 120.0
_ACTIVE = ["systemctl", "is-active", "--quiet", "slurmctld.service"]


@dataclass(frozen=True, slots=True)
class NodeState:
    """What slurmctld says of a node.

    Args:
        flags: ``IDLE``, ``DRAIN``, ``INVALID_REG`` and so on, as ``scontrol show node`` has them.
        reason: why it is drained or down, without the person and the time; empty when it is not.
    """

    flags: frozenset[str]
    reason: str

    @property
    def registered(self) -> bool:
        """Whether its slurmd has registered, be it with fewer GPUs than ``slurm.conf`` counts."""
        return "INVALID_REG" in self.flags or not self.flags & {"UNKNOWN", "NOT_RESPONDING"}


def parse_states(text: str) -> dict[str, NodeState]:
    """Read what ``scontrol --oneliner show node`` prints. Pure."""
    states = {}
    for line in text.splitlines():
        head, _, reason = line.partition(" Reason=")
        words = {key: value for key, _, value in (word.partition("=") for word in head.split())}
        if "NodeName" in words:
            # A node that does not answer has an asterisk or NOT_RESPONDING, by version.
            state = words["State"].replace("*", "+NOT_RESPONDING")
            states[words["NodeName"]] = NodeState(
                frozenset(state.split("+")), reason.partition(" [")[0].strip()
            )
    return states


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Slurm cluster of one lab.

    Args:
        lab: its nodes.
        head: the machine with slurmctld.
    """

    lab: Lab
    head: Node

    def start(self, say: Callable[[str], None]) -> None:
        """Make key and ``slurm.conf``, which each machine takes when its disk is filled."""
        del say
        slurm_files.write(self.lab.directory, self.head, self.lab.nodes)

    def up(self, say: Callable[[str], None]) -> None:
        """Wait until every node has registered; slurmd starts with each node.

        Raises:
            LabError: slurmctld does not run, or a node has not registered within two minutes.
        """
        self.head.run(["systemctl", "start", "slurmctld.service"])
        deadline = time.monotonic() + REGISTERED_TIMEOUT_S
        missing = "no answer of slurmctld"
        while True:
            try:
                states = self.states()
            except LabError as error:
                missing = error.message
            else:
                missing = ", ".join(name for name, one in states.items() if not one.registered)
                if not missing:
                    break
            if time.monotonic() > deadline:
                raise LabError(
                    f"Slurm has not all nodes after {REGISTERED_TIMEOUT_S:.0f} s: {missing}",
                    place=self.head.name,
                    fix=f"journalctl -u slurmd on them; slurmctld's own ends with: {self._journal()}",
                )
            time.sleep(0.2)
        say(f"{self.head.name}: {self.head.address}, {self.version()}, {len(states)} nodes")
        drained = [name for name, one in states.items() if "DRAIN" in one.flags]
        if drained:
            say(
                f"drained until they have their GPUs: {', '.join(drained)}; after gpustate apply: "
                f"scontrol update nodename={','.join(drained)} state=resume"
            )

    @property
    def running(self) -> bool:
        """Whether slurmctld runs on a head that runs."""
        try:
            return self.head.run(_ACTIVE, check=False).returncode == 0
        except LabError:  # the head is off or between two boots
            return False

    def down(self) -> list[str]:
        """Nothing: the head goes with the lab's other machines."""
        return []

    def describe(self) -> dict[str, Any]:
        """The key ``slurm`` of the lab's entry in ``gpustate lab list -o json``."""
        return {
            "slurm": {
                "host": self.head.name,
                "address": self.head.address,
                "config": str(self.lab.directory / slurm_files.FOLDER / slurm_files.CONFIG),
                "ssh": self.head.ssh_args(),
                "running": self.running,
            }
        }

    def scontrol(self, *words: str) -> str:
        """Run ``scontrol`` on the head as root and return what it prints.

        Raises:
            LabError: it ended with another status than 0.
        """
        return self.head.run(["scontrol", *words]).stdout

    def version(self) -> str:
        """``slurm 22.05.8``."""
        return self.head.run(["scontrol", "--version"]).stdout.strip().removesuffix("-debian")

    def states(self) -> dict[str, NodeState]:
        """Every node's state, by name.

        Raises:
            LabError: slurmctld does not answer.
        """
        return parse_states(self.scontrol("--oneliner", "show", "node"))

    def _journal(self) -> str:
        shown = self.head.run("journalctl --no-pager -o cat -u slurmctld -n 4", check=False)
        return tail(shown.stdout)
