"""Connection to a node that survives network failures: a started program continues on the node.

Probes change nothing and are repeated. A program starts only once: the node itself ensures that, so a start
may be repeated, and a running program is followed from the last journal entry that was received.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from gpustate import ops
from gpustate.engine import journal
from gpustate.engine.ledger import ONCE
from gpustate.errors import ConnectionFailed, GpustateError, ProbeError, StepFailed
from gpustate.ops.program import Entry
from gpustate.remote.nodeprogram import LockInfo
from gpustate.remote.session import Session, Silence, longest_silence_s

T = TypeVar("T")

#: Attempts to reconnect before giving up: half a minute, plus the time to connect.
_MAX_RECONNECTS = 7
#: No attempt to repeat a probe begins after so long: a node may take the connection each time, and stall.
REPEAT_S = 120.0


class Say(Protocol):
    """Reports an event: kind, text, state."""

    def __call__(self, kind: str, text: str = "", state: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Link:
    """A node's session, reconnected when it breaks.

    Args:
        session: connected.
        say: reports broken connections and steps that start.
        stop: polled; once true, a program ends after its current step.
    """

    session: Session
    say: Say
    stop: Callable[[], bool]

    def repeat(self, work: Callable[[], T]) -> T:
        """Do something that may be repeated, and repeat it if the connection breaks.

        Raises:
            ConnectionFailed: the connection cannot be restored, or the node answers too slowly.
        """
        try:
            return work()
        except ConnectionFailed as error:
            if self.session.still_connected():
                raise
            problem = error
        self.say("note", f"{problem}; reconnecting")
        end = time.monotonic() + REPEAT_S
        for wait_s in _waits_s():
            if time.monotonic() > end:
                break
            self.session.close()
            time.sleep(wait_s)
            try:
                self.session.connect()
                return work()
            except ConnectionFailed as error:
                problem = error
        raise problem

    def upload(self, program: ops.Program) -> None:
        """Upload the files that a program needs; partial uploads are continued.

        Raises:
            ConnectionFailed, StepFailed: the upload failed.
        """
        for state, step in program.steps:
            if isinstance(step, ops.Upload):
                from gpustate.remote import upload

                self.say("step", step.label, state)
                self.repeat(partial(upload.send, self.session, step))

    def run(
        self,
        run: str,
        program: ops.Program,
        record: journal.Record,
        *,
        lock: LockInfo,
        keep_lock: bool,
        take_over: str | None,
        after: str,
    ) -> None:
        """Run a program on the node; see :meth:`gpustate.remote.session.Session.run_program`."""

        def start() -> None:
            entries = self.session.run_program(
                run,
                program,
                lock,
                keep_lock=keep_lock,
                take_over=take_over,
                after=after,
                stop=self.stop,
            )
            self._take(entries, record, program)

        try:
            start()
        except ConnectionFailed as error:
            self.follow(run, program, record, start, error)

    def follow(
        self,
        run: str,
        program: ops.Program,
        record: journal.Record,
        start: Callable[[], None] | None = None,
        problem: GpustateError | None = None,
    ) -> None:
        """Follow a program that continues on the node.

        Args:
            run: id of its run.
            program: the program.
            record: its journal so far.
            start: starts it, in case it never reached the node.
            problem: why it is no longer followed.
        """
        if problem is not None and not isinstance(problem, Silence):
            self.say("note", f"{problem}; reconnecting")
        problem = problem or ConnectionFailed("the connection broke while the node was working")
        waits_s = _waits_s()
        # Where the node is connected and silent for longer than any step takes, another connection hears no more.
        while not isinstance(problem, Silence) and (wait_s := next(waits_s, None)) is not None:
            self.session.close()
            time.sleep(wait_s)
            offset = record.offset
            try:
                self.session.connect()
                self._follow_or_start(run, program, record, start)
            except (ConnectionFailed, ProbeError) as error:
                problem = error
            else:
                return
            if record.offset > offset:  # progress was made, so the attempts start over
                waits_s = _waits_s()
        raise ConnectionFailed(
            f"{problem.message}; steps that the node has received run to their end there if it is up, "
            "but nothing validates it or returns it to service",
            fix="once it answers, run the same command again: it continues where the node is",
        )

    def hand_over(self, states: Iterable[str]) -> None:
        """Show secrets that steps left for the user; they bypass journal and documents."""
        for state in states:
            path = shlex.quote(f"{ONCE}/{state}")
            answer = self.repeat(partial(self.session.shell, f"cat {path}"))
            if answer.status == 0:
                self.say("secret", answer.text.strip(), state)
                self.session.shell(f"rm -f {path}")

    def _follow_or_start(
        self,
        run: str,
        program: ops.Program,
        record: journal.Record,
        start: Callable[[], None] | None,
    ) -> None:
        try:
            entries = self.session.follow(
                run, record.offset, stop=self.stop, quiet_s=longest_silence_s(program)
            )
            self._take(entries, record, program)
        except StepFailed as error:
            if start is None:
                raise StepFailed(
                    f"run {run} cannot be followed to its end ({error.message})",
                    fix="run the same command again",
                ) from error
            start()

    def _take(self, entries: Iterable[Entry], record: journal.Record, program: ops.Program) -> None:
        for entry in entries:
            began = record.take(entry, program)
            if began is not None:
                self.say("step", began[1], began[0])


def _waits_s() -> Iterator[float]:
    """Seconds to wait before each attempt to connect again."""
    return (min(10.0, 0.5 * 2**attempt) for attempt in range(_MAX_RECONNECTS))
