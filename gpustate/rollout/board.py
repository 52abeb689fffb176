"""Where a rollout shows how far it is, and where it is asked to pause or to end.

On the controller that is two small files beside the run's record; in a cluster two annotations of the Lease of the
run. A rollout takes up a request that is new at one of these places, and shows it at the others.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from gpustate.engine import records
from gpustate.files import write_private

PAUSE, ABORT = "pause", "abort"
_PLAIN_CHARS = 100_000


class NodeProgress(TypedDict):
    """How far a node is; ``wave`` counts from one."""

    phase: str
    since: str
    why: str
    wave: int


class RolloutProgress(TypedDict):
    """How far a rollout is, as it is published."""

    format: str
    run: str
    person: str
    state: str
    why: str
    request: str
    updated: str
    wave: int
    waves: int
    nodes: dict[str, NodeProgress]


@dataclass(frozen=True, slots=True)
class Control:
    """A request to a rollout.

    Args:
        run: id of the run that it is for.
        action: ``pause`` or ``abort``.
        person: who asks, user@host.
        since: when, in UTC.
    """

    run: str
    action: str
    person: str
    since: str

    def __str__(self) -> str:
        word = "paused" if self.action == PAUSE else "aborted"
        return f"{word} by {self.person} {'at' if self.action == ABORT else 'since'} {self.since}"

    def text(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), sort_keys=True)


def stronger(first: Control | None, second: Control | None) -> Control | None:
    """Which of two requests counts: an abort before a pause, a pause before none."""
    rank = {ABORT: 2, PAUSE: 1}
    return max(first, second, key=lambda control: rank[control.action] if control else 0)


def read_control(text: str, run: str) -> Control | None:
    """The request to a run; ``None``: there is none for this run, or it cannot be read."""
    try:
        data = json.loads(text or "{}")
        control = Control(**{key: str(data[key]) for key in Control.__slots__})
    except (ValueError, KeyError, TypeError):
        return None
    return control if control.run == run and control.action in (PAUSE, ABORT) else None


def packed(progress: str) -> str:
    """Progress as it is published: annotations of an object have 256 KiB at most, so that of many nodes is compressed."""
    if len(progress) <= _PLAIN_CHARS:
        return progress
    return base64.b64encode(zlib.compress(progress.encode())).decode()


def read_progress(text: str) -> RolloutProgress | None:
    """What a rollout has published; ``None``: nothing that can be read."""
    try:
        if text and not text.startswith("{"):
            text = zlib.decompress(base64.b64decode(text, validate=True)).decode()
        data: RolloutProgress | None = json.loads(text or "null")
    except (ValueError, zlib.error):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("nodes"), dict) else None


@runtime_checkable
class Board(Protocol):
    """One place."""

    def publish(self, progress: str) -> None:
        """Show how far the rollout is; a place that cannot be written is left as it is."""

    def control(self) -> str | None:
        """The request, as it is stored; empty: there is none. ``None``: the place cannot be read now."""
        ...

    def set_control(self, control: str) -> bool:
        """Show a request, empty: none; whether it is shown now."""
        ...


class RecordBoard:
    """The files beside the record of a run on the controller.

    Args:
        run: id of the run.
    """

    def __init__(self, run: str) -> None:
        self._progress = records.beside(run, "progress")
        self._control = records.beside(run, "control")

    def publish(self, progress: str) -> None:
        """Write the progress; at the end both files go."""
        try:
            if progress:
                write_private(self._progress, progress.encode())
            else:
                self._progress.unlink(missing_ok=True)
                self._control.unlink(missing_ok=True)
        except OSError:
            return

    def control(self) -> str | None:
        """The request."""
        return _read(self._control)

    def set_control(self, control: str) -> bool:
        """Write it."""
        try:
            self.ask(control)
        except OSError:
            return False
        return True

    def progress(self) -> str:
        """What was published last."""
        return _read(self._progress) or ""

    def ask(self, control: str) -> None:
        """Leave a request; empty: take it back.

        Raises:
            OSError: it cannot be written.
        """
        if control:
            write_private(self._control, control.encode())
        else:
            self._control.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None
