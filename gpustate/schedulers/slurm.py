"""Slurm as a scheduler: hold is ``State=DRAIN``, with a reason of ours; draining is waiting for jobs.

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
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address

from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, ConnectionFailed, RefusedError
from gpustate.schedulers.base import (
    HeldElsewhereError,
    Hold,
    Member,
    NotDrainedError,
    NotMemberError,
    NotRefreshedError,
    Say,
    Scope,
    Stop,
    Why,
    Workload,
    taken_over,
)
from gpustate.schedulers.lease import Leased
from gpustate.schedulers.slurm_lease import LeaseFile

#: What a reason of ours begins with; a run's id follows.
PREFIX = "gpustate:"
_REASON = re.compile(
    r"gpustate:(?P<run>[^:\s]+): (?P<text>.*?)(?: \((?P<phase>\w+)\))?(?: by (?P<person>\S+))?(?: : .*)?"
)
_NODES = "%n|%o|%N|%T|%u|%H|%E"
#: ``%`` formats of squeue do not have whether a job can be requeued.
_JOBS = "JobArrayID:40|,State:20|,UserName:64|,BatchFlag:2|,Requeue:2|,tres-per-node:200"
_GRES = "%N|%G"
_BOOT_TIME = re.compile(r"\bBootTime=([0-9T:-]+)")
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
#: Those whose cause is gone once slurmd has registered right.
_BY_REGISTRATION = re.compile(
    r"gres/\S+ count |Low (?:socket|CPUs|RealMemory|TmpDisk)|Invalid registration|Node unexpectedly rebooted|"
    r"(?:Node )?Not [Rr]esponding"
)
_POLL_S = 2.0
_REGISTER_S = 120.0
#: What prints times in UTC, as Kubernetes has them, whatever the time zone of the host and its users' settings.
_UTC = ("env", "TZ=UTC0", "SLURM_TIME_FORMAT=%Y-%m-%dT%H:%M:%SZ")
#: How long a host or a slurmctld that has answered before may be away.
_PATIENCE_S = 45.0
#: How long one that has not answered counts as away, without another try.
_FAILED_S = 60.0
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")

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
        user, since, reason: who set the reason, when in UTC, and the reason; empty where there is none.
        emptied: its reason was emptied, which hides one that Slurm itself has had since.
    """

    host: str
    address: str
    name: str
    state: str
    user: str = ""
    since: str = ""
    reason: str = ""
    emptied: bool = False

    @property
    def ours(self) -> bool:
        """The reason is of this tool."""
        return self.reason.startswith(PREFIX)

    @property
    def by_slurm(self) -> bool:
        """Slurm itself took it out of service, for what it saw of the node."""
        # An older reason stays, and may be an emptied one; whoever drains a node has to give one.
        hidden = self.base.startswith("inval") or (self.drained and self.emptied)
        return self.reason.startswith(_BY_SLURM) or (hidden and not self.reason)

    @property
    def by_registration(self) -> bool:
        """Slurm itself took it out of service for what slurmd registered, or that it did not."""
        return self.by_slurm and (
            not self.reason or _BY_REGISTRATION.match(self.reason) is not None
        )

    @property
    def in_maintenance(self) -> bool:
        """It is reserved for maintenance, so that no other jobs begin there."""
        return self.base.startswith("maint") or "$" in self.state

    @property
    def drained(self) -> bool:
        """It is drained, or will be once its jobs end."""
        return self.base.startswith("drain")

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


@dataclass(frozen=True, slots=True)
class Job:
    """One that has a part of a node.

    Args:
        number: as squeue prints it: ``17``, ``17_3`` of an array, ``17+1`` of a heterogeneous job.
        user: whose it is.
        gpu: it asked for GPUs.
        ending: it is on its way out.
        problem: why it cannot be requeued, and what to do; empty: it can, or is on its way out.
    """

    number: str
    user: str
    gpu: bool = False
    ending: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"job {self.number} of {self.user}"

    @property
    def whole(self) -> str:
        """What scontrol requeues: of a heterogeneous job all components, by the number of the first."""
        return self.number.partition("+")[0]


def read_jobs(text: str) -> list[Job]:
    """Read ``squeue`` in our format, whose order differs: in that of the jobs' numbers."""
    found: list[Job] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 5)]
        if len(parts) != 6:
            continue
        number, state, user, batch, requeue, gres = parts
        job = Job(number, user, "gpu" in gres, state == "COMPLETING")
        why = ""
        if batch == "0":
            why = "it was not submitted with sbatch"
        elif requeue == "0":
            why = "Requeue=0 (sbatch --no-requeue)"
        if why and not job.ending:
            why = f"it cannot be requeued: {why}; pass a longer --drain-timeout, or cancel it: scancel {job.whole}"
            job = replace(job, problem=why)
        found.append(job)
    return sorted(found, key=lambda job: [int(part) for part in re.findall("[0-9]+", job.number)])


def read_nodes(text: str) -> list[SlurmNode]:
    """Read ``sinfo -N`` in our format; a node of several partitions is one row."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) != 7:
            continue
        host, address, name, state, user, since, reason = (part.strip() for part in parts)
        emptied = reason == "none" and since != "Unknown"
        if reason in ("none", ""):
            user = since = reason = ""
        # What Slurm adds to a reason that was emptied.
        reason = reason.removeprefix("none : ").removeprefix(": ")
        found[name] = SlurmNode(host, address, name, state, user, since, reason, emptied)
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


class Slurm(Leased):
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
        self._answered = False
        self._failed = (float("-inf"), ClusterError(""))
        self._say: Say | None = None
        self._nodes: list[SlurmNode] | None = None
        self._gpus: set[str] = set()
        #: Of the machines when the run began, and when slurmctld knew them to have booted as they were held.
        self._boot_ids: dict[str, str] = {}
        self._booted: dict[str, str] = {}
        #: Whether a node was in service, or held by a run of this tool, when this run first held it.
        self._in_service: dict[str, bool] = {}
        super().__init__(LeaseFile(self._answer, self.title), sleep, clock)

    @property
    def title(self) -> str:
        """As messages name it."""
        return f"Slurm at {self._host}"

    @property
    def out_word(self) -> str:
        """A node that takes no new jobs."""
        return "drained"

    def _answer(self, command: str) -> tuple[int, str]:
        """Exit status and output; a host or slurmctld that has answered before may be away for a while."""
        if self._clock() < self._failed[0]:
            raise self._failed[1]
        until = self._clock() + _PATIENCE_S
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
                    f"{self.title}: {_last(output)}",
                    fix="start slurmctld, or name its host in gpustate_slurm_host",
                )
            if not self._answered:
                # The other nodes of the run do not wait for it one after the other.
                self._failed = (self._clock() + _FAILED_S, away)
            if not self._answered or self._clock() >= until:
                raise away
            if self._say is not None and not reported:
                self._say(f"{away.message}; waiting {_PATIENCE_S:g} s at most")
                reported = True
            self._sleep(_POLL_S)

    def _run(self, *words: str) -> str:
        status, output = self._answer(shlex.join(words))
        if status != 0:
            raise ClusterError(
                f"{self.title}: {shlex.join(words)}: {_last(output) or f'exit status {status}'}",
                fix="the commands need root or SlurmUser on that host",
            )
        return output

    def _read(self, name: str = "") -> list[SlurmNode]:
        only = ("-n", name) if name else ()
        return read_nodes(self._run(*_UTC, "sinfo", "-N", "-a", "-h", *only, "-o", _NODES))

    def _one(self, name: str) -> SlurmNode:
        found = self._read(name)
        if not found:
            raise ClusterError(f"{self.title}: node {name} is gone")
        return found[0]

    # --- members -----------------------------------------------------------------------

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every node of every partition; those with GPUs in ``slurm.conf`` count, or all if it has none."""
        with self._lock:
            if self._nodes is None or fresh:
                self._nodes = self._read()
                rows = self._run("sinfo", "-N", "-a", "-h", "-o", _GRES).splitlines()
                self._gpus = {
                    name.strip()
                    for name, _, gres in (row.partition("|") for row in rows)
                    if "gpu" in gres
                }
            gpus = self._gpus
            return [
                replace(_member(node), counts=not gpus or node.name in gpus) for node in self._nodes
            ]

    def held(self) -> frozenset[str]:
        """Names and addresses of the nodes that runs of gpustate hold."""
        self.members()
        nodes = self._nodes or ()
        held = (node for node in nodes if _hold(node) is not None)
        return frozenset(name for node in held for name in (node.name, node.host, node.address))

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The node that has this machine's host name or one of its addresses.

        Raises:
            NotMemberError: none has.
            RefusedError: host name and addresses are of several.
        """
        self.members()
        found = matching(self._nodes or (), facts, self._hosts.get(name, name))
        if not found:
            raise NotMemberError(
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
        name = found[0].name
        self._boot_ids.setdefault(name, facts.boot_id)
        return _member(self._one(name))

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """The jobs that run there; all of them are waited for, whatever the scope."""
        limit_s = policy.jobs_timeout_s
        if not limit_s:
            return [
                Workload(job.name, job.gpu, waited=True, then="without a time limit")
                for job in self._jobs(member.name)
            ]
        return [
            Workload(
                job.name,
                job.gpu,
                job.problem,
                waited=True,
                then=f"{limit_s:g} s at most" if job.problem else f"requeued after {limit_s:g} s",
            )
            for job in self._jobs(member.name)
        ]

    def restarted(self, member: Member) -> Sequence[str]:
        """Nothing."""
        return ()

    def _jobs(self, name: str) -> list[Job]:
        return read_jobs(self._run("squeue", "-h", "-a", "-w", name, "-O", _JOBS))

    # --- hold and release --------------------------------------------------------------

    def enter(self, why: Why, say: Say, stop: Stop) -> None:
        """Take the Lease of the cluster."""
        self._say = say
        self._lease.hold(why, say, stop)

    def hold(self, member: Member, why: Why) -> Member:
        """Drain it with a reason of ours; one that Slurm itself drained keeps Slurm's reason."""
        node = self._one(member.name)
        self._booted.setdefault(node.name, self._boot_time(node.name))
        in_service = node.answers and not node.drained_or_down
        self._in_service.setdefault(node.name, in_service or _hold(node) is not None)
        if foreign := _elsewhere(node):
            raise HeldElsewhereError(
                f"{self.title}: node {node.name} is out of service: {foreign}",
                fix="run again when that is over; --ignore-scheduler changes it all the same",
            )
        if node.drained_or_down and node.by_slurm:
            return _member(node)
        return self._set(node.name, why.run, why.text, why.person, "held")

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase in the reason."""
        node = self._one(member.name)
        hold = _hold(node)
        if hold is None or hold.phase == phase:
            return _member(node)
        if other := taken_over(member, hold):
            raise HeldElsewhereError(f"{self.title}: node {node.name}: {other}")
        text = why or hold.text
        return self._set(node.name, hold.run, text, hold.person, phase)

    def _set(self, name: str, run: str, text: str, person: str, phase: str) -> Member:
        reason = _reason(run, text, person, phase)
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
        began, limit_s = self._clock(), policy.jobs_timeout_s
        reported: set[str] = set()
        requeued = False
        while jobs := self._jobs(member.name):
            if stop():
                raise NotDrainedError("interrupted while it was drained")
            names = {job.name for job in jobs}
            if names - reported:
                say(f"waiting for {', '.join(sorted(names))}")
                for job in jobs:
                    if limit_s and job.problem and job.name not in reported:
                        say(f"{job.name} is waited for {limit_s:g} s at most: {job.problem}")
                reported |= names
            elapsed = self._clock() - began
            if limit_s and elapsed > limit_s and not requeued:
                self._requeue(member.name, jobs, limit_s, say)
                requeued = True
            elif limit_s and elapsed > limit_s + 120:
                raise NotDrainedError(
                    f"{self.title}: node {member.name} still runs {', '.join(sorted(names))} two minutes after they were requeued"
                )
            self._sleep(_POLL_S)

    def _requeue(self, name: str, jobs: Sequence[Job], limit_s: float, say: Say) -> None:
        """Requeue all jobs, or none where one cannot be requeued; none is added, for the node is held."""
        late = f"{self.title}: node {name} was not drained within {limit_s:g} s"
        stuck = [f"{job.name}: {job.problem}" for job in jobs if job.problem]
        if stuck:
            raise NotDrainedError(f"{late}, and nothing was requeued: {'; '.join(stuck)}")
        refused: dict[str, str] = {}
        for number, user in {job.whole: job.user for job in jobs if not job.ending}.items():
            say(f"requeueing job {number} of {user}")
            status, output = self._answer(shlex.join(("scontrol", "requeue", number)))
            if status != 0:
                refused[number] = " ".join(output.split())[-120:]
        left = [job for job in self._jobs(name) if job.whole in refused and not job.ending]
        if left:
            words = "; ".join(f"{job.name} ({refused[job.whole]})" for job in left)
            raise NotDrainedError(
                f"{late}, and these were not requeued: {words}",
                fix="pass a longer --drain-timeout, or cancel them: scancel JOB",
            )

    def _boot_time(self, name: str) -> str:
        """When a node booted, as slurmctld knows it; empty: it does not."""
        match = _BOOT_TIME.search(self._run("scontrol", "-o", "show", "node", name))
        return match[1] if match else ""

    def refresh(self, member: Member, facts: NodeFacts, say: Say, stop: Stop) -> None:
        """Wait until slurmd has registered with as many GPUs as it has to have, if it did before."""
        if member.hold is None or not member.ready:
            return
        until = self._clock() + _REGISTER_S
        booted = self._boot_ids.get(member.name, facts.boot_id) != facts.boot_id

        def wrong_with(node: SlurmNode) -> str:
            if booted and self._boot_time(node.name) == self._booted.get(node.name):
                return "slurmd has not registered since the boot; look there: journalctl -u slurmd"
            return _unregistered(node)

        node = self._one(member.name)
        while (wrong := wrong_with(node)) and self._clock() < until and not stop():
            self._sleep(_POLL_S)
            node = self._one(member.name)
        if wrong:
            raise NotRefreshedError(f"{self.title}: node {node.name}: {wrong}")

    def release(self, member: Member) -> str:
        """Return it to service, where the reason is still ours, or Slurm's own of this hold and its cause is gone.

        Raises:
            NotRefreshedError: Slurm itself keeps it out of service, and did not before the hold.
        """
        node = self._one(member.name)
        if other := taken_over(member, _hold(node)):
            return other
        in_service = self._in_service.get(node.name, member.hold is not None)
        own = node.ours or (in_service and node.by_registration)
        if not own:
            return self._left(node, in_service=in_service)
        deadline = self._clock() + _REGISTER_S
        node = self._returned(node, deadline)
        while not node.answers and self._clock() < deadline:
            self._sleep(_POLL_S)
            node = self._one(node.name)
        if not node.drained_or_down:
            # Last: a resumed node is down with its reason until slurmd registers.
            for empty in ("", "none"):  # 24.11 does not take an empty reason
                if node.ours or node.reason.startswith(_BY_SLURM):
                    self._run("scontrol", "update", f"NodeName={node.name}", f"Reason={empty}")
                    node = self._one(node.name)
        return self._left(node, in_service=in_service)

    def _returned(self, node: SlurmNode, deadline: float) -> SlurmNode:
        """Undrain or resume it, once slurmd has registered again."""
        while "*" in node.state and node.base.startswith("down") and self._clock() < deadline:
            self._sleep(_POLL_S)  # after a boot
            node = self._one(node.name)
        while node.base.startswith("inval") and self._clock() < deadline:
            self._sleep(_POLL_S)  # slurmd has just been restarted
            node = self._one(node.name)
        if node.drained:
            # Otherwise a run that died in between has left only the reason.
            self._run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
            node = self._one(node.name)
        if node.base.startswith("down") and (node.ours or not node.reason or node.by_registration):
            # UNDRAIN leaves it down; a drained node that booted shows only now that it is.
            self._run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
            node = self._one(node.name)
        return node

    def _left(self, node: SlurmNode, *, in_service: bool) -> str:
        """Why it stays out of service after a release, if it was before the hold; empty: it does not."""
        if not node.drained_or_down:
            return ""
        if node.base.startswith("inval"):
            why = _unregistered(node)
        elif node.ours:
            why = f"it is {node.state}: {node.reason}"
        else:
            why = _stays(node)
        if in_service and not _elsewhere(node):
            raise NotRefreshedError(f"{self.title}: node {node.name}: {why}")
        return why


def _last(output: str) -> str:
    """The end of a command's output, on one line."""
    return " ".join(output.split())[-300:]


def _reason(run: str, text: str, person: str, phase: str) -> str:
    """What stands in a reason of ours."""
    words = re.sub(r" :(?= )", "", text)  # Slurm adds its own words after one
    return f"{PREFIX}{run}: {words} ({phase}) by {person}"


def _hold(node: SlurmNode) -> Hold | None:
    if not node.ours:
        return None
    match = _REASON.fullmatch(node.reason)
    if match is None:
        return Hold("", node.user, node.reason, "held", node.since)
    person, phase = match["person"] or node.user, match["phase"] or "held"
    return Hold(match["run"], person, match["text"], phase, node.since)


def _stays(node: SlurmNode) -> str:
    """Why it stays out of service."""
    if not node.by_slurm:
        return _elsewhere(node) or _foreign(node)
    hidden = f"{node.state}: Slurm itself did, over an emptied reason; slurmctld's log has its own"
    return f"{_foreign(node) if node.reason else hidden}; once its cause is gone: {_resume(node)}"


def _resume(node: SlurmNode) -> str:
    """The command that returns it to service."""
    return f"scontrol update NodeName={node.name} State=RESUME"


def _foreign(node: SlurmNode) -> str:
    by = f" by {node.user} since {node.since}" if node.reason else ""
    return f"{node.state.replace('$', '')}{by}: {node.reason or 'no reason given'}"


def _unregistered(node: SlurmNode) -> str:
    """Why slurmctld does not take a node as it is; empty: it does."""
    if node.base.startswith("inval"):
        return (
            "slurmd registered with fewer GPUs than slurm.conf has; fix gres.conf or slurm.conf and restart "
            f"slurmd, then: scontrol update NodeName={node.name} State=RESUME"
        )
    if "*" in node.state:
        return (
            f"it is {node.state}: slurmd has not registered since; look there: journalctl -u slurmd"
        )
    return ""


def _elsewhere(node: SlurmNode) -> str:
    """Who else took it out of service; empty: nobody did."""
    drained = node.drained_or_down and not node.base.startswith("maint")
    by_someone = _foreign(node) if drained and not node.ours and not node.by_slurm else ""
    if node.in_maintenance:
        words = "reserved for maintenance"
        return f"{words}; {by_someone}" if by_someone and node.reason else words
    return by_someone


def _undo(node: SlurmNode) -> str:
    """The command that ends what someone else did."""
    return "scontrol show reservation" if node.in_maintenance else _resume(node)


def _member(node: SlurmNode) -> Member:
    foreign = _elsewhere(node)
    out = node.drained_or_down or node.in_maintenance
    return Member(
        node.name,
        ready=node.answers,
        schedulable=not out,
        hold=_hold(node),
        foreign=(foreign,) if foreign else (),
        undo=_undo(node) if foreign else "",
        why="" if foreign else _by_slurm(node),
    )


def _by_slurm(node: SlurmNode) -> str:
    """What Slurm itself has against it, and what to do; empty: nothing."""
    if wrong := _unregistered(node):
        known = f"{_foreign(node)}; {wrong.removeprefix(f'it is {node.state}: ')}"
        return known if node.by_slurm and node.reason else wrong
    return _stays(node) if node.by_slurm and node.drained_or_down else ""
