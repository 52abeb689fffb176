"""What a scheduler is to a run: who its members are, what runs there, hold, drain, release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpustate import clock
from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.core.facts import NodeFacts
from gpustate.errors import ClusterError, RefusedError

#: A line of progress.
Emit = Callable[[str], None]
Stop = Callable[[], bool]
#: Seconds after which it is repeated what is waited for.
_REMIND_S = 30.0


def discard(_: str) -> None:
    """Nobody listens."""


def never() -> bool:
    """Nothing stops the run."""
    return False


class NotDrainedError(RefusedError):
    """A member could not be drained, so nothing was changed on it."""


class NotAllowedError(ClusterError, RefusedError):
    """The user may not do what a change needs; nothing was written yet."""


class NotRefreshedError(ClusterError):
    """A member was changed, and is not ready or does not offer its GPUs to workloads."""


class HeldElsewhereError(RefusedError):
    """Someone else took the member out of service; it is left alone."""


class NotMemberError(RefusedError):
    """No member of the cluster is this machine."""


class Scope(Enum):
    """Which workloads have to leave before a change."""

    GPU = "gpu"  # those that use a GPU: the driver is reloaded or a GPU reset
    ALL = "all"  # all of them: the machine reboots


@dataclass(frozen=True, slots=True)
class Why:
    """Why a member is held, for whoever looks at it.

    Args:
        run: id of the run.
        person: user@host.
        text: what is done, in a few words.
    """

    run: str
    person: str
    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold that this tool made.

    Args:
        run: id of the run that made it.
        person: who ran it.
        text: why.
        phase: ``held``, ``drained``, ``changing``, ``validating``,
            ``failed``, or ``left``: the node changed well and could not be released.
        since: time of the phase, in UTC.
        schedulable_before: new work was allowed before the hold.
        gpus_before: GPUs and MIG devices that it offered before the hold.
        ready_before: it was ready before the hold.
    """

    run: str
    person: str
    text: str
    phase: str
    since: str
    schedulable_before: bool = True
    gpus_before: int = 0
    ready_before: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """A node as its scheduler knows it.

    Args:
        name: the scheduler's name of it.
        ready: it takes work, as far as the scheduler can tell.
        schedulable: new work may be placed there.
        hold: this tool's hold; ``None``: there is none.
        foreign: who else took it out of service, and how; empty: nobody.
        foreign_since: when someone else took it out of service, as far as the scheduler tells, where ``foreign`` does not.
        not_ready_since: when it stopped being ready, as far as the scheduler tells, where ``why`` does not.
        undo: the command that returns it to service once whoever took it out is done; empty: none is known.
        why: for what the scheduler itself takes it out of service, and what to do; empty: it does not.
        gpus: GPUs and MIG devices that it offers to workloads, as far as the scheduler tells.
        counts: it has GPUs, so it counts when members out of service are counted.
        spared: UIDs of its pods whose GPUs a change leaves alone.
    """

    name: str
    ready: bool
    schedulable: bool
    hold: Hold | None = None
    foreign: tuple[str, ...] = ()
    foreign_since: str = ""
    not_ready_since: str = ""
    undo: str = ""
    why: str = ""
    gpus: int = 0
    counts: bool = True
    spared: frozenset[str] = frozenset()

    @property
    def available(self) -> bool:
        """It counts as in service."""
        return self.ready and self.schedulable


def taken_over(member: Member, hold: Hold | None) -> str:
    """Which other run holds a member that this one held; empty: none does.

    Args:
        member: as it was when this run held it.
        hold: as it is now.
    """
    was = member.hold
    if was is None or hold is None or was.run == hold.run:
        return ""
    return f"run {hold.run} of {hold.person} has taken it over"


#: How the reason of a run begins that a person has stopped while it waited.
WHILE = "interrupted while"


def refuse_stopped(stop: Stop, doing: str = "it was drained") -> None:
    """Stop waiting where the run is to stop.

    Raises:
        NotDrainedError: it is.
    """
    if stop():
        raise NotDrainedError(f"{WHILE} {doing}")


@dataclass(slots=True)
class Waiting:
    """Tells what is waited for: at once, and again every half minute, with since when.

    Args:
        emit: tells it.
        monotonic: seconds, monotonic.
        condition: is waited for.
    """

    emit: Emit
    monotonic: Callable[[], float]
    condition: str
    _since: str = ""
    _told_at: float = 0.0

    def report(self, why: str) -> None:
        """It is not there yet, and why."""
        now_s = self.monotonic()
        if self._since and now_s - self._told_at < _REMIND_S:
            return
        still, since = ("still ", f" since {self._since}") if self._since else ("", "")
        self.emit(f"{still}waiting for {self.condition}{since}: {why}")
        self._since, self._told_at = self._since or clock.now(), now_s


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that runs on a member and has to leave.

    Args:
        name: ``namespace/pod``, or a job.
        gpu: it uses a GPU.
        problem: why it cannot leave by itself; empty where it can.
        waited: it is waited for before anything is evicted.
        limit: what is done with it after how long, if it is waited for; empty: by the policy.
        lost: nothing creates it again once it has left.
    """

    name: str
    gpu: bool
    problem: str = ""
    waited: bool = False
    limit: str = ""
    lost: bool = False


def rules_of(policy: DrainPolicy, scope: Scope) -> EvictionRules:
    """How the workloads of a scope leave."""
    return policy.gpu_pods if scope is Scope.GPU else policy.node


class Scheduler(Protocol):
    """One cluster's scheduler."""

    @property
    def title(self) -> str:
        """As messages name it: ``Kubernetes at https://...``."""
        ...

    @property
    def out_word(self) -> str:
        """What a member is that it keeps new work away from: ``cordoned``."""
        ...

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every node it knows, as this run has listed them, or as they are now."""
        ...

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The member that is this machine, as it is now.

        Raises:
            NotMemberError: there is none.
            RefusedError: more than one may be it.
        """
        ...

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """What would have to leave."""
        ...

    def restarted(self, member: Member) -> Sequence[str]:
        """What :meth:`refresh` restarts there."""
        ...

    def take_lease(self, why: Why, emit: Emit, stop: Stop) -> None:
        """Be the only run that takes its members out of service, from now on until :meth:`drop_lease`.

        Raises:
            LockHeld: another run is.
            ClusterError: rights are missing, or the cluster does not answer.
        """

    def drop_lease(self) -> None:
        """Let other runs."""

    def hold(self, member: Member, why: Why) -> Member:
        """Keep new work away, and remember how it was before.

        Raises:
            HeldElsewhereError: someone else did already.
        """
        ...

    def note(self, member: Member, phase: str, why: str = "") -> Member:
        """Record the phase of a member that is held; as it is now.

        Args:
            member: as it was when it was held.
            phase: of it.
            why: it is in it; empty: for the reason of the hold.

        Raises:
            HeldElsewhereError: another run holds it now.
        """
        ...

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
    ) -> None:
        """Make the workloads leave, or wait for them.

        Raises:
            NotDrainedError: they did not.
        """

    def refresh(self, member: Member, facts: NodeFacts, emit: Emit, stop: Stop) -> str:
        """Restart what still uses the old driver, and wait until the member is ready and offers GPUs again.

        What a person should know of GPUs that nothing offers any more is returned; they are not waited for.

        After a boot, what the scheduler knows of it is old until its agent has reported.

        Args:
            member: as it was when it was held.
            facts: the machine as it is now.
            emit: tells what is done.
            stop: asked while it waits.

        Raises:
            NotRefreshedError: it is not, and was before.
        """
        ...

    def release(self, member: Member, emit: Emit = discard, stop: Stop = never) -> str:
        """Undo this tool's own hold, and nothing else; why it stays out of service, empty where it does not.

        Args:
            member: as it was when it was held.
            emit: tells what is waited for.
            stop: asked while it waits.

        Raises:
            NotRefreshedError: the scheduler itself keeps it out of service, and did not before the hold; or the run
                is to stop.
        """
        ...
