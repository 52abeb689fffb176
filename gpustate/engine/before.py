"""What runs changed from: a record on the node for each run, and the states that take the node back there. Pure.

A record is made from the first probe of a run, before anything is changed. Per state it holds the parameters that the
run applies, whether nothing of the state was on the node, whether the state had nothing to do, and what it observed.
A rollback is a policy made from these records: a state that was not there is removed, one that had nothing to do
keeps its parameters, and any other one gets the parameters of the run before, with exact versions of packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpustate import shell
from gpustate.core.building import build, parameters
from gpustate.core.change import Change
from gpustate.core.encode import plain
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState, State
from gpustate.documents import Json, JsonView
from gpustate.errors import GpustateError
from gpustate.formats.masking import MASK, mask, mask_data, with_secrets
from gpustate.plan.make import Observations, SeenBy, observed_data

T = TypeVar("T")

FORMAT = "gpustate.before/1"
#: Begins lines that follow a record: a state whose steps began, and one that took all of them back itself.
_CHANGED, _UNCHANGED = "changed ", "unchanged "
_RUN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


@dataclass(frozen=True, slots=True)
class StateBefore:
    """One state when a run began.

    Args:
        parameters: those that the run applied, secrets masked.
        absent: nothing of the state was on the node.
        settled: the run had nothing to do for it.
        pinned: parameters that pin what was observed.
        observed: what was observed, secrets masked.
        left: texts of files, by field of the observation, as the run leaves them; none with a secret.
    """

    parameters: JsonView
    absent: bool = False
    settled: bool = False
    pinned: JsonView = field(default_factory=Json)
    observed: JsonView = field(default_factory=Json)
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class RunBefore:
    """What one run changed from.

    Args:
        run: its id.
        person: who ran it.
        reason: the ticket or reason.
        undoes: the run that it rolled back; empty: it was none.
        resumes: the interrupted run that it continued, whose way back is its own; empty: none.
        states: by name.
        drain: how workloads left by its policy, as data; empty: by the defaults.
        rollout: how many nodes changed at a time by its policy, as data; empty: by the defaults.
        changed: states that the run changed, which the node itself adds.
    """

    run: str
    person: str = ""
    reason: str = ""
    undoes: str = ""
    resumes: str = ""
    states: Mapping[str, StateBefore] = field(default_factory=dict[str, StateBefore])
    drain: JsonView = field(default_factory=Json)
    rollout: JsonView = field(default_factory=Json)
    changed: tuple[str, ...] = ()

    def text(self) -> str:
        """The record, in one line."""
        return json.dumps({"format": FORMAT, **plain(self)}, separators=(",", ":"))


def record(
    states: Sequence[AnyState],
    observations: Observations,
    results: Mapping[str, StateResult],
    probe: SeenBy,
) -> dict[str, StateBefore]:
    """What a run is about to change from.

    Args:
        states: those of the run.
        observations: of the node, before anything is changed.
        results: its plan.
        probe: observes the node as other states do: those that remove what is there look for less.
    """
    observed_by_state = observed_data(states, observations)
    removals = [
        build(type(state), {**parameters(state), "ensure": "absent"})
        for state in states
        if state.name in observed_by_state and results[state.name].outcome is not Outcome.UNCHANGED
    ]
    probed = zip(removals, probe(removals), strict=True)
    absent = {state.name for state, o in probed if o is not None and _is_idle(state, o)}
    rows: dict[str, StateBefore] = {}
    for state in states:
        outcome, values = results[state.name].outcome, parameters(state)
        if outcome is Outcome.NOT_APPLICABLE:
            continue
        if state.name not in observed_by_state:
            rows[state.name] = StateBefore(mask_data(values))
            continue
        observed = observations.observed[state.name]
        # A validation that is due again says nothing about its parameters.
        unchanged = (state.validating and not state.absent) or _is_idle(state, observed)
        if outcome is Outcome.KNOWN_AFTER:
            unchanged = unchanged and not _may_change(state, observed)
        present = build(type(state), {**values, "ensure": "present"})
        rows[state.name] = StateBefore(
            mask_data(values),
            state.name in absent,
            outcome is Outcome.UNCHANGED or (unchanged and state.name not in absent),
            mask_data(dict(_call(present.pinned, observed) or {})),
            mask_data(observed_by_state[state.name]),
            _file_texts(state, observed),
        )
    return rows


def _call(hook: Callable[[Any], T], observed: object) -> T | None:
    """What a hook of a state returns; ``None`` if it fails, for a bug in a state must not end the run."""
    try:
        return hook(observed)
    except Exception:  # noqa: BLE001
        return None


def _is_idle(state: AnyState, observed: object) -> bool:
    """The state has nothing to do."""
    plan = _call(state.plan, observed)
    return plan is not None and not plan


def _may_change(state: AnyState, observed: object) -> bool:
    """A state whose plan is known after another's, and empty now, may be one that cannot choose yet, or takes other packages."""
    plan = _call(state.plan, observed)
    refused = _call(state.refuse, observed) or (plan is not None and plan.refusal)
    return type(state).as_before is not State.as_before or bool(refused)


def _file_texts(state: AnyState, observed: object) -> dict[str, str]:
    """Texts of files that a rollback restores to the byte, as the run leaves them."""
    desired = _call(state.desired, observed) if state.restored else None
    texts = {name: getattr(desired, name, None) for name in state.restored}
    return {
        name: text for name, text in texts.items() if isinstance(text, str) and mask(text) == text
    }


@dataclass(frozen=True, slots=True)
class BeforeQuery(Query[tuple[RunBefore, ...]]):
    """The records of a node, oldest first."""

    def script(self) -> str:
        return shell.load("before", "gpustate.engine")

    def parse(self, answer: Answer) -> tuple[RunBefore, ...]:
        records: list[RunBefore] = []
        for line in answer.text.splitlines():
            if line.startswith((_CHANGED, _UNCHANGED)) and records:
                records[-1] = _with_changed(records[-1], line)
            elif (entry := read(line)) is not None:
                records.append(entry)
        return tuple(records)

    def placeholder(self) -> tuple[RunBefore, ...]:
        return ()


def _with_changed(record: RunBefore, line: str) -> RunBefore:
    """A record with what a line that follows it says."""
    word, _, name = line.partition(" ")
    changed = dict.fromkeys(record.changed)
    changed.pop(name, None)
    return replace(record, changed=(*changed, *((name,) if f"{word} " == _CHANGED else ())))


def read(line: str) -> RunBefore | None:
    """Parse a record; ``None`` for one that is damaged or of another format."""
    try:
        data: Any = json.loads(line)
        if data["format"] != FORMAT or not _RUN.fullmatch(data["run"]):
            return None
        states = {
            str(name): StateBefore(
                dict(row["parameters"]),
                bool(row["absent"]),
                bool(row["settled"]),
                dict(row["pinned"]),
                dict(row["observed"]),
                {str(key): str(text) for key, text in row["left"].items()},
            )
            for name, row in data["states"].items()
        }
        return RunBefore(
            str(data["run"]),
            str(data["person"]),
            str(data["reason"]),
            str(data["undoes"]),
            str(data["resumes"]),
            states,
            dict(data["drain"]),
            dict(data["rollout"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class WayBack:
    """The states that take a node back to before a run.

    Args:
        run: the run that is undone, with all that followed it.
        states: what held before it.
        stays: changed states that cannot go back, each with the reason.
        notes: what a person should know.
        before: what each state observed then.
        applied: each state as that run and those since applied it, to tell changes by others.
        drain: how workloads leave, by the policy of the run.
        rollout: how many nodes change at a time, likewise.
        changed: names of states that the runs changed, or may have changed.
    """

    run: str
    states: tuple[AnyState, ...] = ()
    stays: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    before: Mapping[str, JsonView] = field(default_factory=dict[str, JsonView])
    applied: Mapping[str, tuple[AnyState, ...]] = field(
        default_factory=dict[str, tuple[AnyState, ...]]
    )
    drain: JsonView = field(default_factory=Json)
    rollout: JsonView = field(default_factory=Json)
    changed: frozenset[str] = frozenset()


def target(records: Sequence[RunBefore], run: str = "") -> str:
    """The run that a rollback undoes; empty: there is none.

    Args:
        records: of the node, oldest first.
        run: the one a person named; empty: the last one, or the one that the last rollback undid.
    """
    if not run and records:
        run = records[-1].undoes or records[-1].run
    match = next((r for r in records if run and run in (r.run, r.resumes)), None)
    by_run = {r.run: r for r in records}
    while match is not None and match.resumes in by_run:  # a node was half changed between them
        match = by_run.pop(match.resumes)
    return "" if match is None else match.run


def way_back(
    records: Sequence[RunBefore],
    run: str,
    kinds: Mapping[str, type[AnyState]],
    with_secret: Mapping[str, JsonView] | None = None,
) -> WayBack:
    """How a node goes back to before a run; that of a run without a record does nothing.

    Args:
        records: of the node, oldest first.
        run: the run to undo, with all that followed it.
        kinds: classes of states by name.
        with_secret: parameters with their secrets, by state, where they are at hand.
    """
    at = next((n for n, record in enumerate(records) if record.run == run), len(records))
    if not records[at:]:
        return WayBack(run)
    states: list[AnyState] = []
    stays: list[str] = []
    notes: list[str] = []
    before: dict[str, JsonView] = {}
    applied: dict[str, tuple[AnyState, ...]] = {}
    changed: set[str] = set()
    for name in dict.fromkeys(name for record in records[at:] for name in record.states):
        rows = [record.states[name] for record in records[at:] if name in record.states]
        earlier = [record.states[name] for record in records[:at] if name in record.states]
        secrets = (with_secret or {}).get(name, {})
        if not all(row.settled for row in rows):
            changed.add(name)
        try:
            values, note = _values(rows[0], earlier[-1] if earlier else None)
            state = _restoring(_built(kinds, name, values, secrets), rows[0], rows[-1])
        except GpustateError as error:
            if name in changed:
                stays.append(f"{name} cannot go back: {error}; it stays as it is")
            else:
                notes.append(f"{name} is left as it is: {error}")
            continue
        states.append(state)
        before[name] = rows[0].observed
        applied[name] = tuple(_applied(kinds, name, rows, secrets))
        if note:
            notes.append(f"{name}: {note}")
    # One that no run changed needs no way back: a runtime that is not on the node, whose toolkit goes.
    removed = {state.name for state in states if state.absent}
    return WayBack(
        run,
        tuple(s for s in states if s.name in changed or removed.isdisjoint(s.needs)),
        tuple(stays),
        tuple(notes),
        before,
        applied,
        records[at].drain,
        records[at].rollout,
        frozenset(changed),
    )


def _applied(
    kinds: Mapping[str, type[AnyState]], name: str, rows: Sequence[StateBefore], secrets: JsonView
) -> Iterator[AnyState]:
    """A state as each of some runs applied it."""
    for row in rows:
        with suppress(GpustateError):
            yield _built(kinds, name, row.parameters, secrets)


def _values(first: StateBefore, earlier: StateBefore | None) -> tuple[JsonView, str]:
    """Parameters of a state that describe the node before a run, with a note.

    Raises:
        GpustateError: there are none, and why.
    """
    removes = first.parameters.get("ensure") == "absent"
    if first.settled:
        return {**first.parameters, **({} if removes else first.pinned)}, ""
    if first.absent:
        return {**first.parameters, "ensure": "absent"}, ""
    if earlier is not None and earlier.parameters.get("ensure") != "absent":
        return {**earlier.parameters, **first.pinned}, ""
    if first.pinned and not removes:
        complete = first.pinned.keys() | {"ensure"} >= first.parameters.keys()
        return {**first.parameters, **first.pinned}, "" if complete else (
            "what configured it before is not recorded: beside "
            f"{', '.join(sorted(first.pinned))} it keeps the parameters of the run"
        )
    if not first.observed:
        raise GpustateError("it could not be observed before the run")
    raise GpustateError(
        "it was there before gpustate's records begin, so its parameters are unknown"
    )


def _restoring(state: AnyState, first: StateBefore, last: StateBefore) -> AnyState:
    """The same state, which wants what it observed before, and restores files to the byte that nothing else changed."""
    kind = type(state)
    texts = {
        name: (text_after, first.observed[name])
        for name, text_after in last.left.items()
        if name in kind.restored and MASK not in (first.observed.get(name) or MASK)
    }
    adapts = kind.as_before is not State.as_before and bool(first.observed) and not first.settled
    if state.absent or not (texts or adapts):
        return state

    def desired(self: AnyState, observed: Any) -> Any:
        target_state = kind.desired(self, observed)
        if adapts:
            target_state = kind.as_before(self, target_state, observed, first.observed)
        same = {
            name: text for name, (text_after, text) in texts.items()
            if getattr(observed, name) in (text_after, text)
        }  # fmt: skip
        return replace(target_state, **same)

    attributes: dict[str, object] = {
        "desired": desired,
        "observed_before": first.observed if adapts else None,
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
    }
    return build(type(kind.__name__, (kind,), attributes), parameters(state))


def _built(
    kinds: Mapping[str, type[AnyState]], name: str, values: JsonView, secrets: JsonView
) -> AnyState:
    if name not in kinds:
        raise GpustateError("this gpustate has no such state")
    complete = with_secrets(dict(values), dict(secrets))
    if MASK in json.dumps(complete):
        raise GpustateError("its parameters contain a secret, which no record keeps")
    return build(kinds[name], complete)


def changed_since(way: WayBack, observations: Observations) -> tuple[str, ...]:
    """Files that are neither as a run left them nor as they were before: something else has changed them since.

    A run that was killed leaves some of them as the run before it did. Only those count that the rollback would write,
    and that do not follow the node: a foreign setting in a file that gpustate edits in place is no change.

    Args:
        way: of the node.
        observations: of the node now.
    """
    paths: dict[str, None] = {}
    applied = [s for state in way.states for s in way.applied.get(state.name, ())]
    # Parameters may decide what is observed, such as the address of a repository.
    observations_by_run = zip(applied, observations.as_seen_by(applied), strict=True)
    by_runs = {id(s): o for s, o in observations_by_run if o is not None}
    for state in way.states:
        observed = observations.observed.get(state.name)
        runs = way.applied.get(state.name, ())
        if not runs or observed is None:
            continue
        try:
            goes = _files(state, observed)
            written_files = [_files(s, by_runs.get(id(s), observed)) for s in runs]
        except Exception:  # noqa: BLE001  evaluated again in its stage
            continue
        earliest = way.before.get(state.name, {})
        for key, change in written_files[-1].items():
            was = earliest.get(change.field, change.before)
            if isinstance(was, Mapping) and not isinstance(change.before, Mapping):
                was = was.get(change.path)  # one change for each of several files
            written = (
                all(key in files for files in (goes, *written_files)) and change.before is not None
            )
            if written and mask_data(change.before) != was:
                paths[str(change.path)] = None
    return tuple(paths)


def _files(state: AnyState, observed: object) -> dict[tuple[str, str], Change]:
    """Changes of files by field and path, without those that follow the node."""
    return {
        (change.field, change.path): change
        for change in state.plan(observed).changes
        if change.path and change.field not in state.computed
    }
