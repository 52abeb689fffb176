"""Progress of a run: one line per active node on a terminal, plain lines otherwise."""

from __future__ import annotations

import os
import sys
from collections import Counter
from types import TracebackType
from typing import Any

from gpustate.core.inventory import DEFAULT_STATE_FOLDER
from gpustate.engine.events import Event
from gpustate.formats.words import cut, printable

_SHOWN = 20
#: Steps that write gpustate's own files, of which a validation has dozens, are only in the stream of events.
_OWN_FILES = f"write {DEFAULT_STATE_FOLDER}/"
#: What nodes at work are doing, by their newest event.
_PHASES = {
    "draining": "draining",
    "started": "changing",
    "step": "changing",
    "result": "changing",
    "verifying": "validating",
    "rebooting": "rebooting",
    "releasing": "releasing",
    "waiting": "waiting",
}
_PLAIN = (
    *("started", "step", "result", "draining", "rebooting", "releasing"),
    *("waiting", "note", "finished"),
)


class Progress:
    """Listens to a run's events.

    Args:
        nodes: names of all nodes of the run.
        quiet: print nothing but important messages.
    """

    def __init__(self, nodes: list[str], *, quiet: bool = False) -> None:
        self._nodes = nodes
        self._quiet = quiet
        self._busy: dict[str, str] = {}
        self._phases: dict[str, str] = {}
        self._wave = ""
        self._done = 0
        self._failed = 0
        self._live: Any = None
        self._width = max((len(name) for name in nodes), default=0)

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._quiet = True

    def say(self, text: str) -> None:
        """Print a line beside the progress."""
        line = printable(text)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(f"gpustate: {line}", file=sys.stderr, flush=True)

    def event(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "secret":
            self.say(f"{event.node}: {event.state}: {event.text}")
            return
        if event.kind in ("wave", "rollout"):
            if event.kind == "wave":
                self._wave = event.text
            if not self._quiet:
                self.say(event.text)
            return
        if event.kind in ("planned", "finished"):
            self._busy.pop(event.node, None)
            self._phases.pop(event.node, None)
            self._done += event.kind == "finished"
            self._failed += event.kind == "finished" and event.text != "ok"
        else:
            if event.kind != "probing" or event.node not in self._phases:
                self._phases[event.node] = _PHASES.get(event.kind, "probing")
            text = f"{event.state}: {event.text}" if event.state else event.text or event.kind
            self._busy[event.node] = (
                text if event.kind != "result" else f"{event.state} {event.text}"
            )
        if self._live is not None:
            self._live.update(self._table())
        elif not self._quiet and event.kind in _PLAIN and not event.text.startswith(_OWN_FILES):
            state = f" {event.state}:" if event.state else ""
            text = event.text or event.kind
            print(
                printable(f"{event.node:<{self._width}} {event.kind}{state} {text}"),
                file=sys.stderr,
                flush=True,
            )

    def _counts(self) -> list[str]:
        """How many nodes are in each phase."""
        counts = Counter(self._phases.values())
        order = ("probing", *dict.fromkeys(_PHASES.values()))
        words = ", ".join(f"{counts[phase]} {phase}" for phase in order if counts[phase])
        return [words] if words else []

    def _table(self) -> Any:
        from rich.text import Text

        lines = Text()
        failed = f", {self._failed} not ok" if self._failed else ""
        counted = f"{self._done} of {len(self._nodes)} nodes done{failed}"
        parts = [counted, *([self._wave] if self._wave else []), *self._counts()]
        lines.append("; ".join(parts) + "\n", style="bold")
        for name, step in list(self._busy.items())[:_SHOWN]:
            lines.append(f"{name:<{self._width}} ", style="cyan")
            lines.append(f"{printable(cut(step, 100))}\n")
        if len(self._busy) > _SHOWN:
            lines.append(f"... and {len(self._busy) - _SHOWN} more\n", style="dim")
        return lines
