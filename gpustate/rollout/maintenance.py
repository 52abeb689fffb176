"""Take a node out of service before a disruptive change, and back when it ended well.

A change that costs ``drain`` or more is refused on a node that has a kubelet or slurmd whose scheduler cannot be
reached, for its workloads would be hit without a warning. One that does not run counts, too: what it started goes on
without it. With access the node is held, drained as far as the change
needs it, changed, validated and released. A node whose change failed stays held, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpustate.core.change import Disruption
from gpustate.core.drain import DrainPolicy
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import DELETED, RESTARTED
from gpustate.engine.maintenance import STAYS_OUT, Preview, Subject
from gpustate.errors import ClusterError, GpustateError, LockHeld, RefusedError, UnreleasedError
from gpustate.formats.masking import mask
from gpustate.formats.node_programs import AGENTS
from gpustate.formats.words import shorten
from gpustate.rollout.access import Accesses
from gpustate.rollout.by_label import MigNode
from gpustate.rollout.signals import Signals
from gpustate.rollout.slots import Slots
from gpustate.rollout.status import Status
from gpustate.schedulers.base import (
    Emit,
    HeldElsewhereError,
    Member,
    NotDrainedError,
    NotMemberError,
    NotRefreshedError,
    Scheduler,
    Scope,
    Stop,
    Why,
    Workload,
    never,
)
from gpustate.schedulers.mig_state import CONFIG, is_ours

if TYPE_CHECKING:
    from gpustate.schedulers.kubernetes import Kubernetes
    from gpustate.schedulers.slurm import Slurm

KUBERNETES = "Kubernetes"
#: How a scheduler is named in an inventory and on the command line.
_ACCESS = {
    KUBERNETES: "name its kubeconfig with --kubeconfig FILE or the variable gpustate_kubeconfig",
    "Slurm": "name the host with scontrol in the variable gpustate_slurm_host",
}
#: Why Nodes are held while what offers their GPUs goes, and after that in a removal: nothing restarts it.
WITHDRAWS = "removes what offers its GPUs"
#: Of a reason that a scheduler keeps.
_MOST_CHARS = 1000
#: The scheduler of a node by its kind; ``None``: there is no access to it.
Access = Callable[[InventoryNode, str], Scheduler | None]


def scope_of(worst: Disruption) -> Scope | None:
    """The workloads that have to leave; ``None``: all may stay."""
    if worst >= Disruption.REBOOT:
        return Scope.ALL
    return Scope.GPU if worst >= Disruption.DRAIN else None


def kinds_of(facts: NodeFacts) -> tuple[str, ...]:
    """The schedulers that place work on a node, by what runs there."""
    return _kinds(facts.agents)


def _kinds_to_ask(facts: NodeFacts) -> tuple[str, ...]:
    """All kinds of schedulers, those first whose programs run on a node."""
    return tuple(dict.fromkeys((*kinds_of(facts), *AGENTS.values())))


def _kinds(agents: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(AGENTS[agent] for agent in agents if agent in AGENTS))


@dataclass(slots=True)
class _Held:
    """What was held for one node, in order, and the slots that it has."""

    slots: list[tuple[Scheduler, Member]] = field(default_factory=list[tuple[Scheduler, Member]])
    holds: list[tuple[Scheduler, Member]] = field(default_factory=list[tuple[Scheduler, Member]])


class ScheduledMaintenance:
    """Maintenance by the schedulers of the nodes.

    Args:
        access: gives a node's scheduler.
        run: id of the run.
        person: who runs it, user@host.
        policy: how workloads leave.
        text: the ticket or reason; empty: the states that change.
        max_unavailable: members of one cluster that may be out of service at a time, a number or a percentage;
            empty: no limit.
        signals: shared with the rollout.
        mig: Nodes whose MIG layout their label selects, by node.
        policies: how workloads leave, by node, where not by ``policy``.
        withdraws: what offers the GPUs of a Node goes in its turn, so every Node that changes is held.
    """

    def __init__(
        self,
        access: Access,
        run: str,
        person: str,
        policy: DrainPolicy,
        text: str = "",
        max_unavailable: str = "",
        signals: Signals | None = None,
        mig: Mapping[str, MigNode] | None = None,
        policies: Mapping[str, DrainPolicy] | None = None,
        *,
        withdraws: bool = False,
    ) -> None:
        self._withdraws = withdraws
        self._mig = mig or {}
        self._signals = signals or Signals()
        self._slots = Slots(max_unavailable, signals=self._signals, run=run)
        self._access = access
        self._run = run
        self._person = person
        self._policy = policy
        self._policies = policies or {}
        self._text = text
        self._held: dict[str, _Held] = {}
        self._away: set[str] = set()
        self._lock = threading.Lock()

    # --- the rollout -------------------------------------------------------------------

    def labels(self, key: str) -> Mapping[str, str]:
        """Values of a label of the nodes' Node objects, by node."""
        return self._access.labels(key) if isinstance(self._access, Accesses) else {}

    def held(self) -> frozenset[str]:
        """Nodes that runs of gpustate hold; none where a scheduler does not answer, which their change will report."""
        if isinstance(self._access, Accesses):
            with suppress(GpustateError):
                return self._access.held()
        return frozenset()

    def left_held(self, names: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
        """Nodes, by name and address, that a run still holds, each with what stays out of service, and what ends that."""
        clusters: list[Kubernetes | Slurm] = []
        with suppress(GpustateError):  # what cannot be used was entered by no node
            clusters += self._access.leased() if isinstance(self._access, Accesses) else ()
        for cluster in clusters:
            try:
                members = {member.name: member for member in cluster.members(fresh=True)}
            except GpustateError as error:
                words = f"{cluster.title}: whether it {STAYS_OUT} is not known: {error}"
                yield from ((name, words) for name in names if cluster in self._signals.entered)
                continue
            for name, host in names.items():
                member = members.get(name) or members.get(host or "")
                if member is not None and member.hold is not None:
                    held = f"run {member.hold.run} holds it since {member.hold.since} ({member.hold.phase})"
                    step = Status(cluster.title, member).next
                    yield name, _stays_out(cluster, member, "; ".join(filter(None, (held, step))))

    def enter(self, emit: Emit, stop: Stop) -> None:
        """Be the only run that takes nodes of these clusters out of service, before the first node is.

        Raises:
            LockHeld: another run is.
            RefusedError: rights are missing, or a cluster does not answer.
        """
        if not isinstance(self._access, Accesses):
            return
        why = Why(self._run, self._person, self._text or "a rollout")
        for cluster in self._access.leased():
            self._enter(cluster, why, emit, stop)

    def _enter(self, scheduler: Scheduler, why: Why, emit: Emit, stop: Stop) -> None:
        with self._refusing(scheduler):
            scheduler.take_lease(why, emit, stop)
        self._signals.enter(scheduler)

    @contextmanager
    def _refusing(self, scheduler: Scheduler | None = None) -> Iterator[None]:
        """An error of a cluster that this run has not entered is a refusal: it has held and changed nothing there."""
        try:
            yield
        except (RefusedError, LockHeld):
            raise
        except GpustateError as error:
            if scheduler in self._signals.entered:
                raise
            raise RefusedError(error.message, place=error.place, fix=error.fix) from error

    # --- plan --------------------------------------------------------------------------

    def preview(self, subject: Subject) -> Preview:
        """What an apply would do with its workloads."""
        scope = scope_of(subject.worst)
        if scope is None:
            return Preview()
        notes: list[str] = []
        leaving: list[tuple[str, str]] = []
        refusals: list[str] = []
        for kind in _kinds_to_ask(subject.facts):
            try:
                own_member = self._member(subject, kind)
                if own_member is None:
                    continue
                workloads, stuck = self._preview_of(*own_member, subject, scope)
            except GpustateError as error:
                refusals.append(str(error))
            else:
                scheduler, member = own_member
                notes.append(
                    f"{scheduler.title}: the node is {scheduler.out_word} before the change, and returned "
                    "to service once the change has succeeded"
                )
                leaving += workloads
                leaving += ((name, RESTARTED) for name in scheduler.restarted(member))
                refusals += stuck
        refused = (f"apply would refuse: {reason}" for reason in refusals)
        return Preview((*notes, *refused), refused=bool(refusals), workloads=tuple(leaving))

    def _member(self, subject: Subject, kind: str) -> tuple[Scheduler, Member] | None:
        """Its scheduler of a kind, and what it is there; ``None``: it is in none.

        Raises:
            RefusedError: there may be one, and no access to it, or no member of it is surely this node.
            ClusterError: it cannot be asked any more.
        """
        with self._refusing():
            scheduler = self._access(subject.node, kind)
        if scheduler is None:
            if kind in _kinds((*subject.facts.agents, *subject.facts.joined)):
                raise RefusedError(self._no_access(subject, kind))
            return None
        try:
            with self._refusing(scheduler):
                member = scheduler.member(subject.facts, subject.node.name)
                return scheduler, replace(member, spared=subject.spared)
        except NotMemberError:
            if kind in kinds_of(subject.facts):
                raise
            return None

    def _preview_of(
        self, scheduler: Scheduler, member: Member, subject: Subject, scope: Scope
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """What becomes of its workloads, and those that keep it from being drained."""
        if member.foreign:
            raise HeldElsewhereError(
                f"{scheduler.title}: {member.name} is out of service: {'; '.join(member.foreign)}"
            )
        policy = self._policies.get(subject.node.name, self._policy)
        workloads = scheduler.workloads(member, scope, policy)
        leaving = [
            (workload.name, how_it_leaves(workload, policy))
            for workload in workloads
            if workload.waited or not workload.problem
        ]
        stuck = [
            f"{scheduler.title}: {member.name} cannot be drained: {workload.name}: {workload.problem}"
            for workload in workloads
            if workload.problem and not workload.waited
        ]
        return leaving, stuck

    def _no_access(self, subject: Subject, kind: str) -> str:
        facts = subject.facts
        agent = next(name for name in (*facts.agents, *facts.joined) if AGENTS.get(name) == kind)
        verb = "runs" if agent in facts.agents else "is enabled"
        return (
            f"{agent} {verb} on this node and the change may cost {subject.worst.word} "
            f"({', '.join(subject.states())}), without access to {kind}; {_ACCESS[kind]}, "
            "or pass --ignore-scheduler"
        )

    # --- apply -------------------------------------------------------------------------

    def begin(self, subject: Subject, emit: Emit, stop: Stop) -> None:
        """Hold it and make its workloads leave."""
        scope = scope_of(subject.worst)
        mig = self._changing_layout(subject)
        if mig is not None:
            emit(f"{mig.name}: label {CONFIG}{f'={mig.config}' if mig.config else ' is absent'}")
            mig.cluster.mig.begin(mig.name, self._run)
            mig.open = True
        kinds = self._kinds_to_hold(subject, scope)
        if not kinds:
            self._pause_for_mig(subject, mig, emit, stop)
            return
        members = [self._member(subject, kind) for kind in kinds]
        held, name = _Held(), subject.node.name
        with self._lock:
            # What an earlier change of this run left held; this one is its rollback.
            failed = bool(self._held.get(name, held).holds)
            self._held[name] = held
        why = Why(self._run, self._person, self._text or f"changes {', '.join(subject.states())}")

        def stopping() -> bool:
            return stop() or self._signals.aborted

        try:
            for scheduler, member in filter(None, members):
                failed = failed or (member.hold is not None and member.hold.phase == "failed")
                self._enter(scheduler, why, emit, stopping)
                goes_back = subject.node.goes_back
                self._slots.take(
                    scheduler, member, name, emit, stopping, failed=failed, back=goes_back
                )
                held.slots.append((scheduler, member))
                member = replace(scheduler.hold(member, why), spared=subject.spared)
                held.holds.append((scheduler, member))
                emit(f"holding {member.name} in {scheduler.title}")
                self._signals.note(name, "held", f"{member.name} in {scheduler.title}")
            for scheduler, member in held.holds:
                if scope is None:
                    continue
                policy = self._policies.get(name, self._policy)
                scheduler.drain(member, scope, policy, emit, stopping)
                scheduler.note(member, "drained")
                self._signals.note(name, "drained", f"{member.name} in {scheduler.title}")
            for scheduler, member in held.holds:
                noted = scheduler.note(member, "changing")
                if member.hold is not None and (noted.hold is None or noted.schedulable):
                    raise HeldElsewhereError(
                        f"{scheduler.title}: {member.name} was returned to service by someone else"
                    )
                if noted.foreign and scope is not None:  # for a moment it may have been in service
                    policy = self._policies.get(name, self._policy)
                    scheduler.drain(member, scope, policy, emit, stopping)
            self._pause_for_mig(subject, mig, emit, stopping)
        except Exception as exception:  # noqa: BLE001  whatever it is, what was held is released or named
            error = _as_error(exception)
            if self._signals.aborted and not stop():
                error.message = error.message.replace(
                    "interrupted", self._signals.stopped or "aborted", 1
                )
            if failed:  # an earlier change is still why it is out of service
                notes = self._keep_out(subject, recorded=str(error))
            else:  # nothing was changed yet, so there is no reason to keep it out of service
                titles = {scheduler.title for scheduler, _ in held.holds}
                released, stuck = self._release(subject, emit, stop)
                earlier = (
                    _stays_out(scheduler, member, "")
                    for scheduler, member in filter(None, members)
                    if member.hold is not None and scheduler.title not in titles
                )
                notes = (*released, *stuck, *earlier)
            error.message = "; ".join((error.message, *notes))
            raise error from exception.__cause__

    def _kinds_to_hold(self, subject: Subject, scope: Scope | None) -> tuple[str, ...]:
        """The schedulers in which a node is held for a change; none: it stays in service."""
        if scope is not None:
            return _kinds_to_ask(subject.facts)
        withdrawn = self._withdraws and self._access(subject.node, KUBERNETES) is not None
        return (KUBERNETES,) if withdrawn else ()

    def end(self, subject: Subject, failed: str, emit: Emit, stop: Stop = never) -> tuple[str, ...]:
        """Release it, or leave it held with the reason."""
        paused = self._resume_after_mig(subject)
        if failed:
            return (*self._keep_out(subject, failed), *paused)
        try:
            if paused:
                raise ClusterError("; ".join(paused), fix="run gpustate apply again")
            refreshed = self._refresh(subject, emit, stop)
        except Exception as exception:
            error = _as_error(exception)
            phase = "validating" if stop() else "failed"
            notes = self._keep_out(subject, recorded=str(error), phase=phase)
            wrong = isinstance(error, NotRefreshedError)
            kind = NotRefreshedError if wrong else UnreleasedError
            raise kind("; ".join((str(error), *notes))) from exception
        notes, stuck = self._release(subject, emit, stop)
        if stuck:
            wrong = any("was not released" not in text for text in stuck)
            raise (ClusterError if wrong else UnreleasedError)("; ".join((*stuck, *notes)))
        members = {note.partition(STAYS_OUT)[0] for note in notes}
        stale = self._leftovers(subject, emit, stop)
        more = (text for text in stale if text.partition(STAYS_OUT)[0] not in members)
        return (*refreshed, *notes, *more)

    def rebooting(self, subject: Subject) -> None:
        """Record on the Node that it reboots for its MIG layout; the result does not depend on it."""
        mig = self._mig.get(subject.node.name)
        if mig is not None and mig.open:
            with suppress(GpustateError):
                mig.cluster.mig.rebooting(mig.name)

    def _changing_layout(self, subject: Subject) -> MigNode | None:
        """The Node whose label selects the MIG layout that is about to change; ``None``: there is none.

        Raises:
            RefusedError: the Node of this name is another machine, or the cluster cannot be asked.
        """
        mig = self._mig.get(subject.node.name)
        if mig is None or "mig" not in subject.pending:
            return None
        with self._refusing(mig.cluster):
            member = mig.cluster.member(subject.facts, subject.node.name)
        if member.name != mig.name:
            raise RefusedError(
                f"{subject.node.name} is Node {member.name}, and by its name or address Node {mig.name}",
                fix="name it in the inventory as its Node is named",
            )
        return mig

    def _pause_for_mig(self, subject: Subject, mig: MigNode | None, emit: Emit, stop: Stop) -> None:
        """Keep programs that have GPUs open away from the Node, and wait until they have left."""
        if mig is None:
            return
        try:
            mig.cluster.mig.nvidia_pods.pause(mig.name, emit, stop)
        except GpustateError:
            self._resume_after_mig(subject)
            raise

    def _resume_after_mig(self, subject: Subject) -> tuple[str, ...]:
        """Let them run again; what went wrong."""
        mig = self._mig.get(subject.node.name)
        if mig is None or not mig.open:
            return ()
        try:
            mig.cluster.mig.nvidia_pods.resume(mig.name, is_ours)
        except GpustateError as error:
            return (f"programs that use GPUs are still kept off Node {mig.name}: {error}",)
        return ()

    def _refresh(self, subject: Subject, emit: Emit, stop: Stop) -> tuple[str, ...]:
        """Let it offer its GPUs again; what others did to it meanwhile."""
        notes: list[str] = []
        with self._lock:
            holds = list(self._held.get(subject.node.name, _Held()).holds)
        for scheduler, member in holds:
            try:
                noted = scheduler.note(member, "validating")
            except HeldElsewhereError:  # the release reports who has it
                continue
            self._signals.note(
                subject.node.name, "validating", f"{member.name} in {scheduler.title}"
            )
            if member.hold is not None and (noted.hold is None or noted.schedulable):
                notes.append(
                    f"{scheduler.title}: {member.name} was returned to service by someone else during the change; "
                    "restart workloads that have begun on it since"
                )
            # Otherwise there is nothing that could offer GPUs.
            offers = noted.hold is None or noted.hold.text != WITHDRAWS
            if offers and not subject.facts.without_driver:
                subject.before_return()
                notes.append(scheduler.refresh(member, subject.facts, emit, stop))
        if not holds and "mig" in subject.pending:
            notes += self._refresh_in_service(subject, emit, stop)
        return tuple(filter(None, notes))

    def _refresh_in_service(self, subject: Subject, emit: Emit, stop: Stop) -> Iterator[str]:
        """Let a Node that needed no hold offer its MIG devices; why it does not."""
        for kind in kinds_of(subject.facts):
            try:
                member = self._member(subject, kind)
            except GpustateError as error:
                yield f"NVIDIA's pods on the node may offer the MIG devices from before until they are restarted: {error}"
                continue
            if member is not None:
                yield member[0].refresh(member[1], subject.facts, emit, stop)

    def _keep_out(
        self, subject: Subject, failed: str = "", *, recorded: str = "", phase: str = "failed"
    ) -> tuple[str, ...]:
        """Record that it stays out of service; notes of that, with why. It is still this run's to release.

        Args:
            subject: the node.
            failed: why, for the notes and the record.
            recorded: why, for the record alone.
            phase: of the record.
        """
        with self._lock:
            held = self._held.get(subject.node.name, _Held())
        notes: list[str] = []
        for scheduler, member in held.holds:
            notes.append(_stays_out(scheduler, member, failed))
            try:
                scheduler.note(member, phase, _brief(recorded or failed))
            except GpustateError as error:
                notes.append(str(error))
        self._give(held)
        return tuple(notes)

    def _leftovers(self, subject: Subject, emit: Emit, stop: Stop) -> tuple[str, ...]:
        """Release what an earlier run left held, now that the node is as it should be.

        The earlier run may have died before it restarted what used the old driver, so that is done first. Its
        kubelet or slurmd may not have started yet after a boot, so every scheduler that is named counts.
        """
        notes: list[str] = []
        running = kinds_of(subject.facts)
        for kind in _kinds_to_ask(subject.facts):
            if kind in self._away and kind not in running:
                continue
            try:
                reason = self._leftover(subject, kind, emit, stop)
            except NotRefreshedError:
                raise
            except GpustateError as error:
                if kind in running:
                    notes.append(str(error))
                elif not isinstance(error, RefusedError):
                    self._away.add(kind)  # its other nodes do not wait for it
                continue
            if reason:
                notes.append(reason)
        return tuple(notes)

    def _leftover(self, subject: Subject, kind: str, emit: Emit, stop: Stop) -> str:
        """Release it in one scheduler; why it stays out of service, empty where it does not."""
        scheduler = self._access(subject.node, kind)
        if scheduler is None:
            return ""
        member = scheduler.member(subject.facts, subject.node.name)
        hold = member.hold
        if hold is None:  # a scheduler's own reason replaces that of a hold
            out = member.why and not member.available
            return _stays_out(scheduler, member, member.why) if out else ""
        if hold.run == self._run:
            return ""
        if hold.phase != "left":
            why = Why(self._run, self._person, self._text or "releases what a run left held")
            try:
                scheduler.take_lease(why, emit, stop)
                member = scheduler.note(member, "validating")
            except (LockHeld, HeldElsewhereError) as error:
                return _stays_out(scheduler, member, str(error))
            if member.hold is None:
                return ""
        note = ""
        try:
            if hold.phase != "left" and not subject.facts.without_driver:
                subject.before_return()
                if hold.text != WITHDRAWS:  # its objects may come later in this run
                    note = scheduler.refresh(member, subject.facts, emit, stop)
            emit(f"releasing {member.name}, which run {hold.run} left out of service")
            reason = scheduler.release(member, emit, stop)
        except NotRefreshedError as error:
            phase = "validating" if stop() else "failed"
            scheduler.note(member, phase, _brief(str(error)))
            raise NotRefreshedError(f"{error}; it {STAYS_OUT}") from error
        except NotDrainedError as error:  # the run is to stop
            reason = str(error)
        return _stays_out(scheduler, member, reason) if reason else note

    def _take(self, subject: Subject) -> _Held:
        """What was held for a node; nothing more is done with it."""
        with self._lock:
            return self._held.pop(subject.node.name, _Held())

    def _give(self, held: _Held) -> None:
        while held.slots:
            self._slots.give(*held.slots.pop())

    def _release(
        self, subject: Subject, emit: Emit, stop: Stop
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Release it; why it stays out of service, and what could not be released."""
        held = self._take(subject)
        notes: list[str] = []
        stuck: list[str] = []
        for scheduler, member in reversed(held.holds):
            try:
                reason = scheduler.release(member, emit, stop)
            except NotRefreshedError as error:
                phase = "validating" if stop() else "failed"
                with suppress(GpustateError):
                    scheduler.note(member, phase, _brief(str(error)))
                stuck.append(f"{error}; it {STAYS_OUT}")
                continue
            except GpustateError as error:
                why = f"it was not released: {error}; run gpustate apply again"
                stuck.append(_stays_out(scheduler, member, why))
                continue
            if reason:
                notes.append(_stays_out(scheduler, member, reason))
            else:
                emit(f"released {member.name} in {scheduler.title}")
        self._give(held)
        return tuple(notes), tuple(stuck)


def _waiting_time(policy: DrainPolicy) -> str:
    seconds = policy.wait_timeout_s
    return f"{seconds:g} s at most" if seconds else "without a time limit"


def how_it_leaves(workload: Workload, policy: DrainPolicy) -> str:
    """What becomes of a workload, for a plan."""
    leaves = f"is {DELETED}: no controller creates it again" if workload.lost else "is evicted"
    if not workload.waited:
        return leaves
    limit = workload.limit or (policy.wait_timeout_s and _waiting_time(policy))
    late = f"it cannot leave: {workload.problem}" if workload.problem else f"it {leaves}"
    late = f"; otherwise {late}" if limit and (workload.problem or workload.lost) else ""
    return f"is waited for, {limit or _waiting_time(policy)}{late}"


def _as_error(error: Exception) -> GpustateError:
    """An error of which a node's result is made; whatever it is, no node stays out of service without a word."""
    if isinstance(error, GpustateError):
        return error
    return ClusterError(f"{type(error).__name__}: {error} (a bug in gpustate)")


def _brief(text: str) -> str:
    """One line that a scheduler keeps, without secrets."""
    return shorten(mask(" ".join(text.split())), _MOST_CHARS)


def _stays_out(scheduler: Scheduler, member: Member, why: str) -> str:
    out = f"{scheduler.title}: {member.name} {STAYS_OUT}"
    return f"{out}: {why}" if why else out
