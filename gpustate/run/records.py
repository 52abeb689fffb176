"""What the controller remembers of a run, so that it can be gone on with.

One small JSON file a run in ``$XDG_STATE_HOME/gpustate/runs``: what was asked for, never a
password. Everything about nodes is on the nodes; a lost record costs nothing but the short
command.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpustate.errors import UsageError
from gpustate.model.change import Disruption

_FORMAT = "gpustate.run/1"
_KEPT = 50


def folder() -> Path:
    """Where records are."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "gpustate" / "runs"


def path_of(run: str) -> Path:
    """Where the record of a run is."""
    return folder() / f"{run}.json"


def begin(run: str, verb: str, source: str, options: dict[str, Any]) -> Path | None:
    """Write a run down; ``None`` when there is no place for it, which keeps nobody from running."""
    kept = {
        key: value.word if isinstance(value, Disruption) else value
        for key, value in options.items()
        if not callable(value)
    }
    for key in ("inventory", "private_key", "bundle"):
        if isinstance(kept.get(key), str) and os.path.exists(kept[key]):
            kept[key] = os.path.abspath(kept[key])
    data = {
        "format": _FORMAT,
        "run": run,
        "verb": verb,
        "source": os.path.abspath(source) if os.path.exists(source) else source,
        "directory": os.getcwd(),
        "options": kept,
        "pid": os.getpid(),
        "ended": False,
    }
    path = path_of(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        for old in sorted(path.parent.glob("*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def end(path: Path | None, *, interrupted: bool) -> None:
    """Mark a run as over, unless it is to be gone on with."""
    if path is None or interrupted:
        return
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["ended"] = True
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError):
        return


def load(run: str | None) -> dict[str, Any]:
    """Read the record of a run, of the newest unfinished one when none is named.

    Raises:
        UsageError: there is no such run, naming those there are.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder().glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(data, dict) and data.get("format") == _FORMAT and _is_whole(data):
            found[data["run"]] = data
    unfinished = [name for name, data in found.items() if not data.get("ended")]
    if run is None:
        if not unfinished:
            raise UsageError("no run is waiting to be resumed")
        return found[unfinished[-1]]
    if run not in found:
        known = ", ".join(unfinished[-5:]) or "none"
        raise UsageError(
            f"no run {run!r} is known here (unfinished: {known})",
            fix="apply the policy again instead",
        )
    return found[run]


def _is_whole(data: dict[str, Any]) -> bool:
    """A record that was cut short, or edited, is none."""
    texts = ("run", "verb", "source", "directory")
    return isinstance(data.get("options"), dict) and all(
        isinstance(data.get(k), str) for k in texts
    )
