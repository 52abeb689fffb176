"""Receivers of a run's events and outcome: the event stream, webhooks and the audit log."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from gpustate.clock import timestamp
from gpustate.engine import fleet
from gpustate.engine.events import Event
from gpustate.reporting import audit
from gpustate.reporting.runs import Outcome, Run, one_line
from gpustate.reporting.stream import EventStream

EVENT_FORMAT = "gpustate.event/1"
OUTCOME_FORMAT = "gpustate.outcome/1"


class Watchers:
    """Passes on what happens in one run.

    Args:
        run: it.
        stream: the event stream.
        webhooks: URLs that get the outcome.
        audited: record the run in the audit log.
        warn: prints a warning.
    """

    def __init__(
        self,
        run: Run,
        *,
        stream: EventStream | None,
        webhooks: Sequence[str],
        audited: bool,
        warn: Callable[[str], None],
    ) -> None:
        self.run = run
        self._stream = stream
        self._webhooks = webhooks
        self._audited = audited
        self._warn = warn
        self.started = ""
        self.ended = ""
        self._body = b""

    @property
    def open(self) -> bool:
        """The run has begun and not ended."""
        return bool(self.started) and not self.ended

    def begin(self) -> None:
        """The run begins; everything is checked, and no node is reached yet."""
        self.started = timestamp()
        nodes = f"{self.run.nodes} node{'s' * (self.run.nodes != 1)}"
        text = f"{self.run.verb} {self.run.source} on {nodes}"
        self._write("run-started", text, about=self.run.data())
        if self._audited:
            self._record(audit.started(self.run, born=fleet.born(os.getpid())))

    def event(self, event: Event) -> None:
        """Something happens on a node."""
        if event.kind != "secret":  # only for the user at the terminal
            self._write(event.kind, event.text, event.node, event.state)

    def end(self, outcome: Outcome) -> None:
        """The run has ended."""
        self.ended = timestamp()
        data = outcome.data()
        text = outcome.summary or outcome.error
        self._write("run-ended", text, outcome=data)
        if self._audited:
            self._record(audit.ended(self.run, outcome))
        self._body = one_line(
            {
                "format": OUTCOME_FORMAT,
                "run": self.run.run,
                "started": self.started,
                "ended": self.ended,
                "text": f"gpustate {self.run.verb} {self.run.source}: exit {outcome.exit_code}: {text}",
                "about": self.run.data(),
                "outcome": data,
            }
        )

    def notify(self) -> None:
        """POST the outcome to the webhooks, after everything else: they may be slow."""
        if not self._webhooks or not self._body:
            return
        from gpustate.reporting import post  # urllib's import takes a while

        for url in self._webhooks:
            if reason := post.send(url, self._body):
                self._warn(reason)

    def _write(self, kind: str, text: str, node: str = "", state: str = "", **more: Any) -> None:
        if self._stream is None:
            return
        self._stream.write(
            {
                "format": EVENT_FORMAT,
                "time": timestamp(),
                "run": self.run.run,
                "node": node,
                "kind": kind,
                "state": state,
                "text": text,
                **more,
            }
        )

    def _record(self, entry: dict[str, object]) -> None:
        try:
            audit.append(entry)
        except OSError as error:
            self._warn(f"audit log: cannot write {audit.path()} ({error.strerror or error})")
