"""Slurm as a scheduler: hold is ``State=DRAIN`` with a reason of ours, and draining is waiting for jobs.

The commands run over SSH on the host that the inventory names, as root or SlurmUser. Surprising: a second drain
overwrites the reason of the first, so every write is preceded by a read and followed by one. ``resume`` of 24.11
keeps an old reason, which then hides newer ones, so it is emptied after a release. 26.05 adds `` : Not responding`` to
a reason, and refuses to undrain a node that registered with too few GPUs.

``sinfo`` and ``squeue`` with formats of their own instead of JSON: scontrol of 22.05 has no JSON, and its sinfo and
squeue ignore ``-n`` and ``-w`` with it.

Sources:
    SchedMD/slurm, doc/man/man1/{scontrol,sinfo,squeue}.1; Debian's 22.05.8, 24.11.5 and 26.05.5 as they behave.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, RefusedError
from gpustate.schedulers.base import (
    HeldElsewhereError,
    Hold,
    Member,
    NotDrainedError,
    Say,
    Scope,
    Stop,
    Why,
    Workload,
    rules_of,
    taken_over,
)

#: What a reason of ours begins with; a run's id follows.
PREFIX = "gpustate:"
_REASON = re.compile(
    r"gpustate:(?P<run>[^:\s]+): (?P<text>.*?)(?: \((?P<phase>\w+)\))?(?: by (?P<person>\S+))?(?: : .*)?"
)
_NODES = "%n|%o|%N|%T|%u|%H|%E"
_JOBS = "%i|%T|%u|%b|%j"
#: What Slurm itself writes as a reason when a node does not fit its configuration or does not answer.
_BY_SLURM = (
    "gres/",
    "Low ",
    "Not responding",
    "Node unexpectedly rebooted",
    "Node Not Responding",
    "Prolog error",
    "Epilog error",
    "Kill task failed",
    "Invalid registration",
)
_POLL_S = 2.0
_REGISTER_S = 60.0

#: Runs a command on the host with slurmctld's tools; returns exit status and output.
Command = Callable[[str], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One row of sinfo.

    Args:
        host: its host name.
        address: its address.
        name: Slurm's name of it.
        state: as ``sinfo`` prints it, with flags such as ``*``.
        user, since, reason: who set the reason, when, and the reason; empty where there is none.
    """

    host: str
    address: str
    name: str
    state: str
    user: str = ""
    since: str = ""
    reason: str = ""

    @property
    def ours(self) -> bool:
        """The reason is of this tool."""
        return self.reason.startswith(PREFIX)

    @property
    def by_slurm(self) -> bool:
        """Slurm itself took it out of service, for what it saw of the node."""
        return self.reason.startswith(_BY_SLURM)

    @property
    def base(self) -> str:
        """Its state without flags."""
        return self.state.rstrip("*~#!%$@+^-").lower()

    @property
    def drained_or_down(self) -> bool:
        """It takes no new work."""
        return self.base.startswith(("drain", "down", "fail", "maint", "inval", "reboot", "error"))

    @property
    def answers(self) -> bool:
        """slurmd answers the controller."""
        return "*" not in self.state and not self.base.startswith("down")


def read_nodes(text: str) -> list[SlurmNode]:
    """Read ``sinfo -N`` in our format; a node of several partitions is one row."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) != 7:
            continue
        host, address, name, state, user, since, reason = (part.strip() for part in parts)
        if reason == "none":
            user = since = reason = ""
        found[name] = SlurmNode(host, address, name, state, user, since, reason)
    return list(found.values())


def matching(nodes: Iterable[SlurmNode], facts: NodeFacts, reached: str) -> list[SlurmNode]:
    """The nodes that may be a machine.

    Args:
        nodes: of the cluster.
        facts: of the machine.
        reached: name or address by which the inventory reaches it. A loopback one is a tunnel's.
    """
    known = [*filter(None, (facts.hostname, reached, *facts.addresses))]
    return [
        node
        for node in nodes
        if _is_same(node.host, facts.hostname) or any(_is_same(node.address, one) for one in known)
    ]


def _is_same(one: str, other: str) -> bool:
    """Whether two texts are one address, or one host's name, with or without its domain."""
    if not one or not other:
        return False
    first, second = _address(one), _address(other)
    if first is not None or second is not None:
        return first is not None and first == second and not first.is_loopback
    names = [text.lower().rstrip(".") for text in (one, other)]
    if "localhost" in names:
        return False
    if all("." in name for name in names):
        return names[0] == names[1]
    return names[0].partition(".")[0] == names[1].partition(".")[0]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address; ``None`` for a name."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


class Slurm:
    """One cluster.

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
        hosts: Mapping[str, str] | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._host = host
        self._hosts = hosts or {}
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: list[SlurmNode] | None = None

    @property
    def title(self) -> str:
        """As messages name it."""
        return f"Slurm at {self._host}"

    def _run(self, *words: str) -> str:
        status, output = self._command(shlex.join(words))
        if status != 0:
            last = " ".join(output.split())[-300:] or f"exit status {status}"
            raise ClusterError(
                f"{self.title}: {shlex.join(words)}: {last}",
                fix="the commands need root or SlurmUser on that host",
            )
        return output

    def _read(self, name: str = "") -> list[SlurmNode]:
        only = ("-n", name) if name else ()
        return read_nodes(self._run("sinfo", "-N", "-a", "-h", *only, "-o", _NODES))

    def _one(self, name: str) -> SlurmNode:
        found = self._read(name)
        if not found:
            raise ClusterError(f"{self.title}: node {name} is gone")
        return found[0]

    # --- members -----------------------------------------------------------------------

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every node of every partition."""
        with self._lock:
            if self._nodes is None or fresh:
                self._nodes = self._read()
            return [_member(node) for node in self._nodes]

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The node that has this machine's host name or one of its addresses.

        Raises:
            RefusedError: none has, or host name and addresses are of several.
        """
        self.members()
        found = matching(self._nodes or (), facts, self._hosts.get(name, name))
        if not found:
            raise RefusedError(
                f"{name}: {self.title}: no node has the host name {facts.hostname or '(unknown)'}"
                f" or an address of it ({', '.join(facts.addresses) or 'unknown'})",
                fix="check gpustate_slurm_host, and NodeHostname and NodeAddr in slurm.conf",
            )
        if len(found) > 1:
            rows = "; ".join(
                f"{node.name} (NodeHostname {node.host}, NodeAddr {node.address})" for node in found
            )
            raise RefusedError(
                f"{name}: {self.title}: several nodes may be this machine, by its host name "
                f"{facts.hostname} or an address: {rows}",
                fix="give each node its own NodeHostname and NodeAddr in slurm.conf",
            )
        return _member(self._one(found[0].name))

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """The jobs that run there; all of them leave, whatever the scope."""
        return self._jobs(member.name)

    def _jobs(self, name: str) -> list[Workload]:
        output = self._run("squeue", "-h", "-a", "-w", name, "-o", _JOBS)
        found: list[Workload] = []
        for line in output.splitlines():
            job, _, rest = line.partition("|")
            _, _, rest = rest.partition("|")
            user, _, rest = rest.partition("|")
            gres = rest.partition("|")[0]
            if job.strip():
                found.append(Workload(f"job {job.strip()} of {user}", "gpu" in gres))
        return found

    # --- hold and release --------------------------------------------------------------

    def enter(self, why: Why, say: Say, stop: Stop) -> None:
        """Slurm has nothing to hold; two runs see each other by the reasons of nodes."""

    def leave(self) -> None:
        """Nothing is held."""

    def hold(self, member: Member, why: Why) -> Member:
        """Drain it with a reason of ours; one that Slurm itself drained keeps Slurm's reason."""
        node = self._one(member.name)
        if node.drained_or_down and node.by_slurm:
            return _member(node)
        if node.drained_or_down and not node.ours:
            raise HeldElsewhereError(
                f"{self.title}: node {node.name} is out of service: {_foreign(node)}",
                fix="run again when that is over; --ignore-scheduler changes it all the same",
            )
        return self._set(node.name, why.run, why.text, why.person, "held")

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase in the reason."""
        node = self._one(member.name)
        hold = _hold(node)
        if hold is None or hold.phase == phase:
            return _member(node)
        if other := taken_over(member, hold):
            raise HeldElsewhereError(f"{self.title}: node {node.name}: {other}")
        return self._set(node.name, hold.run, why or hold.text, hold.person, phase)

    def _set(self, name: str, run: str, text: str, person: str, phase: str) -> Member:
        words = re.sub(r"[()\[\]\"'|]| :(?= )", " ", text)
        reason = f"{PREFIX}{run}: {words} ({phase}) by {person}"
        self._run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
        node = self._one(name)
        if not node.reason.startswith(reason):
            raise HeldElsewhereError(
                f"{self.title}: node {name} was drained by someone else at the same time: {_foreign(node)}"
            )
        return _member(node)

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, say: Say, stop: Stop
    ) -> None:
        """Wait for its jobs; those that are still there at the limit are requeued."""
        began, limit_s = self._clock(), rules_of(policy, scope).timeout_s
        reported: set[str] = set()
        requeued = False
        while jobs := self._jobs(member.name):
            if stop():
                raise NotDrainedError("interrupted while it was drained")
            names = {job.name for job in jobs}
            if names - reported:
                say(f"waiting for {', '.join(sorted(names))}")
                reported |= names
            elapsed = self._clock() - began
            if limit_s and elapsed > limit_s and not requeued:
                self._requeue(member.name, jobs, say)
                requeued = True
            elif limit_s and elapsed > limit_s + 120:
                raise NotDrainedError(
                    f"{self.title}: node {member.name} still runs {', '.join(sorted(names))} two minutes after they were requeued"
                )
            self._sleep(_POLL_S)

    def _requeue(self, name: str, jobs: Sequence[Workload], say: Say) -> None:
        refused: list[str] = []
        for job in jobs:
            number = job.name.split()[1]
            say(f"requeueing {job.name}")
            status, output = self._command(shlex.join(("scontrol", "requeue", number)))
            if status != 0:
                refused.append(f"{job.name} ({' '.join(output.split())[-120:]})")
        if refused:
            raise NotDrainedError(
                f"{self.title}: node {name} was not drained in time, and these cannot be requeued: {'; '.join(refused)}",
                fix="pass a longer --drain-timeout, or cancel them: scancel JOB",
            )

    def refresh(self, member: Member, say: Say, stop: Stop) -> None:
        """slurmd opens no GPU; whether its count fits is seen when it registers."""

    def release(self, member: Member) -> str:
        """Return it to service, where the reason is still ours."""
        node = self._one(member.name)
        if not node.ours and node.drained_or_down:
            resume = f"scontrol update NodeName={node.name} State=RESUME"
            return (
                f"{_foreign(node)}; once its cause is gone: {resume}"
                if node.by_slurm
                else _foreign(node)
            )
        if not node.ours:
            return ""
        if other := taken_over(member, _hold(node)):
            return other
        deadline = self._clock() + _REGISTER_S
        down = node.base.startswith("down")
        while down and "*" in node.state and self._clock() < deadline:
            self._sleep(_POLL_S)  # slurmd registers again after a boot
            node = self._one(member.name)
        while node.base.startswith("inval") and self._clock() < deadline:
            self._sleep(_POLL_S)  # slurmd has just been restarted
            node = self._one(member.name)
        if node.base.startswith("inval"):
            return (
                "slurmd registered with fewer GPUs than slurm.conf has; fix gres.conf or slurm.conf and restart "
                f"slurmd, then: scontrol update NodeName={node.name} State=RESUME"
            )
        if node.drained_or_down and not node.base.startswith("down"):
            # Otherwise a run that died in between has left only the reason.
            self._run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
            node = self._one(member.name)
        if node.base.startswith("down") and (node.ours or not node.reason):
            # UNDRAIN leaves it down; a drained node that booted shows only now that it is.
            self._run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
            node = self._one(member.name)
        while not node.answers and self._clock() < deadline:
            self._sleep(_POLL_S)
            node = self._one(member.name)
        if node.ours and not node.drained_or_down:
            # Last: a resumed node is down with its reason until slurmd registers.
            for empty in ("", "none"):  # 24.11 does not take an empty reason
                if node.ours:
                    self._run("scontrol", "update", f"NodeName={node.name}", f"Reason={empty}")
                    node = self._one(member.name)
        return (
            f"it is {node.state}: {node.reason or 'without a reason'}"
            if node.drained_or_down
            else ""
        )


def _hold(node: SlurmNode) -> Hold | None:
    if not node.ours:
        return None
    match = _REASON.fullmatch(node.reason)
    if match is None:
        return Hold("", node.user, node.reason, "held", node.since)
    return Hold(
        match["run"],
        match["person"] or node.user,
        match["text"],
        match["phase"] or "held",
        node.since,
    )


def _foreign(node: SlurmNode) -> str:
    by = f" by {node.user} since {node.since}" if node.reason else ""
    return f"{node.state}: {node.reason or 'no reason given'}{by}"


def _member(node: SlurmNode) -> Member:
    elsewhere = node.drained_or_down and not node.ours and not node.by_slurm
    foreign = (_foreign(node),) if elsewhere else ()
    return Member(
        node.name,
        ready=node.answers,
        schedulable=not node.drained_or_down,
        hold=_hold(node),
        foreign=foreign,
    )
