"""The run of one node: connect, probe, plan, gate, apply, probe again; stage by stage.

A stage runs the steps of every state that can be planned now as one program, probes again, and evaluates the
result. States whose plan depends on a change of this stage are planned from the second probe, and form the
next stage. A reboot is a barrier: it comes when nothing else is left to do, and only if no state objects.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from gpustate import ops
from gpustate.compat.collect import collect
from gpustate.compat.facts import DRIVER, Value
from gpustate.core.change import Disruption, Plan
from gpustate.core.drain import DrainPolicy
from gpustate.core.encode import plain
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.policy import Resolved
from gpustate.core.queries import Answer, Candidates, Query
from gpustate.core.state import AnyState, State
from gpustate.documents import Json, JsonView
from gpustate.engine import before, gate, journal, rebooting, verdicts
from gpustate.engine.events import Event, Listener, ignore
from gpustate.engine.gate import Controller
from gpustate.engine.ledger import Ledger, LedgerQuery
from gpustate.engine.machines import Machines
from gpustate.engine.maintenance import INTERRUPTED, NO_MAINTENANCE, Maintenance, Subject
from gpustate.engine.probing import missing_queries, probe_states, query_node
from gpustate.engine.reconnect import Link
from gpustate.errors import (
    ConnectionFailed,
    GpustateError,
    LockHeld,
    ProbeError,
    RefusedError,
    StepFailed,
    UnreleasedError,
)
from gpustate.formats import package_errors
from gpustate.formats.dpkg import Candidate
from gpustate.formats.foreign_secrets import scrub_texts
from gpustate.formats.masking import mask
from gpustate.ops.transaction import PIN_PATH, TransactionQuery
from gpustate.plan import make
from gpustate.plan.make import Observations
from gpustate.probes.gpu_clients import GpuClientsQuery
from gpustate.probes.repository_preview import leave_out, previewed, unread
from gpustate.remote.session import Session

T = TypeVar("T")

#: A policy that still has changes after so many stages does not converge.
_MAX_STAGES = 10
#: How long, and of how many nodes, a look is kept for their turn.
_FRESH_S, _MOST_LOOKS = 30.0, 64
#: Outcomes of states that will change something, or may.
_PENDING = (Outcome.PENDING, Outcome.KNOWN_AFTER, Outcome.REBOOT_PENDING)


def _candidates(answers: Mapping[Query[Any], Answer]) -> dict[str, tuple[Candidate, ...]]:
    """What repositories offer, of all packages that were asked for."""
    candidates: dict[str, tuple[Candidate, ...]] = {}
    for query, answer in answers.items():
        if isinstance(query, Candidates):
            candidates |= query.parse(answer)
    return candidates


@dataclass(frozen=True, slots=True)
class Look:
    """What one probe observed, and when."""

    at_s: float
    observations: Observations
    ledger: Ledger
    facts: NodeFacts
    known: dict[Query[Any], Answer]

    @property
    def fresh(self) -> bool:
        """Hardly older than a probe is when its node's program starts."""
        return time.monotonic() - self.at_s < _FRESH_S


@dataclass(slots=True, kw_only=True)
class RunSettings:
    """How a run processes its nodes, in a request and in the walk of each node.

    Args:
        max_disruption: plans that may exceed it are refused.
        planned: for a saved plan, the observations it was made from, by node.
        planned_at: when the plan was made.
        announced: for a saved plan, the most disruption of each state, by node.
        planned_now: the plan was made by the same command.
        moving: nodes on which the program of an earlier run was at work when they were planned: what it has
            changed since is no reason to refuse a plan that was made by the same command.
        plan_id: id of the saved plan, for the lock.
        ticket: the user's reason, for the lock and the node's record of the run.
        all_or_nothing: do not change a node if one of its states cannot be applied.
        without_gpu: nodes that the policy expects no GPU on, if only a part of it is applied.
        forecast: predict the changes of states whose plan depends on other states, and refuse a node that they would refuse.
        checks: further reasons not to change a node.
        back_check: raises the reason why a node whose change failed must not go back.
        maintenance: takes nodes out of service for a change, and back.
        undoes: the run that this one rolls back, by node.
        resumes: the interrupted run that this one continues; empty: none.
        before_change: called with what is known of a node that has left service, before its first change.
        before_return: called with it while it is held, before what offers its GPUs is waited for.
        afterwards: what else is queried of a node, together with the probe after its steps.
        answers: all answers of that probe, by node, from which ``afterwards`` can be evaluated.
    """

    max_disruption: Disruption = Disruption.REBOOT
    planned: Mapping[str, Mapping[str, object]] | None = None
    planned_at: str = ""
    announced: Mapping[str, Mapping[str, Disruption]] | None = None
    planned_now: bool = False
    moving: frozenset[str] = frozenset()
    plan_id: str = ""
    ticket: str = ""
    all_or_nothing: bool = False
    without_gpu: frozenset[str] = frozenset()
    forecast: bool = False
    checks: Sequence[gate.NodeCheck] = ()
    back_check: Callable[[InventoryNode, before.WayBack], None] = lambda node, way: None
    maintenance: Maintenance = NO_MAINTENANCE
    undoes: Mapping[str, str] = field(default_factory=dict[str, str])
    resumes: str = ""
    before_change: Callable[[NodeResult], None] = lambda node: None
    before_return: Callable[[NodeResult], None] = lambda node: None
    afterwards: Callable[[Node], object] | None = None
    answers: dict[str, Mapping[Query[Any], Answer]] = field(
        default_factory=dict[str, Mapping[Query[Any], Answer]]
    )

    def settings(self) -> Json:
        """The values, by name."""
        return {setting.name: getattr(self, setting.name) for setting in fields(RunSettings)}


@dataclass(slots=True)
class Options(RunSettings):
    """How the nodes of a run are walked.

    Args:
        run: id of the run.
        apply: change nodes; otherwise only plan.
        holder: for the node-side lock.
        machines: machines that this run has reached.
        drains: how workloads of nodes leave, recorded for a rollback; empty: by the defaults.
        rollout: how many nodes change at a time by the policy, likewise.
        shared: what probes keep for the other nodes of the run.
        surveying: nodes that would change end before that, as deferred.
        looks: what was observed on deferred nodes, by node, for those that begin again at once.
    """

    run: str
    apply: bool
    holder: Controller
    machines: Machines = field(default_factory=Machines)
    drains: Mapping[str, DrainPolicy] = field(default_factory=dict[str, DrainPolicy])
    rollout: JsonView = field(default_factory=Json)
    shared: dict[Any, Any] = field(default_factory=dict[Any, Any])
    surveying: Callable[[], bool] = lambda: False
    looks: dict[str, Look] = field(default_factory=dict[str, Look])


class _InterruptedError(Exception):
    """Ctrl-C was pressed; the running step has ended."""


@dataclass(slots=True)
class Walk:
    """The run of one node. ``states`` are in graph order, reversed for a removal."""

    session: Session
    resolved: Resolved
    states: Sequence[AnyState]
    options: Options
    stop: Callable[[], bool] = lambda: False
    listen: Listener = ignore
    result: NodeResult = field(init=False)

    _link: Link = field(init=False)
    _look: Look = field(init=False)
    _known: dict[Query[Any], Answer] = field(default_factory=dict[Query[Any], Answer])
    _allowed: Mapping[str, str] = field(default_factory=dict[str, str])
    _before: ops.Before | None = None
    _foreseen: dict[str, StateResult] = field(default_factory=dict[str, StateResult])
    _followed: bool = False
    _unread: dict[str, str] = field(default_factory=dict[str, str])
    _offered: dict[str, tuple[Candidate, ...]] = field(
        default_factory=dict[str, tuple[Candidate, ...]]
    )

    def __post_init__(self) -> None:
        self.result = NodeResult(self.resolved.node.name, notes=list(self.resolved.notes))
        self._link = Link(self.session, self._say, self.stop)

    # --- the run ---------------------------------------------------------------------

    def run(self) -> NodeResult:
        """Run to the end; never raises for an error of the node or of the user."""
        started = time.monotonic()
        try:
            self._say("connecting")
            self.session.connect()
            self._walk()
        except ConnectionFailed as error:
            self._end(NodeStatus.UNREACHABLE, str(error))
        except UnreleasedError as error:
            self._end(NodeStatus.FAILED, str(error))
            self.result.unreleased = True
        except LockHeld as error:
            self._end(NodeStatus.LOCKED, str(error))
        except RefusedError as error:
            self._end(NodeStatus.REFUSED, str(error))
        except _InterruptedError as error:
            self._end(NodeStatus.INTERRUPTED, str(error))
        except GpustateError as error:
            self._end(NodeStatus.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  an error of one node must not end the others' runs
            self._end(NodeStatus.FAILED, f"{type(error).__name__}: {error} (a bug in gpustate)")
        finally:
            self.session.close()
        self.result.execs = self.session.execs
        self.result.connections = self.session.connections
        self.result.duration_s = time.monotonic() - started
        self.result.mask()
        return self.result

    def _walk(self) -> None:
        snapshot = self.options.looks.pop(self.result.name, None)
        observations, ledger = (
            self._take(snapshot) if snapshot and snapshot.fresh else self._probe()
        )
        met = self.options.machines.meet(ledger.machine, self.result.name, self.options.apply)
        self.result.notes += met
        if self.options.apply and ledger.running:
            observations, ledger = self._wait_for_earlier(ledger)
        if observations.view.facts.first_boot not in ("", "done"):
            self.result.notes.append(
                f"first boot of its image: {observations.view.facts.first_boot}"
            )
        results = make.make(self.states, observations)
        warnings = (line for result in results.values() for line in result.plan.warnings)
        self.result.notes += dict.fromkeys(warnings)
        self._keep(observations, results)
        self._check_lock(ledger, results)
        observations.as_seen_by = self._as_seen_by
        gate.check_node(self.options.checks, self.states, observations, results)
        self._end(*verdicts.node_status(results.values()))
        if self._is_rejected():
            return
        if self.options.forecast and self._forecast(observations, results):
            return
        if (self.options.forecast or self.options.apply) and self._simulate(observations, results):
            return
        self._compatible(observations, results)
        if not self.options.apply:
            self.result.moving = ledger.running
            self.result.proceeds = gate.proceeds(self.result.status, results)
            preview = self.options.maintenance.preview(self._subject(observations, results))
            self.result.notes += preview.notes
            self.result.workloads = preview.workloads
            self.result.would_refuse = preview.refused
            return
        self._gate(results)
        pending = any(r.outcome is Outcome.PENDING for r in results.values())
        if pending and self.options.surveying():
            self.result.deferred = True
            if len(self.options.looks) < _MOST_LOOKS and not self._followed:
                self.options.looks[self.result.name] = self._look
            return
        self._link.hand_over(ledger.secrets)
        if pending:
            self._before = self._record(observations, results)
            self._in_maintenance(observations, ledger, results)
            return
        if ledger.lock is not None and gate.dead(ledger, self.options.holder):
            # The earlier run was killed before it released the lock, and no program follows that would take it over.
            self.session.shell(self._release(ledger.lock.run))
        if self.result.status is NodeStatus.OK:
            self._return(self._subject(observations, results))

    def _record(
        self, observations: Observations, results: Mapping[str, StateResult]
    ) -> ops.Before | None:
        """What the node is about to change from; a baked image has no way back, and a run that only validates changes nothing."""
        changing = [state for state in self.states if results[state.name].outcome in _PENDING]
        validates = all(state.validating and not state.absent for state in changing)
        if observations.view.facts.image or validates:
            return None
        options, name = self.options, self.result.name
        run_before = before.RunBefore(
            options.run,
            options.holder.name,
            options.ticket,
            options.undoes.get(name, ""),
            options.resumes,
            before.record(self.states, observations, results, self._as_seen_by),
            options.drains[name].as_data() if name in options.drains else {},
            options.rollout,
        )
        return ops.Before(options.run, run_before.text())

    def _as_seen_by(self, states: Sequence[AnyState]) -> Sequence[object]:
        """The node as other states observe it, each ``None`` if it cannot; most queries are answered already."""

        def probe(node: Node) -> list[object]:
            observed: list[object] = []
            for state in states:
                observed.append(None)
                with suppress(ProbeError, RefusedError):
                    observed[-1] = state.probe(node)
            return observed

        node, answers = self.resolved.node, dict(self._known)
        try:
            return self._link.repeat(lambda: query_node(node, probe, self.session.answer, answers))
        except ProbeError:
            return [None] * len(states)

    def _is_rejected(self) -> bool:
        """A state cannot be applied, and ``all_or_nothing`` excludes the rest."""
        if not self.options.all_or_nothing:
            return False
        return self.result.status in (NodeStatus.REFUSED, NodeStatus.FAILED)

    def _forecast(self, observations: Observations, results: dict[str, StateResult]) -> bool:
        """Predict the changes of states whose plan depends on other states, as far as the node allows.

        Returns:
            The node is left unchanged as a whole.

        Raises:
            RefusedError: it must be rebooted, it has GPU users, and no scheduler makes them leave.
        """
        self._say("probing", "package lists of repositories")
        pending = [r for r in results.values() if r.outcome is Outcome.PENDING]
        reboots = any(r.plan.disruption is Disruption.REBOOT for r in pending)
        if reboots and not observations.view.facts.agents and (users := self._gpu_users()):
            raise users
        # A package that is removed ahead may be all that is in the way.
        removing = any(s.absent and results[s.name] in pending for s in self.states)
        refused: dict[str, StateResult] = {}
        for state in self.states:
            planned = results[state.name]
            if state.absent or type(state).forecast is State.forecast:
                continue
            ahead = planned.known_after
            if planned.outcome is Outcome.PENDING and type(state).preview is not State.preview:
                ahead = (state.name,)
            elif planned.outcome is not Outcome.KNOWN_AFTER or not refused.keys().isdisjoint(ahead):
                continue
            parts = [
                s.preview(observations.observed[s.name])
                for s in self.states
                if s.name in ahead and s.name in observations.observed
            ]
            try:
                plan = self._query(partial(state.forecast, preview="\n".join(filter(None, parts))))
            except ProbeError as error:
                plan = Plan(notes=(f"its changes cannot be predicted yet: {error}",))
            forecast_plan = replace(
                planned.plan,
                changes=(*planned.plan.changes, *make.labelled(state, plan)),
                notes=(*planned.plan.notes, *plan.notes),
                restarted=(*planned.plan.restarted, *plan.restarted),
                facts={**planned.plan.facts, **plan.facts},
            )
            results[state.name] = replace(planned, plan=forecast_plan)
            if plan.refusal is not None and not removing:
                refused[state.name] = make.refused(state, plan.refusal)
        unchanged = self._foresee(refused, observations, results) or self._foresee(
            self._predict(observations, results), observations, results
        )
        self.result.notes += self._unread.values()
        self.result.states = list(results.values())
        return unchanged or self._is_rejected()

    def _foresee(
        self,
        refused: Mapping[str, StateResult],
        observations: Observations,
        results: dict[str, StateResult],
    ) -> bool:
        """Refuse states whose refusal is certain, and what depends on them; whether an essential one is among these."""
        if not refused:
            return False
        self._foreseen.update(refused)
        planned = make.make(self.states, observations, self._foreseen)
        moved = {n: r for n, r in planned.items() if r.outcome is not results[n].outcome}
        results.update(moved)
        self._end(*verdicts.node_status(results.values()))
        return any(state.essential and state.name in moved for state in self.states)

    def _predict(
        self, observations: Observations, results: dict[str, StateResult]
    ) -> dict[str, StateResult]:
        """Predict which versions states will install that follow the driver or wait for a repository.

        Returns:
            Refusals for what no repository of the node will have, where all of those are known, and for masked units.
        """
        refused: dict[str, StateResult] = {}
        observed = observations.observed
        pending = [s for s in self.states if results[s.name].outcome is Outcome.PENDING]
        later = [s for s in self.states if results[s.name].outcome is Outcome.KNOWN_AFTER]
        waiting = [s for s in later if s.predicted and not s.absent and s.name in observed]
        # A member of a family, an operation, may add any repository.
        repositories_known = not any(state.family for state in (*pending, *later)) and all(
            type(state).preview is State.preview for state in later
        )
        if not waiting:
            return refused
        driver = str(self._facts(observations, results).get(DRIVER, ""))
        changes = results[DRIVER].plan.changes if DRIVER in results else ()
        packages = next((change.after for change in changes if change.field == "packages"), None)
        packages = packages if isinstance(packages, Mapping) else None

        predict = partial(
            make.predict,
            driver=driver,
            packages=packages,
            masked=observations.masked,
            repositories_known=repositories_known,
        )

        def plans(node: Node) -> list[Plan]:
            return [predict(state, state.probe(node)) for state in waiting]

        with suppress(ProbeError, RefusedError):  # they say it themselves in their stages
            answers = self._previewed(self._previews(observations, results))
            predictions = query_node(self.resolved.node, plans, self._answer, answers)
            self._offered = _candidates(answers)
            for state, plan in zip(waiting, predictions, strict=True):
                predicted = replace(plan, refusal=None)
                results[state.name] = replace(results[state.name], plan=predicted)
                if plan.refusal is not None:
                    refused[state.name] = make.refused(state, plan.refusal)
        return refused

    def _simulate(self, observations: Observations, results: dict[str, StateResult]) -> bool:
        """Simulate what all states install: name the origins, refuse where a filesystem has no room; as :meth:`_foresee`."""
        offered = self._offered or _candidates(self._known)
        installs, leaving = make.transaction(self.states, results, offered)
        if not installs:
            return False
        rows = {row[0]: row[1] for packages in installs.values() for row in packages}
        changes = (change for result in results.values() for change in result.plan.changes)
        pin = next((change.after for change in changes if change.path == PIN_PATH), None)
        query = TransactionQuery(
            observations.view.facts.package_manager,
            tuple(rows.items()),
            leaving,
            self._previews(observations, results),
            pin if isinstance(pin, str) else None,
        )
        try:
            transaction = self._query(lambda node: node.query(query))
        except ProbeError:
            return False
        self.result.notes += transaction.overridden_pins()
        for state in self.states:
            plan = results[state.name].plan
            plan = make.with_sources(plan, state.predicted, transaction.installs, offered)
            results[state.name] = replace(results[state.name], plan=plan)
        self.result.states = list(results.values())
        shortage = transaction.shortage
        # What a removal takes off the node makes room.
        if not shortage or any(s.absent and results[s.name].plan for s in self.states):
            return False
        _, move = package_errors.find_error(shortage) or ("", "")
        first = next(iter(installs))
        because = partial(StateResult, outcome=Outcome.NOT_RUN, reason=f"because {first} refused")
        refused = {name: because(name) for name in installs}
        state = next(state for state in self.states if state.name == first)
        refused[first] = make.refused(state, f"{shortage} for {', '.join(installs)}; {move}")
        unchanged = self._foresee(refused, observations, results)
        self.result.states = list(results.values())
        return unchanged or self._is_rejected()

    def _previews(self, observations: Observations, results: Mapping[str, StateResult]) -> str:
        """Sh that adds the repositories that pending states bring."""
        pending = (s for s in self.states if results[s.name].outcome is Outcome.PENDING)
        previews = (state.preview(observations.observed[state.name]) for state in pending)
        return "\n".join(filter(None, previews))

    def _previewed(self, preview: str) -> Mapping[Query[Any], Answer]:
        """All answers so far, those about candidates with the packages of repositories that are not there yet."""
        queries = [query for query in self._known if isinstance(query, Candidates)]
        if not preview or not queries:
            return self._known
        query = previewed(queries[0].joined(queries), preview)
        (answer,) = self._link.repeat(lambda: self._answer((query,)))
        query.parse(answer)
        return {**self._known, **dict.fromkeys(queries, answer)}

    def _query(self, question: Callable[[Node], T]) -> T:
        """Send further queries, reusing all answers so far."""
        node, answers = self.resolved.node, dict(self._known)
        return self._link.repeat(lambda: query_node(node, question, self._answer, answers))

    def _answer(self, queries: Sequence[Query[Any]], before: str = "") -> Sequence[Answer]:
        """Send queries; sources of the node that one of them could not read are left out of the next."""
        before = "\n".join(filter(None, (leave_out(self._unread), before)))
        answers = self.session.answer(queries, before=before)
        for answer in answers:
            self._unread |= unread(answer.text)
        return answers

    def _check_lock(self, ledger: Ledger, results: Mapping[str, StateResult]) -> None:
        """Report a node that another run is changing as locked, not by its intermediate state."""
        own_run = (self.options.run, self.options.holder)
        if not self.options.apply:
            self.result.notes += gate.half_done(ledger, *own_run)
        else:
            gate.refuse_held(ledger, results, self._ledger, *own_run)

    def _ledger(self) -> Ledger:
        query = LedgerQuery()
        (answer,) = self._link.repeat(lambda: self.session.answer((query,)))
        return query.parse(answer)

    def _compatible(self, observations: Observations, results: Mapping[str, StateResult]) -> None:
        """Check a node that would change against the compatibility matrix, as it will be after the run."""
        if not gate.announced(results):
            return
        if all(state.absent for state in self._applicable(results)):
            return
        judged = gate.compatible(self._facts(observations, results), self.resolved.allow)
        self.result.notes += judged.notes
        self._allowed = judged.allowed
        if judged.reason is not None:
            raise judged.reason

    def _applicable(self, results: Mapping[str, StateResult]) -> list[AnyState]:
        return [s for s in self.states if results[s.name].outcome is not Outcome.NOT_APPLICABLE]

    def _facts(
        self, observations: Observations, results: Mapping[str, StateResult]
    ) -> dict[str, Value]:
        """The node for the compatibility matrix, as it will be after the run."""
        states, cluster = self._applicable(results), self.resolved.cluster
        extra = cluster.matrix_facts() if cluster is not None else {}
        return collect(observations.view.facts, states, observations.observed, results, extra)

    def _gate(self, results: Mapping[str, StateResult]) -> None:
        """Refuse before anything is changed."""
        options, name = self.options, self.result.name
        reason: GpustateError | None = None
        moved = options.planned_now and (self._followed or name in options.moving)
        if options.planned is not None and not moved:
            reason = gate.stale(
                name,
                options.planned.get(name),
                scrub_texts(self.result.observed),
                options.planned_at,
                now=options.planned_now,
            )
        if reason is None and any(r.outcome is Outcome.PENDING for r in results.values()):
            reason = gate.too_much(results, options.max_disruption)
        if reason is not None:
            raise reason

    def _say(self, kind: str, text: str = "", state: str = "") -> None:
        # Only a secret for the user at the controller is shown unmasked.
        masked = text if kind == "secret" else mask(text)
        self.listen(Event(self.result.name, kind, masked, state))

    def _end(self, status: NodeStatus, reason: str) -> None:
        self.result.status = status
        self.result.reason = reason

    def _check_stop(self) -> None:
        if self.stop():
            raise _InterruptedError(f"{INTERRUPTED} after the running step")

    # --- probing -----------------------------------------------------------------------

    def _probe(
        self, before: str = "", more: Sequence[Query[Any]] = (), *, stoppable: bool = True
    ) -> tuple[Observations, Ledger]:
        """Probe everything.

        Args:
            before: sh that runs ahead of the probes, in the same exec.
            more: further queries of that exec.
            stoppable: not after Ctrl-C.
        """
        if stoppable:
            self._check_stop()
        self._say("probing")
        lead: list[str] = []
        ledger = LedgerQuery()

        def answer(queries: Sequence[Query[Any]]) -> Any:
            return self._answer(queries, lead.pop() if lead else "")

        def once() -> Any:
            lead[:] = [before]
            shared = self.options.shared
            return probe_states(self.resolved.node, self.states, answer, (ledger, *more), shared)

        # Probes change nothing, and the sh before them may run twice.
        observations, facts, answers = self._link.repeat(once)
        snapshot = Look(
            time.monotonic(), observations, ledger.parse(answers[ledger]), facts, answers
        )
        return self._take(snapshot)

    def _take(self, snapshot: Look) -> tuple[Observations, Ledger]:
        """Go on from what a probe observed."""
        observations, facts = snapshot.observations, snapshot.facts
        self._known = snapshot.known
        observations.expects_no_gpu = (
            self.result.name in self.options.without_gpu and not facts.gpus
        )
        self.result.facts = plain(facts)
        self._look = snapshot
        return observations, snapshot.ledger

    def _keep(self, observations: Observations, results: Mapping[str, StateResult]) -> None:
        self.result.states = list(results.values())
        self.result.observed = make.observed_data(self.states, observations)
        for state in self.states:
            if state.validating and state.name in observations.observed:
                observed = observations.observed[state.name]
                self.result.checks = plain(getattr(observed, "checks", ()))
                self.result.validated_at = getattr(observed, "made_at", 0)

    def _wait_for_earlier(self, ledger: Ledger) -> tuple[Observations, Ledger]:
        """Follow the program of an earlier run to its end if it is still running on this node."""
        held = gate.at_work(ledger, self.options.holder)
        if held is not None:
            raise held
        run = ledger.program.run if ledger.program is not None else ""
        self._say("waiting", f"run {run} is still running here; following it to its end")
        self.result.notes.append(
            f"an earlier run ({run}) was still running and was followed to its end"
        )
        self._link.follow(run, ops.Program("", {}), journal.Record())
        self._followed = True
        return self._probe()

    # --- maintenance -------------------------------------------------------------------

    def _subject(self, observations: Observations, results: Mapping[str, StateResult]) -> Subject:
        """The node and what is about to happen to it, for its scheduler."""
        changing = [r for r in results.values() if r.worst > Disruption.NONE]

        def states() -> tuple[str, ...]:
            named = [result.state for result in changing if self._is_certain(result, observations)]
            return tuple(named or (result.state for result in changing))

        pending = (r.state for r in results.values() if r.outcome in _PENDING)
        return Subject(
            self.resolved.node,
            observations.view.facts,
            max((r.worst for r in changing), default=Disruption.NONE),
            states,
            frozenset(pending),
            _spared_pods(changing),
            partial(self.options.before_return, self.result),
        )

    def _is_certain(self, result: StateResult, observations: Observations) -> bool:
        """Whether a state changes the node, not only may after others have."""
        if result.outcome is not Outcome.KNOWN_AFTER:
            return True
        state = next(s for s in self.states if s.name == result.state)
        return make.may_change(state, observations)

    def _in_maintenance(
        self, observations: Observations, ledger: Ledger, results: dict[str, StateResult]
    ) -> None:
        """Take the node out of service if the change needs it, and back if it went well."""
        subject = self._subject(observations, results)
        report = partial(self._say, "draining")
        try:
            self.options.maintenance.begin(subject, report, self.stop)
        except GpustateError:
            self._check_stop()
            raise
        try:
            self.options.before_change(self.result)
            observations = self._stages(observations, ledger, results)
        except (RefusedError, LockHeld):
            self._return(subject)
            raise
        except Exception as error:
            self._return(subject, str(error) or type(error).__name__)
            raise
        subject = replace(subject, facts=observations.view.facts)
        failed = "" if self.result.status is NodeStatus.OK else self.result.reason or "failed"
        self._return(subject, failed)

    def _return(self, subject: Subject, failed: str = "") -> None:
        """Return the node to service, or leave it out because its change failed or the run is to stop."""
        report, maintenance = partial(self._say, "releasing"), self.options.maintenance
        try:
            self.result.notes += maintenance.end(subject, failed, report, self.stop)
        except GpustateError as error:
            if self.stop():
                raise _InterruptedError(f"{INTERRUPTED}: {error}") from error
            raise

    # --- stages ------------------------------------------------------------------------

    def _stages(
        self, observations: Observations, ledger: Ledger, results: dict[str, StateResult]
    ) -> Observations:
        """Carry out the plan, stage by stage; the node as it was observed last."""
        saved = (self.options.announced or {}).get(self.result.name)
        allowed = gate.announced(results) if saved is None else saved
        planned = dict(results)
        final_results = dict(self._foreseen)
        rebooted_for: set[str] = set()
        for stage in range(1, _MAX_STAGES + 1):
            final_results.update(gate.refuse_what_exceeds(results, allowed, planned, final_results))
            ready_states = make.ready(self.states, results)
            if ready_states:
                self._check_stop()
                observations, ledger, record = self._run_stage(
                    stage, ready_states, observations, ledger, results
                )
                for state in ready_states:
                    became = verdicts.after_steps(state, results[state.name], record, observations)
                    if became.outcome is Outcome.PENDING:
                        final_results.pop(state.name, None)
                        continue
                    final_results[state.name] = became
                    self._say("result", became.outcome.value, state.name)
            elif self._reboot(observations, results, rebooted_for):
                observations, ledger = self._probe(f"{rebooting.BOOTED}; {self._release()}")
                self._settle_reboot(observations, results, final_results)
            else:
                break
            results = make.make(self.states, observations, final_results)
            self._keep(observations, results)
            if any(r.outcome is Outcome.INTERRUPTED for r in final_results.values()):
                break
        else:
            raise StepFailed(
                f"a state does not converge: it still has changes after {_MAX_STAGES} stages"
            )
        self._keep(observations, results)
        self._end(*verdicts.node_status(results.values()))
        return observations

    def _run_stage(
        self,
        stage: int,
        states: Sequence[AnyState],
        observations: Observations,
        ledger: Ledger,
        results: Mapping[str, StateResult],
    ) -> tuple[Observations, Ledger, journal.Record]:
        names = {state.name for state in states}
        blocks = tuple(
            ops.Block(
                state.name,
                tuple(n for n in make.must_hold_first(state, self.states) if n in names),
                verdicts.steps(state, observations, results[state.name]),
            )
            for state in states
        )
        program = ops.compile_program(blocks, self._allowed, self._before)
        more = any(r.outcome is Outcome.KNOWN_AFTER for r in results.values())
        reboot = any(isinstance(step, ops.Reboot) for block in blocks for step in block.steps)
        record = journal.Record()
        if program.steps:
            self._say("started", f"stage {stage}: {', '.join(sorted(names))}")
            run = f"{self.options.run}-{stage}"
            self._link.upload(program)
            self._run_program(run, program, ledger, record, keep_lock=more or reboot)
            self._before = None
        if record.died:
            steps = [r.unfinished_step for r in record.states.values() if r.unfinished_step]
            where = f" during: {steps[-1]}" if steps else ""
            self.result.notes.append(f"the node program was killed{where}")
        self._say("verifying")
        # Also after Ctrl-C: the result has to show the changes that were made.
        question = self.options.afterwards
        queries = missing_queries(self.resolved.node, question) if question is not None else ()
        observations, ledger = self._probe(self._release(), queries, stoppable=False)
        if question is not None:
            self.options.answers[self.result.name] = self._known
        self._link.hand_over(ledger.secrets)
        return observations, ledger, record

    def _release(self, run: str = "") -> str:
        """sh that releases a lock kept between stages, or that of a run that no longer exists."""
        return (
            f'[ "$(cat $G/lock/run)" = {shlex.quote(run or self.options.run)} ] && rm -rf $G/lock'
        )

    def _run_program(
        self,
        run: str,
        program: ops.Program,
        ledger: Ledger,
        record: journal.Record,
        *,
        keep_lock: bool,
    ) -> None:
        lock = ledger.lock
        take_over = lock.run if lock and gate.dead(ledger, self.options.holder) else None
        try:
            self._link.run(
                run,
                program,
                record,
                lock=gate.taken(
                    self.options.run, self.options.holder, self.options.plan_id, self.options.ticket
                ),
                keep_lock=keep_lock,
                take_over=take_over,
                after=ledger.newest,
            )
        except StepFailed as error:
            raise gate.not_started(error) from error

    # --- reboots -----------------------------------------------------------------------

    def _gpu_users(self) -> RefusedError | None:
        """Who has a GPU open now, and must not end with a reboot."""
        query = GpuClientsQuery()
        (answer,) = self._link.repeat(lambda: self.session.answer((query,)))
        return gate.in_use(self.states, query.parse(answer))

    def _reboot(
        self, observations: Observations, results: dict[str, StateResult], rebooted_for: set[str]
    ) -> bool:
        """Reboot if nothing else is left to do; False if no state needs it, or one objects."""
        waiting = [s for s in self.states if results[s.name].outcome is Outcome.REBOOT_PENDING]
        if not waiting:
            return False
        if verdicts.wait_for_console(waiting, results):
            return False
        self._check_stop()
        blocker = verdicts.reboot_blocker(self.states, observations) or self._gpu_users()
        if blocker is not None:
            for state in waiting:
                reason = f"it needs a reboot, which is blocked: {blocker}"
                results[state.name] = replace(
                    results[state.name], outcome=Outcome.FAILED, reason=reason
                )
            return False
        again = [state.name for state in waiting if state.name in rebooted_for]
        for name in again:
            results[name] = replace(
                results[name],
                outcome=Outcome.FAILED,
                reason="it still needs a reboot after the reboot",
            )
        if again:
            return False
        rebooted_for.update(state.name for state in waiting)
        steps = [step for state in waiting for step in verdicts.reboot_steps(state, observations)]
        reason = "; ".join(dict.fromkeys(step.reason for step in steps))
        self._say("rebooting", reason)
        timeout_s = max((step.timeout_s for step in steps), default=900)
        self.options.maintenance.rebooting(self._subject(observations, results))
        options = self.options
        why = f"gpustate run {options.run} of {options.holder.name} reboots this node: {reason}"
        why += f" ({options.ticket})" if options.ticket else ""
        boot_id = str(self.result.facts.get("boot_id", ""))
        rebooting.restart(self.session, boot_id, timeout_s, mask(why))
        self.result.reboots += 1
        return True

    def _settle_reboot(
        self,
        observations: Observations,
        results: Mapping[str, StateResult],
        final_results: dict[str, StateResult],
    ) -> None:
        """Evaluate the states that waited for the reboot; some have more changes now."""
        for state in self.states:
            waiting = results[state.name]
            if waiting.outcome is not Outcome.REBOOT_PENDING:
                continue
            became = verdicts.after_reboot(state, waiting, observations)
            if became is None:
                final_results.pop(state.name, None)
            else:
                final_results[state.name] = became
                self._say("result", became.outcome.value, state.name)


def _spared_pods(changing: Sequence[StateResult]) -> frozenset[str]:
    """UIDs of pods that every change that needs GPUs leaves alone; none where one is not known yet."""
    results = [result for result in changing if result.worst >= Disruption.DRAIN]
    if not results or any(result.outcome is Outcome.KNOWN_AFTER for result in results):
        return frozenset()
    return frozenset.intersection(*(result.plan.spared_pods for result in results))
