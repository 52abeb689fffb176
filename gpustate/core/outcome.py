"""What became of one state on one node, and of the node as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from gpustate import errors
from gpustate.core.change import Disruption, Plan
from gpustate.formats.foreign_secrets import scrub, scrub_texts
from gpustate.formats.masking import mask, mask_data

#: What becomes of services and pods that a change stops and starts again, beside the workloads that leave.
RESTARTED = "is restarted"
#: What becomes of a pod that nothing creates again.
DELETED = "deleted for good"


class Outcome(Enum):
    """What became of one state on one node. The value is what JSON and the terminal say."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    PENDING = "would change"  # plan and drift
    KNOWN_AFTER = "known after"  # plan: what it needs to look at is not there yet
    FIRST_BOOT = "at first boot"  # an image: nothing more to be baked, the rest comes when it boots
    REBOOT_PENDING = "reboot pending"  # done as far as it goes; the rest comes with a reboot
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"  # because another state failed; see the reason
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    BLOCKED = "blocked: needs a console"  # all is done but what only a person there can do


@dataclass(frozen=True, slots=True)
class StateResult:
    """One state on one node.

    Args:
        state: its name.
        outcome: what became of it.
        plan: what was to change; for a changed state, what did.
        reason: why, for everything but unchanged and changed; cause first, next move last.
        evidence: output that shows it, last lines only.
        command: of a failed step: its command, for a root shell on the node; empty where it has none.
        inspect: of a failed step: a read-only command that shows why, for the same shell.
        known_after: names of the states it waits for.
        worst: what its changes, or those of a plan not known yet, may cost.
        condition: on which condition they cost that; empty: surely.
        validating: of a state that only validates others.
        removes: units of services that go with it.
    """

    state: str
    outcome: Outcome
    plan: Plan = field(default_factory=Plan)
    reason: str = ""
    evidence: str = ""
    command: str = ""
    inspect: str = ""
    known_after: tuple[str, ...] = ()
    worst: Disruption = Disruption.NONE
    condition: str = ""
    validating: bool = False
    removes: tuple[str, ...] = ()

    def masked(self) -> StateResult:
        """The same without secrets."""
        plan = self.plan
        changes = tuple(
            replace(
                change,
                before=scrub_texts(change.before),
                after=scrub_texts(change.after),
                why=mask(change.why),
                condition=mask(change.condition),
                path=None if change.path is None else mask(change.path),
            )
            for change in plan.changes
        )
        return replace(
            self,
            plan=replace(
                plan,
                changes=changes,
                notes=mask_data(plan.notes),
                refusal=mask_data(plan.refusal),
                warnings=mask_data(plan.warnings),
                gpu_users=mask_data(plan.gpu_users),
                restarted=mask_data(plan.restarted),
                blocked=mask_data(plan.blocked),
            ),
            reason=mask(self.reason),
            condition=mask(self.condition),
            evidence=scrub(self.evidence),
            command=mask(self.command),
            inspect=mask(self.inspect),
        )


class NodeStatus(Enum):
    """What became of a node; the worst of its states, or what kept it from being reached."""

    OK = "ok"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    LOCKED = "locked"
    ROLLED_BACK = "rolled back"
    INTERRUPTED = "interrupted"
    BLOCKED = "blocked: needs a console"


@dataclass(slots=True)
class NodeResult:
    """One node after a run.

    ``checks``: those of the validator, if it has a record of ``validated_at`` (seconds since 1970).
    ``proceeds``: states were refused or failed, and an apply does what does not depend on them. ``moving``: the program of an earlier run was at work when the node was planned.
    ``unreleased``: it is as it should be, and could not be returned to service.
    ``workloads``: names of those that an apply makes leave, and how they do.
    ``would_refuse``: its plan could be made, but an apply would not take the node out of service. ``deferred``: it has
    changes, and waits for its wave.
    """

    name: str
    status: NodeStatus = NodeStatus.OK
    reason: str = ""
    states: list[StateResult] = field(default_factory=list[StateResult])
    reboots: int = 0
    execs: int = 0
    connections: int = 0
    duration_s: float = 0.0
    observed: dict[str, object] = field(default_factory=dict[str, object])
    facts: dict[str, object] = field(default_factory=dict[str, object])
    checks: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    validated_at: int = 0
    notes: list[str] = field(default_factory=list[str])
    workloads: tuple[tuple[str, str], ...] = ()
    proceeds: bool = False
    moving: bool = False
    would_refuse: bool = False
    unreleased: bool = False
    deferred: bool = False

    def mask(self) -> None:
        """Take secrets out of everything that documents and people get."""
        self.reason = mask(self.reason)
        self.states = [result.masked() for result in self.states]
        self.observed = scrub_texts(self.observed)
        self.facts = mask_data(self.facts)
        self.checks = mask_data(self.checks)
        self.notes = mask_data(self.notes)
        self.workloads = mask_data(self.workloads)

    def outcomes(self, *outcomes: Outcome) -> list[StateResult]:
        """States with one of these outcomes."""
        return [result for result in self.states if result.outcome in outcomes]

    @property
    def changed(self) -> bool:
        """Something on the node is different from before."""
        waiting = self.outcomes(Outcome.BLOCKED)
        return bool(self.outcomes(Outcome.CHANGED, Outcome.REBOOT_PENDING)) or any(
            result.plan for result in waiting
        )

    @property
    def pending(self) -> bool:
        """Something would change."""
        return bool(self.outcomes(Outcome.PENDING, Outcome.KNOWN_AFTER))

    @property
    def worst(self) -> Disruption:
        """The most that its plan may cost."""
        return max((result.worst for result in self.states), default=Disruption.NONE)

    @property
    def drifted(self) -> bool:
        """Something differs from the policy, whether or not an apply would be refused."""
        refused = self.outcomes(Outcome.REFUSED)
        return self.pending or any(result.plan for result in refused)

    @property
    def drift_unknown(self) -> bool:
        """A refusal keeps from comparing the node, or a part of it, with the policy."""
        if self.status is not NodeStatus.REFUSED:
            return False
        refused = self.outcomes(Outcome.REFUSED)
        return not self.states or any(not result.plan for result in refused)

    @property
    def exit_code(self) -> int:
        """What this node alone would make the run end with, pending changes not counted."""
        failed = self.outcomes(Outcome.FAILED)
        if self.status is NodeStatus.FAILED:
            only_validation = bool(failed) and all(result.validating for result in failed)
            return errors.EXIT_VALIDATION if only_validation else errors.EXIT_ERROR
        return {
            NodeStatus.OK: errors.EXIT_OK,
            NodeStatus.UNREACHABLE: errors.EXIT_UNREACHABLE,
            NodeStatus.REFUSED: errors.EXIT_REFUSED,
            NodeStatus.LOCKED: errors.EXIT_LOCKED,
            NodeStatus.ROLLED_BACK: errors.EXIT_ROLLED_BACK,
            NodeStatus.INTERRUPTED: errors.EXIT_INTERRUPTED,
            NodeStatus.BLOCKED: errors.EXIT_BLOCKED,
        }[self.status]
