"""The rows that sinfo prints: which machine a node is, who took it out of service, and the reason of our hold.

Surprising: ``resume`` of 24.11 keeps an old reason, which then hides newer ones, so it is emptied after a release.
26.05 adds `` : Not responding`` to a reason, and refuses to undrain a node that registered with too few GPUs.

``sinfo`` with a format of its own instead of JSON: scontrol of 22.05 has no JSON, and its sinfo ignores ``-n`` with it.

Sources:
    SchedMD/slurm, doc/man/man1/{scontrol,sinfo}.1; Debian's 22.05.8, 24.11.5 and 26.05.5 as they behave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from gpustate.core.facts import NodeFacts
from gpustate.schedulers.base import Hold, Member

#: What a reason of ours begins with; a run's id follows.
PREFIX = "gpustate:"
_REASON = re.compile(
    r"gpustate:(?P<run>[^:\s]+): (?P<text>.*?)(?: \((?P<phase>\w+)\))?(?: by (?P<person>\S+))?(?: : .*)?"
)
NODES = "%n|%o|%N|%T|%u|%H|%E"
#: What Slurm itself writes as a reason when a node does not fit its configuration or does not answer.
BY_SLURM = (
    *("gres/", "Low ", "Not responding", "Node unexpectedly rebooted"),
    *("Node Not Responding", "Prolog error", "Epilog error", "Kill task failed"),
    "Invalid registration",
)
#: Those whose cause is gone once slurmd has registered right.
_BY_REGISTRATION = re.compile(
    r"gres/\S+ count |Low (?:socket|CPUs|RealMemory|TmpDisk)|Invalid registration|Node unexpectedly rebooted|"
    r"(?:Node )?Not [Rr]esponding"
)


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
    def is_own(self) -> bool:
        """The reason is of this tool."""
        return self.reason.startswith(PREFIX)

    @property
    def by_slurm(self) -> bool:
        """Slurm itself took it out of service, for what it saw of the node."""
        # An older reason stays, and may be an emptied one; whoever drains a node has to give one.
        hidden = self.base.startswith("inval") or (self.drained and self.emptied)
        return self.reason.startswith(BY_SLURM) or (hidden and not self.reason)

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

    @property
    def hold(self) -> Hold | None:
        """The hold that its reason records; ``None``: there is none of ours."""
        if not self.is_own:
            return None
        match = _REASON.fullmatch(self.reason)
        if match is None:
            return Hold("", self.user, self.reason, "held", self.since)
        person, phase = match["person"] or self.user, match["phase"] or "held"
        return Hold(match["run"], person, match["text"], phase, self.since)

    @property
    def stays(self) -> str:
        """Why it stays out of service."""
        if not self.by_slurm:
            return f"{self.elsewhere or self.description}; once that is over: {self.undo}"
        hidden = (
            f"{self.state}: Slurm itself did, over an emptied reason; slurmctld's log has its own"
        )
        return (
            f"{self.description if self.reason else hidden}; once its cause is gone: {self.resume}"
        )

    @property
    def resume(self) -> str:
        """The command that returns it to service."""
        return f"scontrol update NodeName={self.name} State=RESUME"

    @property
    def description(self) -> str:
        """Its state, with who set it, since when and why."""
        by = f" by {self.user} since {self.since}" if self.reason else ""
        return f"{self.state.replace('$', '')}{by}: {self.reason or 'no reason given'}"

    @property
    def unregistered(self) -> str:
        """Why slurmctld does not take a node as it is; empty: it does."""
        if self.base.startswith("inval"):
            return (
                "slurmd registered with fewer GPUs than slurm.conf has; fix gres.conf or slurm.conf and restart "
                f"slurmd, then: scontrol update NodeName={self.name} State=RESUME"
            )
        if "*" in self.state:
            return f"it is {self.state}: slurmd has not registered since; look there: journalctl -u slurmd"
        return ""

    @property
    def elsewhere(self) -> str:
        """Who else took it out of service; empty: nobody did."""
        drained = self.drained_or_down and not self.base.startswith("maint")
        by_someone = self.description if drained and not self.is_own and not self.by_slurm else ""
        if self.in_maintenance:
            words = "reserved for maintenance"
            return f"{words}; {by_someone}" if by_someone and self.reason else words
        return by_someone

    @property
    def undo(self) -> str:
        """The command that ends what someone else did."""
        return "scontrol show reservation" if self.in_maintenance else self.resume

    def as_member(self) -> Member:
        """The node as a member."""
        foreign = self.elsewhere
        out = self.drained_or_down or self.in_maintenance
        return Member(
            self.name,
            ready=self.answers,
            schedulable=not out,
            hold=self.hold,
            foreign=(foreign,) if foreign else (),
            undo=self.undo if foreign else "",
            why="" if foreign else self.held_by_slurm,
        )

    @property
    def held_by_slurm(self) -> str:
        """What Slurm itself has against it, and what to do; empty: nothing."""
        if wrong := self.unregistered:
            details = f"{self.description}; {wrong.removeprefix(f'it is {self.state}: ')}"
            return details if self.by_slurm and self.reason else wrong
        return self.stays if self.by_slurm and self.drained_or_down else ""


def reason_of(run: str, text: str, person: str, phase: str) -> str:
    """What stands in a reason of ours."""
    words = re.sub(r" :(?= )", "", text)  # Slurm adds its own words after one
    return f"{PREFIX}{run}: {words} ({phase}) by {person}"


def read_nodes(text: str) -> list[SlurmNode]:
    """Read ``sinfo -N`` in our format; a node of several partitions is one row."""
    nodes: dict[str, SlurmNode] = {}
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
        nodes[name] = SlurmNode(host, address, name, state, user, since, reason, emptied)
    return list(nodes.values())


def matching(nodes: Iterable[SlurmNode], facts: NodeFacts, reached: str) -> list[SlurmNode]:
    """The nodes that may be a machine.

    Args:
        nodes: of the cluster.
        facts: of the machine.
        reached: name or address by which the inventory reaches it. A loopback one is a tunnel's.
    """
    names = [*filter(None, (facts.hostname, reached, *facts.addresses))]
    return [
        node
        for node in nodes
        if _is_same(node.host, facts.hostname)
        or any(_is_same(node.address, name) for name in names)
    ]


def _is_same(name: str, other_name: str) -> bool:
    """Whether two texts are one address, or one host's name, with or without its domain."""
    if not name or not other_name:
        return False
    first, second = _address(name), _address(other_name)
    if first is not None or second is not None:
        return first is not None and first == second and not first.is_loopback
    names = [text.lower().rstrip(".") for text in (name, other_name)]
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
