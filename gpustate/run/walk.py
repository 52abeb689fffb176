"""The walk of one node: connect, look, plan, gate, apply, look again; stage by stage.

A stage is: run the steps of every state that can be planned now as one program, look again, judge.
States that could not be planned because they look behind something that was still to change are
planned from that second look, and make the next stage. A reboot is a barrier: it comes when
nothing else is left to do, and only if no state objects.

Sources:
    design.md section 3; reference/engine.md section 2 (channel budget).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent

from gpustate import ops
from gpustate.errors import ConnectionFailed, GpustateError, LockHeld, ProbeError, StepFailed
from gpustate.model.asks import Ask
from gpustate.model.change import Change, Disruption
from gpustate.model.encode import plain
from gpustate.model.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.model.policy import Resolved
from gpustate.model.state import AnyState
from gpustate.plan import make
from gpustate.plan.make import Look
from gpustate.remote.session import Session
from gpustate.run import journal
from gpustate.run.events import Event, Listener, nobody
from gpustate.run.ledger import LOCK_TTL_S, AskLedger, Ledger, read_lock
from gpustate.run.looking import look_at

#: A policy that still finds something new to do after so many stages does not converge.
_MAX_STAGES = 10
#: Times a broken connection to a working node is made again before giving up following.
_MAX_RECONNECTS = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs this: written into locks."""

    name: str  # user@host
    pid: int
    alive: Callable[
        [str, int], bool
    ]  # is that controller process still there, as far as we can tell


@dataclass(frozen=True, slots=True)
class Options:
    """How nodes are walked.

    Args:
        run: id of the run.
        apply: change nodes; otherwise only plan.
        max_disruption: plans that may cost more are refused.
        planned: for a saved plan, the observations it was made from, by node.
        announced: for a saved plan, what each state may cost, by node.
        holder: for the node-side lock.
        follow_attempts: reconnections to a node that works.
    """

    run: str
    apply: bool
    holder: Holder
    max_disruption: Disruption = Disruption.REBOOT
    planned: Mapping[str, Mapping[str, object]] | None = None
    announced: Mapping[str, Mapping[str, Disruption]] | None = None
    plan_id: str = ""


class _InterruptedError(Exception):
    """Ctrl-C was seen; the running step has ended."""


@dataclass(slots=True)
class Walk:
    """One node on its way. ``states`` are in graph order, backwards for what is taken away."""

    session: Session
    resolved: Resolved
    states: Sequence[AnyState]
    options: Options
    stop: Callable[[], bool] = lambda: False
    listen: Listener = nobody
    result: NodeResult = field(init=False)
    _known: dict[Ask[Any], Any] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self.result = NodeResult(self.resolved.node.name, notes=list(self.resolved.notes))

    # --- the whole ---------------------------------------------------------------------

    def run(self) -> NodeResult:
        """Walk to the end; never raises for anything that is the node's or the user's doing."""
        started = time.monotonic()
        try:
            self._say("connecting")
            self.session.connect()
            self._walk()
        except ConnectionFailed as error:
            self._end(NodeStatus.UNREACHABLE, str(error))
        except LockHeld as error:
            self._end(NodeStatus.LOCKED, str(error))
        except _InterruptedError:
            self._end(NodeStatus.INTERRUPTED, "stopped after the step that was running")
        except GpustateError as error:
            self._end(NodeStatus.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  one node's trouble must not end the others' walks
            self._end(NodeStatus.FAILED, f"{type(error).__name__}: {error} (a mistake in gpustate)")
        finally:
            self.session.close()
        self.result.execs = self.session.execs
        self.result.connections = self.session.connections
        self.result.duration_s = time.monotonic() - started
        self._say("finished", self.result.status.value)
        return self.result

    def _walk(self) -> None:
        look, ledger = self._look()
        if self.options.apply and ledger.program is not None and ledger.program.alive:
            look, ledger = self._wait_for_earlier(ledger)
        results = make.make(self.states, look)
        self._keep(look, results)
        if not self.options.apply:
            self._judge(results)
            return
        if not self._gate(look, ledger, results):
            return
        announced = self._announced(results)
        if not any(r.outcome is Outcome.PENDING for r in results.values()):
            self._judge(results)
            return
        self._stages(look, ledger, results, announced)

    def _say(self, kind: str, text: str = "", state: str = "") -> None:
        self.listen(Event(self.result.name, kind, text, state))

    def _end(self, status: NodeStatus, reason: str) -> None:
        self.result.status = status
        self.result.reason = reason

    def _check_stop(self) -> None:
        if self.stop():
            raise _InterruptedError

    # --- looking -----------------------------------------------------------------------

    def _look(self, before: str = "") -> tuple[Look, Ledger]:
        self._check_stop()
        self._say("probing")
        lead = [before]
        ledger = AskLedger()

        def answer(asks: Sequence[Ask[Any]]) -> Any:
            return self.session.answer(asks, before=lead.pop() if lead else "")

        look, facts, known = look_at(self.resolved.node, self.states, answer, (ledger,))
        self.result.facts = plain(facts)
        return look, ledger.parse(known[ledger])

    def _keep(self, look: Look, results: Mapping[str, StateResult]) -> None:
        self.result.states = list(results.values())
        self.result.observed = make.observed_data(self.states, look)
        for state in self.states:
            if state.proof and state.name in look.seen:
                self.result.checks = plain(getattr(look.seen[state.name], "checks", ()))

    def _wait_for_earlier(self, ledger: Ledger) -> tuple[Look, Ledger]:
        """A program of an earlier run still works on this node: see it to its end first."""
        program = ledger.program
        if program is None:
            return self._look()
        lock = ledger.lock
        if lock is not None and lock.holder != self.options.holder.name:
            raise LockHeld(f"a run is at work: {lock.told()}", fix="wait for it")
        if (
            lock is not None
            and lock.pid != self.options.holder.pid
            and self.options.holder.alive(lock.holder, lock.pid)
        ):
            raise LockHeld(
                f"another gpustate of yours is at work: {lock.told()}", fix="wait for it"
            )
        self._say("waiting", f"run {program.run} is still at work here; following it to its end")
        self.result.notes.append(
            f"an earlier run ({program.run}) was still at work and was followed to its end"
        )
        record = journal.Record()
        self._follow(program.run, ops.Program("", {}), record)
        return self._look()

    # --- the gate ----------------------------------------------------------------------

    def _gate(self, look: Look, ledger: Ledger, results: dict[str, StateResult]) -> bool:
        """Refuse before anything is touched; True when the node may be changed."""
        planned = (self.options.planned or {}).get(self.result.name)
        if self.options.planned is not None:
            if planned is None:
                self._end(NodeStatus.REFUSED, "the plan does not know this node; plan again")
                return False
            moved = make.moved(planned, self.result.observed)
            if moved:
                more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
                self._end(
                    NodeStatus.REFUSED,
                    f"the plan is stale: {'; '.join(moved[:3])}{more}; plan again",
                )
                return False
        refused = [r for r in results.values() if r.outcome is Outcome.REFUSED]
        if refused:
            self._judge(results)
            return False
        if not any(r.outcome is Outcome.PENDING for r in results.values()):
            return True
        worst = max((r.worst for r in results.values()), default=Disruption.NONE)
        if worst > self.options.max_disruption:
            states = ", ".join(
                r.state for r in results.values() if r.worst > self.options.max_disruption
            )
            self._end(
                NodeStatus.REFUSED,
                f"the plan may cost {worst.word} ({states}), and --max-disruption is "
                f"{self.options.max_disruption.word}; allow it or leave these states out",
            )
            return False
        if self._other_lock(ledger):
            lock = ledger.lock
            raise LockHeld(
                lock.told() if lock else "held", fix="wait, or break it: gpustate unlock --force"
            )
        return True

    def _other_lock(self, ledger: Ledger) -> bool:
        """Somebody else holds the node, as far as can be told; a dead run of ours holds nothing."""
        lock = ledger.lock
        if lock is None or not ledger.locked or lock.run == self.options.run:
            return False
        return not self._dead(ledger)

    def _dead(self, ledger: Ledger) -> bool:
        """The run that holds the lock is known to be dead."""
        lock, program = ledger.lock, ledger.program
        if lock is None or lock.reason != "apply":
            return False
        if program is not None and program.run.startswith(lock.run) and not program.alive:
            return True
        mine = lock.holder == self.options.holder.name
        return mine and not self.options.holder.alive(lock.holder, lock.pid)

    def _announced(self, results: Mapping[str, StateResult]) -> dict[str, Disruption]:
        saved = (self.options.announced or {}).get(self.result.name)
        if saved is not None:
            return dict(saved)
        return {
            r.state: r.worst
            for r in results.values()
            if r.outcome in (Outcome.PENDING, Outcome.KNOWN_AFTER)
        }

    # --- stages ------------------------------------------------------------------------

    def _stages(
        self,
        look: Look,
        ledger: Ledger,
        results: dict[str, StateResult],
        announced: Mapping[str, Disruption],
    ) -> None:
        settled: dict[str, StateResult] = {}
        rebooted_for: set[str] = set()
        for stage in range(1, _MAX_STAGES + 1):
            self._refuse_what_exceeds(results, announced, settled)
            todo = [s for s in self.states if results[s.name].outcome is Outcome.PENDING]
            if todo:
                self._check_stop()
                look, ledger, record = self._run_stage(stage, todo, look, ledger, results)
                self._settle(todo, look, record, results, settled)
            elif not self._reboot(look, results, rebooted_for):
                break
            else:
                settled = {
                    n: r for n, r in settled.items() if r.outcome is not Outcome.REBOOT_PENDING
                }
                look, ledger = self._look(
                    f"timeout 120 systemctl is-system-running --wait; {self._release()}"
                )
                self._settle_reboot(look, results, settled)
            results = make.make(self.states, look, settled)
            self._keep(look, results)
            if any(r.outcome is Outcome.INTERRUPTED for r in settled.values()):
                break
        else:
            raise StepFailed(
                "after ten stages there is still something to do; a state does not converge"
            )
        self._judge(results)

    def _refuse_what_exceeds(
        self,
        results: dict[str, StateResult],
        announced: Mapping[str, Disruption],
        settled: dict[str, StateResult],
    ) -> None:
        """Stop rather than do more than the plan said."""
        for name, result in list(results.items()):
            beyond = make.exceeds(result, announced)
            if beyond is not None:
                results[name] = settled[name] = StateResult(
                    name,
                    Outcome.REFUSED,
                    result.plan,
                    reason=f"{beyond}; plan again",
                    proof=result.proof,
                )

    def _run_stage(
        self,
        stage: int,
        todo: Sequence[AnyState],
        look: Look,
        ledger: Ledger,
        results: Mapping[str, StateResult],
    ) -> tuple[Look, Ledger, journal.Record]:
        names = {state.name for state in todo}
        blocks = tuple(
            ops.Block(
                state.name,
                tuple(n for n in make.must_hold_first(state, self.states) if n in names),
                tuple(state.apply(look.seen[state.name], results[state.name].plan)),
            )
            for state in todo
        )
        program = ops.compile_program(blocks)
        more = any(r.outcome is Outcome.KNOWN_AFTER for r in results.values())
        reboot = any(isinstance(step, ops.Reboot) for block in blocks for step in block.steps)
        record = journal.Record()
        if program.steps:
            self._say("started", f"stage {stage}: {', '.join(sorted(names))}")
            self._run_program(
                f"{self.options.run}-{stage}", program, ledger, record, keep_lock=more or reboot
            )
        if record.died:
            self._note_death(record)
        self._say("verifying")
        look, ledger = self._look_again(self._release())
        return look, ledger, record

    def _release(self) -> str:
        """sh that lets go of a lock that was kept from one stage to the next."""
        return f'[ "$(cat $G/lock/run)" = {self.options.run} ] && rm -rf $G/lock'

    def _look_again(self, release: str) -> tuple[Look, Ledger]:
        """Look even when Ctrl-C was seen: what was done has to be told."""
        stop, self.stop = self.stop, lambda: False
        try:
            return self._look(release)
        finally:
            self.stop = stop

    def _note_death(self, record: journal.Record) -> None:
        steps = [r.unfinished_step for r in record.states.values() if r.unfinished_step]
        where = f" in the middle of: {steps[-1]}" if steps else ""
        self.result.notes.append(f"the node program was killed{where}")

    def _lock(self) -> dict[str, Any]:
        now = int(time.time())
        holder = self.options.holder
        return {
            "run": self.options.run,
            "holder": holder.name,
            "pid": holder.pid,
            "reason": "apply",
            "plan": self.options.plan_id,
            "since": now,
            "expires": now + LOCK_TTL_S,
        }

    def _run_program(
        self,
        run: str,
        program: ops.Program,
        ledger: Ledger,
        record: journal.Record,
        *,
        keep_lock: bool,
    ) -> None:
        take_over = ledger.lock.run if ledger.lock is not None and self._dead(ledger) else None
        try:
            entries = self.session.run_program(
                run, program, self._lock(), keep_lock=keep_lock, take_over=take_over, stop=self.stop
            )
            for entry in entries:
                self._entry(entry, record, program)
        except StepFailed as error:
            if error.message.startswith("lock held "):
                lock = read_lock(error.message.removeprefix("lock held "))
                raise LockHeld(lock.told() if lock else "somebody holds the node") from error
            raise
        except ConnectionFailed as error:
            self._say("note", f"{error}; connecting again")
            self._follow(run, program, record)

    def _entry(self, entry: dict[str, Any], record: journal.Record, program: ops.Program) -> None:
        began = record.take(entry, program)
        if began is not None:
            self._say("step", began[1], began[0])

    def _follow(self, run: str, program: ops.Program, record: journal.Record) -> None:
        """Take up a program that goes on without us; it is started once, whatever the network does."""
        problem: GpustateError = ConnectionFailed("the connection broke while the node worked")
        for attempt in range(_MAX_RECONNECTS):
            self.session.close()
            gevent.sleep(min(10.0, 0.5 * 2**attempt))
            try:
                self.session.connect()
                for entry in self.session.follow(run, record.offset, stop=self.stop):
                    self._entry(entry, record, program)
                return
            except StepFailed as error:
                raise StepFailed(
                    "the connection broke before the node had the program; nothing was done",
                    fix="run again",
                ) from error
            except (ConnectionFailed, ProbeError) as error:
                problem = error
        raise ConnectionFailed(
            f"{problem.message}; the node finishes its steps by itself",
            fix="run the same command again, or gpustate resume: it takes up where the node is",
        )

    # --- judging -----------------------------------------------------------------------

    def _settle(
        self,
        todo: Sequence[AnyState],
        look: Look,
        record: journal.Record,
        results: Mapping[str, StateResult],
        settled: dict[str, StateResult],
    ) -> None:
        """What became of the states of a stage; the node's word decides."""
        for state in todo:
            planned = results[state.name]
            said = record.states.get(state.name, journal.StateRecord())
            settled[state.name] = self._settled(state, planned, said, record, look)
            outcome = settled[state.name]
            self._say("result", outcome.outcome.value, state.name)

    def _settled(
        self,
        state: AnyState,
        planned: StateResult,
        said: journal.StateRecord,
        record: journal.Record,
        look: Look,
    ) -> StateResult:
        def result(outcome: Outcome, reason: str = "", evidence: str = "") -> StateResult:
            return StateResult(
                state.name,
                outcome,
                planned.plan,
                reason,
                evidence,
                worst=planned.worst,
                proof=state.proof,
            )

        if said.skipped_because:
            return result(Outcome.NOT_RUN, f"because {said.skipped_because} failed")
        remaining = state.verify(look.seen[state.name]) if state.name in look.seen else None
        if said.failed_step:
            outcome = Outcome.ROLLED_BACK if said.rolled_back else Outcome.FAILED
            evidence = journal.last_lines(said.output)
            reason = f"{said.failed_step} ended with {said.status}: {journal.cause(said.output)}"
            return result(outcome, reason, evidence)
        if remaining is None:
            return result(
                Outcome.FAILED, look.errors.get(state.name, "it could not be probed afterwards")
            )
        if not remaining:
            return result(Outcome.CHANGED)
        if record.stopped:
            return result(Outcome.INTERRUPTED, "stopped before its steps were done")
        if record.died:
            return result(
                Outcome.FAILED, "the node program was killed before it was done; run again"
            )
        wants_reboot = any(
            isinstance(s, ops.Reboot) for s in state.apply(look.seen[state.name], remaining)
        )
        if wants_reboot and all(c.disruption is Disruption.REBOOT for c in remaining.changes):
            return result(Outcome.REBOOT_PENDING, "the rest comes with a reboot")
        return result(
            Outcome.FAILED, f"its steps ran, and it still differs: {_told(remaining.changes)}"
        )

    def _settle_reboot(
        self,
        look: Look,
        results: Mapping[str, StateResult],
        settled: dict[str, StateResult],
    ) -> None:
        for state in self.states:
            if results[state.name].outcome is not Outcome.REBOOT_PENDING:
                continue
            seen = look.seen.get(state.name)
            remaining = state.plan(seen) if seen is not None else None
            if remaining is not None and not remaining:
                settled[state.name] = StateResult(
                    state.name, Outcome.CHANGED, results[state.name].plan, proof=state.proof
                )
            elif remaining is None:
                settled[state.name] = StateResult(
                    state.name,
                    Outcome.FAILED,
                    reason=look.errors.get(state.name, ""),
                    proof=state.proof,
                )

    def _reboot(self, look: Look, results: dict[str, StateResult], rebooted_for: set[str]) -> bool:
        """Reboot if that is what is left to do; False when it is not, or must not be."""
        waiting = [s for s in self.states if results[s.name].outcome is Outcome.REBOOT_PENDING]
        if not waiting:
            return False
        self._check_stop()
        for state in self.states:
            seen = look.seen.get(state.name)
            blocker = state.reboot_blocker(seen) if seen is not None else None
            if blocker is not None:
                for one in waiting:
                    results[one.name] = StateResult(
                        one.name,
                        Outcome.FAILED,
                        results[one.name].plan,
                        reason=f"it needs a reboot, which is withheld: {state.name}: {blocker}",
                    )
                return False
        again = [s.name for s in waiting if s.name in rebooted_for]
        if again:
            for name in again:
                results[name] = StateResult(
                    name, Outcome.FAILED, results[name].plan, reason="a reboot did not settle it"
                )
            return False
        rebooted_for.update(s.name for s in waiting)
        timeout_s = 900
        for state in waiting:
            seen = look.seen[state.name]
            for step in state.apply(seen, state.plan(seen)):
                if isinstance(step, ops.Reboot):
                    self._say("rebooting", step.reason, state.name)
                    timeout_s = max(timeout_s, step.timeout)
        self._restart_node(timeout_s)
        return True

    def _restart_node(self, timeout_s: int) -> None:
        """Reboot, and wait until the node answers with another boot id."""
        boot = str(self.result.facts.get("boot_id", ""))
        if self.session.node.connection.kind == "local":
            raise StepFailed(
                "this is the machine gpustate runs on; it will not reboot itself",
                fix="reboot it and run again",
            )
        try:
            self.session.shell(
                "sync; (sleep 0.5; systemctl reboot || reboot) >/dev/null 2>&1 &\nexit 0"
            )
        except (ConnectionFailed, ProbeError):
            pass  # it may be gone before it answers
        deadline = time.monotonic() + timeout_s
        self.session.wait_closed(60.0)
        self.session.close()
        last = "it has not answered yet"
        while time.monotonic() < deadline:
            try:
                self.session.connect()
                now = self.session.shell("cat /proc/sys/kernel/random/boot_id", timeout_s=20)
                if now.text.strip() not in ("", boot):
                    self.result.reboots += 1
                    return
                last = "it answers, and has not rebooted yet"
            except (ConnectionFailed, ProbeError) as error:
                last = error.message
            self.session.close()
            gevent.sleep(1.0)
        raise ConnectionFailed(
            f"it did not come back from a reboot within {timeout_s} s ({last})",
            fix="look at its console",
        )

    def _judge(self, results: Mapping[str, StateResult]) -> None:
        """The node's status from what became of its states."""
        self.result.states = list(results.values())
        order = (
            (Outcome.ROLLED_BACK, NodeStatus.ROLLED_BACK),
            (Outcome.FAILED, NodeStatus.FAILED),
            (Outcome.REFUSED, NodeStatus.REFUSED),
            (Outcome.INTERRUPTED, NodeStatus.INTERRUPTED),
            (Outcome.REBOOT_PENDING, NodeStatus.FAILED),
        )
        for outcome, status in order:
            hit = self.result.outcomes(outcome)
            if hit:
                self._end(status, f"{hit[0].state}: {hit[0].reason}")
                return


def _told(changes: Sequence[Change]) -> str:
    """Fields with what they are and should be, short."""

    def short(value: object) -> str:
        text = repr(value)
        return text if len(text) <= 70 else text[:67] + "..."

    return "; ".join(
        f"{c.field} is {'(secret)' if c.secret else short(c.before)}, should be {'(secret)' if c.secret else short(c.after)}"
        for c in changes[:4]
    )
