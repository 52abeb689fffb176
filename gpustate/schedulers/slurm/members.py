"""The nodes of a cluster, by commands on a host with Slurm's tools, as root or SlurmUser."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, ConnectionFailed, RefusedError
from gpustate.schedulers.base import Emit, Member, NotMemberError
from gpustate.schedulers.slurm.rows import NODES, SlurmNode, matching, read_nodes

_GRES = "%N|%G"
_POLL_S = 2.0
#: What prints times in UTC, as Kubernetes has them, whatever the time zone of the host and its users' settings.
_UTC = ("env", "TZ=UTC0", "SLURM_TIME_FORMAT=%Y-%m-%dT%H:%M:%SZ")
#: How long a host or a slurmctld that has answered before may be away.
_PATIENCE_S = 45.0
#: How long one that has not answered counts as away, without another try.
_FAILED_S = 60.0
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")

#: Runs a command on the host with slurmctld's tools; returns exit status and output.
Command = Callable[[str], tuple[int, str]]


class Nodes:
    """The nodes of one cluster.

    Args:
        command: runs a command where its tools are.
        host: that host, for messages.
        hosts: under which name or address the inventory reaches its nodes, by their names there.
        sleep, clock: for waiting, in seconds.
    """

    def __init__(
        self,
        command: Command,
        host: str,
        hosts: Mapping[str, str],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._command = command
        self.title = f"Slurm at {host}"
        self._hosts = hosts
        self.sleep = sleep
        self.clock = clock
        self._lock = threading.Lock()
        self._answered = False
        self._failed = (float("-inf"), ClusterError(""))
        #: Hears that the host does not answer.
        self.emit: Emit | None = None
        self._rows: list[SlurmNode] | None = None
        self._gpus: set[str] = set()
        #: Of the machines when the run began.
        self.boot_ids: dict[str, str] = {}

    def answer(self, command: str) -> tuple[int, str]:
        """Exit status and output; a host or slurmctld that has answered before may be away for a while."""
        if self.clock() < self._failed[0]:
            raise self._failed[1]
        until = self.clock() + _PATIENCE_S
        reported = False
        while True:
            try:
                status, output = self._command(command)
            except ConnectionFailed as error:
                away = ClusterError(f"{self.title}: {error}")
            else:
                if status == 0 or not any(words in output for words in _AWAY):
                    self._answered = True
                    return status, output
                away = ClusterError(
                    f"{self.title}: {last_words(output)}",
                    fix="start slurmctld, or name its host in gpustate_slurm_host",
                )
            if not self._answered:
                # The other nodes of the run do not wait for it one after the other.
                self._failed = (self.clock() + _FAILED_S, away)
            if not self._answered or self.clock() >= until:
                raise away
            if self.emit is not None and not reported:
                self.emit(f"{away.message}; waiting {_PATIENCE_S:g} s at most")
                reported = True
            self.sleep(_POLL_S)

    def run(self, *words: str) -> str:
        """The output of a command that ends well."""
        status, output = self.answer(shlex.join(words))
        if status != 0:
            raise ClusterError(
                f"{self.title}: {shlex.join(words)}: {last_words(output) or f'exit status {status}'}",
                fix="the commands need root or SlurmUser on that host",
            )
        return output

    def _read(self, name: str = "") -> list[SlurmNode]:
        only = ("-n", name) if name else ()
        return read_nodes(self.run(*_UTC, "sinfo", "-N", "-a", "-h", *only, "-o", NODES))

    def node(self, name: str) -> SlurmNode:
        """One node, as it is now."""
        matches = self._read(name)
        if not matches:
            raise ClusterError(f"{self.title}: node {name} is gone")
        return matches[0]

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every node of every partition; those with GPUs in ``slurm.conf`` count, or all if it has none."""
        with self._lock:
            if self._rows is None or fresh:
                self._rows = self._read()
                rows = self.run("sinfo", "-N", "-a", "-h", "-o", _GRES).splitlines()
                self._gpus = {
                    name.strip()
                    for name, _, gres in (row.partition("|") for row in rows)
                    if "gpu" in gres
                }
            gpus = self._gpus
            return [
                replace(node.as_member(), counts=not gpus or node.name in gpus)
                for node in self._rows
            ]

    def held(self) -> frozenset[str]:
        """Names and addresses of the nodes that runs of gpustate hold."""
        self.members()
        nodes = self._rows or ()
        held = (node for node in nodes if node.hold is not None)
        return frozenset(name for node in held for name in (node.name, node.host, node.address))

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The node that has this machine's host name or one of its addresses.

        Raises:
            NotMemberError: none has.
            RefusedError: host name and addresses are of several.
        """
        self.members()
        matches = matching(self._rows or (), facts, self._hosts.get(name, name))
        if not matches:
            raise NotMemberError(
                f"{name}: {self.title}: no node has the host name {facts.hostname or '(unknown)'}"
                f" or an address of it ({', '.join(facts.addresses) or 'unknown'})",
                fix="check gpustate_slurm_host, and NodeHostname and NodeAddr in slurm.conf",
            )
        if len(matches) > 1:
            rows = "; ".join(
                f"{node.name} (NodeHostname {node.host}, NodeAddr {node.address})"
                for node in matches
            )
            raise RefusedError(
                f"{name}: {self.title}: several nodes may be this machine, by its host name "
                f"{facts.hostname} or an address: {rows}",
                fix="give each node its own NodeHostname and NodeAddr in slurm.conf",
            )
        name = matches[0].name
        self.boot_ids.setdefault(name, facts.boot_id)
        return self.node(name).as_member()


def last_words(output: str) -> str:
    """The end of a command's output, on one line."""
    return " ".join(output.split())[-300:]
