"""A rollout as it goes on: asks the pure decision, and keeps what it needs to know.

Its thread is the one of the run. Events and ended nodes come from others, one at a time each.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce

from gpustate.core.change import Disruption
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.engine.events import Event
from gpustate.engine.maintenance import out_of_service
from gpustate.engine.turns import Turn
from gpustate.errors import GpustateError
from gpustate.formats import words
from gpustate.rollout.board import (
    ABORT,
    Board,
    Control,
    RolloutProgress,
    packed,
    read_control,
    stronger,
)
from gpustate.rollout.decide import OUTSIDE, Decision, End, Progress, Rollout, decide, never_begins
from gpustate.rollout.signals import Signals
from gpustate.rollout.windows import wait_s

#: Phases of a node, in their order, and how it ends.
PHASES = ("queued", "held", "drained", "changing", "validating", "released", "failed", "skipped")
_LOOK_S = 2.0
_PUBLISH_S = 5.0
_CHECK_S = 60.0
#: Of a reason that is shown.
_WHY_CHARS = 200
#: How long the nodes wait for a place that does not answer.
_VISIT_S = 1.0
_UNTOUCHED = (NodeStatus.REFUSED, NodeStatus.LOCKED)


#: Checks nodes again, by name, with the seconds since the change of each began, and whether it is for the last time: what
#: is wrong with those that are not well.
Check = Callable[[Mapping[str, float], bool], Mapping[str, str]]


def no_check(nodes: Mapping[str, float], last: bool) -> Mapping[str, str]:
    """No check is made."""
    return {}


def cut(
    nodes: Sequence[InventoryNode],
    sizes: Sequence[int] = (),
    canaries: frozenset[str] = frozenset(),
    domains: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """Names of the nodes of each wave.

    Args:
        nodes: in their order.
        sizes: of waves; the last one repeats. Empty: one wave.
        canaries: names of the nodes of a wave of their own before all others.
        domains: NVLink domain of nodes that have one; nodes of a domain come with its first node.
    """
    mates: dict[str, list[str]] = {}
    for node in nodes:
        mates.setdefault((domains or {}).get(node.name) or f" {node.name}", []).append(node.name)
    units = [(names, any(name in canaries for name in names)) for names in mates.values()]
    first = [name for names, canary in units if canary for name in names]
    fleet = [names for names, canary in units if not canary]
    sizes = sizes or [len(nodes)]
    waves: list[list[str]] = []
    for names in fleet:
        size = sizes[min(max(len(waves) - 1, 0), len(sizes) - 1)]
        if not waves or len(waves[-1]) >= size:
            waves.append([])
        waves[-1] += names
    return [first, *waves] if first else waves


@dataclass(slots=True)
class _Shown:
    """What is shown of a node."""

    phase: str = "queued"
    since: str = ""
    why: str = ""


@dataclass(slots=True)
class Waves:
    """One rollout.

    Args:
        rollout: what was asked for.
        run, person: of the run.
        check: checks the nodes done so far during the soak time.
        signals: shared with the maintenance of the nodes.
        boards: where it is shown and controlled, besides the schedulers that the run enters.
        clock: seconds since the epoch.
        say: tells what the rollout does.
        announce: tells that a wave begins, where there are several.
        after: called with every node that has ended.
        survey: the rollout by what its nodes cost: first all are looked at. ``None``: that is known, or does not matter.
    """

    rollout: Rollout
    run: str = ""
    person: str = ""
    check: Check = no_check
    signals: Signals = field(default_factory=Signals)
    boards: tuple[Board, ...] = ()
    clock: Callable[[], float] = time.time
    say: Callable[[str], None] = lambda _: None
    announce: Callable[[str], None] = lambda _: None
    after: Callable[[NodeResult], None] = lambda _: None
    survey: Callable[[Mapping[str, Disruption]], Rollout] | None = None

    _deferred: dict[str, Disruption] = field(default_factory=dict[str, Disruption])
    _progress: Progress = field(default_factory=Progress)
    _decision: Decision = field(default_factory=Decision)
    _began: dict[str, float] = field(default_factory=dict[str, float])
    _shown: dict[str, _Shown] = field(default_factory=dict[str, _Shown])
    _reported: str = ""
    _described: bool = False
    _announced: int = -1
    _looked: float = float("-inf")
    _published: tuple[float, str] = (float("-inf"), "")
    _checking: Future[Mapping[str, str]] | None = None
    _checked_at: float = 0.0
    _last_check: bool = False
    _visiting: Future[None] | None = None
    _request: Control | None = None
    _seen: dict[int, Control | None] = field(default_factory=dict[int, Control | None])
    _desk: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _checker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        now = self._now()
        if self.survey is not None:
            self.rollout = self.rollout.surveyed
        self._shown = {place.name: _Shown(since=now) for place in self.rollout.places}
        self.signals.note = self.note
        self.signals.closed = self._closed
        self.signals.at_work = lambda name: name in self._progress.busy

    # --- the engine's side -------------------------------------------------------------

    def next(self, *, interrupted: bool) -> Turn:
        """What happens now."""
        self._look()
        with self._lock:
            if self.signals.exhausted and not self._progress.stopped:
                self._progress = replace(self._progress, stopped=self.signals.exhausted)
            self._end_survey()
            self._soak()
            self._decision = decide(self.rollout, self._progress, self.clock())
            decision = self._decision
            if interrupted:
                decision = self._decision = replace(
                    decision, start=(), stop="interrupted", why="", over=True
                )
            self.signals.stopped = decision.stop
            busy = self._progress.busy | set(decision.start)
            self._progress = replace(self._progress, busy=busy)
            for name in decision.start:
                self._began[name] = self.clock()
                self._set(name, "queued", "connecting")
            for name, why in never_begins(self.rollout, self._progress, decision.stop).items():
                self._set(name, "skipped", why)
        self._tell(decision)
        if decision.over and not busy:
            self._leave()
        return Turn(decision.start, decision.over, self._wait_s(decision))

    @property
    def surveying(self) -> bool:
        """Nodes that would change are only looked at, and begin again in their wave."""
        return self.survey is not None

    def _end_survey(self) -> None:
        """Once all nodes have been looked at, make waves of those that would change."""
        ended = self._progress.ended
        if self.survey is None or any(p.name not in ended for p in self.rollout.places):
            return
        self.rollout, self.survey = self.survey(self._deferred), None
        counted = {name: end for name, end in ended.items() if name not in self._deferred}
        self._progress = replace(self._progress, ended=counted)

    def _wait_s(self, decision: Decision) -> float:
        wake = _LOOK_S if decision.wake_s is None else decision.wake_s
        return max(0.05, min(wake, _LOOK_S))

    def hear(self, event: Event) -> None:
        """An event of a node that is at work."""
        with self._lock:
            if event.kind == "started":
                self._set(event.node, "changing", event.text)
            elif event.kind == "rebooting":
                self._set(event.node, "changing", f"reboots: {event.text}")
            elif event.kind == "verifying":
                self._set(event.node, "validating", "")
            elif event.kind in ("draining", "releasing", "waiting", "probing"):
                row = self._shown.get(event.node)
                if row is not None:
                    row.why = event.text or event.kind

    def note(self, node: str, phase: str, why: str) -> None:
        """A node's phase, as the maintenance of the nodes tells it."""
        with self._lock:
            self._set(node, phase, why)

    def _closed(self, node: str) -> str:
        """Why a node that has begun must not be taken out of service yet."""
        windows = next((p.windows for p in self.rollout.places if p.name == node), ())
        closed = any(wait_s(some, self.clock()) for some in windows)
        return OUTSIDE if closed else ""

    def ended(self, node: NodeResult) -> None:
        """A node has ended, or waits for its wave."""
        if node.deferred:
            self._deferred[node.name] = node.worst
        else:
            self.after(node)
        end = End.RELEASED
        if node.exit_code:
            end = End.SKIPPED if node.status in _UNTOUCHED else End.FAILED
        if node.status is NodeStatus.ROLLED_BACK and not out_of_service(node):
            end = End.ROLLED_BACK
        with self._lock:
            self._progress = replace(
                self._progress,
                busy=self._progress.busy - {node.name},
                ended={**self._progress.ended, node.name: end},
                wave_ended_at=self.clock(),
            )
            if end is End.SKIPPED and not self.surveying:
                begun = self._progress.busy | self._progress.ended.keys()
                self.rollout = self.rollout.without(node.name, begun)
            phase = End.RELEASED if end is End.ROLLED_BACK else end
            self._set(node.name, "queued" if node.deferred else phase.value, node.reason)

    def returning(self, failed: Sequence[str]) -> frozenset[str]:
        """Nodes of the waves of failed ones, unless so few may fail; what goes back may be taken out of service again."""
        if len(failed) < (self.rollout.max_failures or 1):
            return frozenset()
        self.signals.stopped = ""
        waves = {place.name: place.wave for place in self.rollout.places}
        last = {waves[name] for name in failed if name in waves}
        return frozenset(name for name, wave in waves.items() if wave in last)

    @property
    def stopped(self) -> str:
        """Why it ended early."""
        return self._decision.stop

    # --- control -----------------------------------------------------------------------

    def _places(self) -> list[Board]:
        return [
            *self.boards,
            *(board for board in self.signals.entered if isinstance(board, Board)),
        ]

    def _look(self) -> None:
        """Publish how far it is, and see whether somebody paused or aborted it.

        A server that does not answer is waited for in a thread of its own, so it delays the nodes of others little.
        """
        if self._visiting is None:
            places = self._places()
            if not places or self.clock() - self._looked < _LOOK_S:
                return
            self._looked = self.clock()
            self._visiting = self._desk.submit(self._visit, places)
        wait([self._visiting], _VISIT_S)
        if self._visiting.done():
            self._visiting.result()
            self._visiting = None

    def _visit(self, places: Sequence[Board]) -> None:
        """Take up a request that is new at one place, show it at the others, and publish how far the rollout is.

        A place that cannot be read now keeps the request that it had.
        """
        read: list[Board] = []
        news: list[Control | None] = []
        for board in places:
            text = board.control()
            if text is None:
                continue
            read.append(board)
            control, before = read_control(text, self.run), self._seen.get(id(board))
            if id(board) not in self._seen:
                self._published = (float("-inf"), "")  # a place that shows nothing yet
            self._seen[id(board)] = control
            if control != before:
                news.append(control)
                self._take_up(reduce(stronger, news))
        for board in read:
            request = self._request.text() if self._request else ""
            if self._seen.get(id(board)) != self._request and board.set_control(request):
                self._seen[id(board)] = self._request
        progress = self._news()
        if progress is not None:
            for board in places:
                board.publish(progress)

    def _take_up(self, request: Control | None) -> None:
        """Pause, continue, or end the rollout; an abort is not taken back."""
        if self._request is not None and self._request.action == ABORT:
            return
        self._request = request
        self._published = (float("-inf"), self._published[1])  # whoever asks waits for it
        words = str(request or "")
        aborted = request is not None and request.action == ABORT
        with self._lock:
            self.signals.paused, self.signals.aborted = "" if aborted else words, aborted
            self.signals.stopped = words if aborted else self.signals.stopped
            self._progress = replace(
                self._progress,
                paused=self.signals.paused,
                stopped=self._progress.stopped or (words if aborted else ""),
            )

    # --- soak time ---------------------------------------------------------------------

    def _soak(self) -> None:
        """Check the nodes that are done, every minute and once at the end of the soak time."""
        decision, now = self._decision, self.clock()
        if not decision.soaking or self._progress.stopped:
            return
        if self._checking is not None:
            if not self._checking.done():
                return
            bad = self._checking.result()
            self._checking = None
            if bad:
                words = "; ".join(f"{name}: {why}" for name, why in list(bad.items())[:4])
                stop = f"a check during the soak time failed: {words}"
                self._progress = replace(self._progress, stopped=stop)
                for name, why in bad.items():
                    self._set(name, "failed", f"during the soak time: {why}")
            elif self._last_check:
                self._progress = replace(self._progress, checked=decision.wave)
            return
        late = now - self._progress.wave_ended_at >= self.rollout.soak_s
        if late or now - self._checked_at >= _CHECK_S:
            self._checked_at, self._last_check = now, late
            good = {
                name: now - self._began.get(name, now)
                for name, end in self._progress.ended.items()
                if end is End.RELEASED
            }
            self._checking = self._checker.submit(self._checks, good, late)

    def _checks(self, nodes: Mapping[str, float], last: bool) -> Mapping[str, str]:
        try:
            return self.check(nodes, last) if nodes else {}
        except GpustateError as error:
            return {"the check": str(error)}
        except Exception as error:  # noqa: BLE001  a check that cannot be made must stop the rollout, not hang it
            return {"the check": f"{type(error).__name__}: {error} (a bug in gpustate)"}

    # --- what is shown -----------------------------------------------------------------

    def _now(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _set(self, name: str, phase: str, why: str) -> None:
        row = self._shown.get(name)
        if row is None:
            return
        if row.phase != phase:
            row.phase, row.since = phase, self._now()
        row.why = words.shorten(" ".join(why.split()), _WHY_CHARS)

    def _tell(self, decision: Decision) -> None:
        if self.survey is None and not self._described:
            self._described = True
            if plan := self.rollout.words:
                self.say(f"waves: {plan}")
        words = decision.stop and f"no further node is started: {decision.stop}"
        words = words or decision.why
        if words and words != self._reported:
            self.say(words)
        self._reported = words
        if decision.start and decision.wave != self._announced:
            self._announced = decision.wave
            sizes = self.rollout.wave_sizes
            if len(sizes) > 1:
                size = sizes[decision.wave]
                self.announce(
                    f"wave {decision.wave + 1} of {len(sizes)}: {size} node{'s' * (size != 1)}"
                )

    @property
    def state(self) -> str:
        """What the rollout is doing, in one word."""
        if self._decision.stop:
            return "stopping" if self._progress.busy else "stopped"
        if self._progress.paused:
            return "paused"
        if self._decision.soaking:
            return "soaking"
        if self._decision.over and not self._progress.busy:
            return "done"
        return "waiting" if self._decision.wake_s and not self._progress.busy else "running"

    def document(self) -> RolloutProgress:
        """How far it is."""
        with self._lock:
            waves = {place.name: place.wave for place in self.rollout.places}
            return {
                "format": "gpustate.rollout/1",
                "run": self.run,
                "person": self.person,
                "state": self.state,
                "why": self._decision.stop or self._decision.why,
                "request": self._request.text() if self._request else "",
                "updated": self._now(),
                "wave": self._decision.wave + 1,
                "waves": max(waves.values(), default=0) + 1,
                "nodes": {
                    name: {
                        "phase": row.phase,
                        "since": row.since,
                        "why": row.why or self._waits_for(name, waves[name], row.phase),
                        "wave": waves[name] + 1,
                    }
                    for name, row in self._shown.items()
                },
            }

    def _waits_for(self, name: str, wave: int, phase: str) -> str:
        """Why a node that has not begun waits."""
        if phase != "queued" or name in self._progress.busy:
            return ""
        if wave > self._decision.wave:
            return f"waits for wave {wave}"
        return self._decision.why or "waits for a slot"

    def _news(self) -> str | None:
        """What is to be published, after a change and every few seconds at most; ``None``: nothing."""
        at, before = self._published
        if self.clock() - at < _PUBLISH_S:
            return None
        document = self.document()
        text = json.dumps(document, separators=(",", ":"))
        if text.replace(document["updated"], "") == before:
            return None
        self._published = (self.clock(), text.replace(document["updated"], ""))
        return packed(text)

    def _leave(self) -> None:
        """It is over: nothing is shown any more."""
        for board in self._places():
            self._desk.submit(board.publish, "").result()
        self._desk.shutdown()
        self._checker.shutdown(wait=False, cancel_futures=True)
