"""A Slurm cluster of lab nodes: slurmctld on a separate head, slurmd on every node.

The head is an additional machine without GPUs. It stays up when a node reboots or loses power, and users log in
to it to submit jobs. It has the Debian release of the nodes, so Slurm versions match.

``slurm.conf`` has the GPUs that the nodes should have. A node without a driver has none, so Slurm drains it until
``gpustate apply`` installs the driver, as on real machines.

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

#: Seconds for every slurmd to register after its node booted; it takes two on idle cores.
REGISTERED_TIMEOUT_S = 120.0
_ACTIVE = ["systemctl", "is-active", "--quiet", "slurmctld.service"]


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node in slurmctld.

    Args:
        flags: ``IDLE``, ``DRAIN``, ``INVALID_REG`` and so on, as in ``scontrol show node``.
        reason: why it is drained or down, without user and time; empty otherwise.
    """

    flags: frozenset[str]
    reason: str

    @property
    def registered(self) -> bool:
        """Whether its slurmd has registered, even with fewer GPUs than in ``slurm.conf``."""
        return "INVALID_REG" in self.flags or not self.flags & {"UNKNOWN", "NOT_RESPONDING"}


def parse_states(text: str) -> dict[str, NodeState]:
    """Parse ``scontrol --oneliner show node``. Pure."""
    states = {}
    for line in text.splitlines():
        head, _, reason = line.partition(" Reason=")
        words = {key: value for key, _, value in (word.partition("=") for word in head.split())}
        if "NodeName" in words:
            # An unresponsive node has an asterisk or NOT_RESPONDING, depending on the version.
            state = words["State"].replace("*", "+NOT_RESPONDING")
            states[words["NodeName"]] = NodeState(
                frozenset(state.split("+")), reason.partition(" [")[0].strip()
            )
    return states


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Slurm cluster of a lab.

    Args:
        lab: the lab.
        head: the machine with slurmctld.
    """

    lab: Lab
    head: Node

    def start(self, say: Callable[[str], None]) -> None:
        """Write key and ``slurm.conf``, which are copied to each new disk."""
        del say
        slurm_files.write(self.lab.directory, self.head, self.lab.nodes)

    def up(self, say: Callable[[str], None]) -> None:
        """Wait until every node has registered; slurmd starts with each node.

        Raises:
            LabError: slurmctld is not running, or a node has not registered within two minutes.
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
                    f"nodes not registered with Slurm after {REGISTERED_TIMEOUT_S:.0f} s: {missing}",
                    place=self.head.name,
                    fix=f"read journalctl -u slurmd on them; last lines of slurmctld: {self._journal()}",
                )
            time.sleep(0.2)
        say(f"{self.head.name}: {self.head.address}, {self.version()}, {len(states)} nodes")
        drained = [name for name, one in states.items() if "DRAIN" in one.flags]
        if drained:
            say(
                f"drained until their GPUs are available: {', '.join(drained)}; after gpustate apply run: "
                f"scontrol update nodename={','.join(drained)} state=resume"
            )

    @property
    def running(self) -> bool:
        """Whether the head and its slurmctld are running."""
        try:
            return self.head.run(_ACTIVE, check=False).returncode == 0
        except LabError:  # the head is off or rebooting
            return False

    def down(self) -> list[str]:
        """Do nothing: the head is removed with the other machines."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return the key ``slurm`` of the lab's entry in ``gpustate lab list -o json``."""
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
        """Run ``scontrol`` on the head as root and return its output.

        Raises:
            LabError: its exit status is not 0.
        """
        return self.head.run(["scontrol", *words]).stdout

    def version(self) -> str:
        """Return the version, as ``slurm 22.05.8``."""
        return self.head.run(["scontrol", "--version"]).stdout.strip().removesuffix("-debian")

    def states(self) -> dict[str, NodeState]:
        """Return the state of each node by name.

        Raises:
            LabError: slurmctld does not respond.
        """
        return parse_states(self.scontrol("--oneliner", "show", "node"))

    def _journal(self) -> str:
        shown = self.head.run("journalctl --no-pager -o cat -u slurmctld -n 4", check=False)
        return tail(shown.stdout)
