"""Records of runs on the controller: user, command, reason and result, so that a run can be resumed.

One small JSON file per run in ``$XDG_STATE_HOME/gpustate/runs``, readable only by its owner: the request, never
a secret. The state of nodes is on the nodes, so without the record the same command has the same effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, TypeGuard

from gpustate.core.change import Disruption
from gpustate.documents import Json
from gpustate.errors import UsageError
from gpustate.files import write_private
from gpustate.formats.masking import mask_data

_FORMAT = "gpustate.run/1"
_MOST_RECORDS = 50
_CHANGING = ("apply", "upgrade", "rollback", "remove")


class RunOutcome(TypedDict, total=False):
    """What became of a run; ``nodes`` has the status of each."""

    exit_code: int
    summary: str
    ended: str
    nodes: dict[str, str]
    skipped: list[str]


class RunRecord(TypedDict):
    """The record of a run; ``options`` are those of its command."""

    format: str
    run: str
    verb: str
    source: str
    directory: str
    options: Json
    person: NotRequired[str]
    reason: NotRequired[str]
    created: NotRequired[str]
    digest: NotRequired[str]
    nodes: NotRequired[list[str]]
    pid: NotRequired[int]
    born: NotRequired[str]
    ended: NotRequired[bool]
    outcome: NotRequired[RunOutcome]


def folder() -> Path:
    """The folder of the records."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "gpustate" / "runs"


def path_of(run: str) -> Path:
    """The file of a run's record."""
    return folder() / f"{run}.json"


def beside(run: str, name: str) -> Path:
    """A file of a run beside its record, of which ``name`` is the suffix."""
    return folder() / f"{run}.{name}"


def begin(
    run: str,
    verb: str,
    source: str,
    options: Json,
    *,
    person: str,
    born: str,
    created: str,
    digest: str = "",
    nodes: Sequence[str] = (),
) -> Path | None:
    """Record a run; ``None`` if the record cannot be written, which does not stop the run.

    Args:
        run: id of the run.
        verb, source, options: the command.
        person: the user who runs it.
        born: start time of this process, see :class:`gpustate.engine.gate.Controller`.
        created: the present time.
        digest: SHA-256 of the file ``source``; empty if it is not a file.
        nodes: names of its nodes.
    """
    saved_options = {
        key: value.word if isinstance(value, Disruption) else value
        for key, value in options.items()
        if not callable(value)
    }
    for key in ("private_key", "bundle"):
        if isinstance(saved_options.get(key), str) and os.path.exists(saved_options[key]):
            saved_options[key] = os.path.abspath(saved_options[key])
    if isinstance(saved_options.get("inventory"), str):
        saved_options["inventory"] = inventory_of(saved_options["inventory"])
    data: RunRecord = {
        "format": _FORMAT,
        "run": run,
        "verb": verb,
        "source": os.path.abspath(source) if os.path.exists(source) else source,
        "directory": os.getcwd(),
        "person": person,
        "reason": options.get("reason") or "",
        "created": created,
        "options": saved_options,
        "digest": digest,
        "nodes": list(nodes),
        "pid": os.getpid(),
        "born": born,
        "ended": False,
    }
    path = path_of(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, data)
        for old in sorted(path.parent.glob("*.json"))[:-_MOST_RECORDS]:
            for file in (old, old.with_suffix(".progress"), old.with_suffix(".control")):
                file.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def _write(path: Path, data: RunRecord) -> None:
    """Write a record atomically."""
    write_private(path, (json.dumps(mask_data(data), indent=2) + "\n").encode())


def inventory_of(source: str) -> str:
    """An inventory's absolute path, so that records of one inventory can be compared."""
    return os.path.abspath(source) if os.path.exists(source) else source


def end(path: Path | None, *, interrupted: bool, outcome: RunOutcome | None = None) -> None:
    """Record the result of a run; an interrupted one can be resumed."""
    if path is None:
        return
    try:
        data: RunRecord = json.loads(path.read_text(encoding="utf-8"))
        data["ended"] = not interrupted
        if outcome is not None:
            data["outcome"] = outcome
        _write(path, data)
    except (OSError, ValueError):
        return


def known() -> list[RunRecord]:
    """All runs, oldest first."""
    return list(_all().values())


def started() -> list[RunRecord]:
    """Runs that have not ended, oldest first."""
    return [data for data in _all().values() if not data.get("ended")]


def unfinished(at_work: Callable[[int, str], bool]) -> list[RunRecord]:
    """Runs that can be resumed, oldest first; without those whose nodes later runs have brought to their end.

    Args:
        at_work: a process still runs, by its id and start time.
    """
    converged: dict[object, set[str]] = {}
    objects: set[object] = set()  # inventories whose clusters a later run has brought to their end
    resumable: list[RunRecord] = []
    for data in reversed(_all().values()):
        inventory = data["options"].get("inventory")
        good = converged.setdefault(inventory, set())
        became = _outcomes(data)
        pending = {str(name) for name in data.get("nodes") or became if became.get(name) != "ok"}
        # Without such a node, the run was interrupted in the cluster.
        superseded = pending <= good if pending else inventory in objects
        # An interrupted one has also changed templates of pods there, and a run of nodes alone leaves these as they are.
        superseded &= inventory in objects or not data["options"].get("cluster_objects")
        succeeded = data.get("ended") and data.get("outcome", RunOutcome()).get("exit_code") == 0
        if succeeded and data["options"].get("cluster_objects"):
            objects.add(inventory)
        good |= {name for name, status in became.items() if status == "ok"}
        alive = at_work(_number(data.get("pid")), str(data.get("born", "")))
        if not (data.get("ended") or superseded or alive):
            resumable.append(data)
    return resumable[::-1]


def _outcomes(data: RunRecord) -> Mapping[str, str]:
    """What became of the nodes of a run, by name; empty: it is not known."""
    outcome = data.get("outcome")
    nodes = outcome.get("nodes") if isinstance(outcome, dict) else None
    return nodes if isinstance(nodes, dict) else {}


def load(run: str) -> RunRecord:
    """Read the record of a run.

    Raises:
        UsageError: there is no such run; the message lists the unfinished ones.
    """
    rows = _all()
    if run not in rows:
        names = [name for name, data in rows.items() if not data.get("ended")]
        unfinished_runs = ", ".join(names[-5:]) or "none"
        raise UsageError(
            f"no run {run!r} on this machine (unfinished: {unfinished_runs})",
            fix="list all runs: gpustate rollout history; unfinished ones: gpustate rollout resume --list",
        )
    return rows[run]


def newest(nodes: Collection[str]) -> RunRecord | None:
    """The record of the newest run that reached one of some nodes, or has not ended."""
    for data in reversed(_all().values()):
        reached = data.get("outcome", RunOutcome()).get("nodes") or data.get("nodes")
        if reached is None or not set(nodes).isdisjoint(reached):
            return data
    return None


def last_change(inventory: str, newest: str = "") -> RunRecord | None:
    """The newest record of a run that changes nodes of an inventory.

    Args:
        inventory: its source.
        newest: the record of this run instead, if there is one.
    """
    rows = _all()
    if newest in rows and rows[newest]["verb"] in _CHANGING:
        return rows[newest]
    return next(_changes(inventory), None)


def last_policy(inventory: str) -> str:
    """The file of the policy that was last applied to nodes of an inventory; empty if there is none."""
    return next(filter(None, map(policy_of, _changes(inventory))), "")


def policy_of(record: RunRecord) -> str:
    """The file of a run's policy; empty if it applied a single state or a saved plan, or the file is gone."""
    source = record["source"]
    is_policy = record["verb"] in ("apply", "upgrade") and not source.endswith(".json")
    return source if is_policy and os.path.isfile(source) else ""


def _changes(inventory: str) -> Iterator[RunRecord]:
    """Records of runs that change nodes of an inventory, the newest first."""
    for data in reversed(_all().values()):
        same = data["options"].get("inventory") == inventory_of(inventory)
        if data["verb"] in _CHANGING and same:
            yield data


def _all() -> dict[str, RunRecord]:
    rows: dict[str, RunRecord] = {}
    for path in sorted(folder().glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if _is_whole(data):
            rows[data["run"]] = data
    return rows


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _is_whole(data: object) -> TypeGuard[RunRecord]:
    """The record is complete, not truncated or edited."""
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return False
    texts = (data.get(key) for key in ("run", "verb", "source", "directory"))
    return isinstance(data.get("options"), dict) and all(isinstance(text, str) for text in texts)
