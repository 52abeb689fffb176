"""Next steps with the user's own names: policy, inventory and node, and the line that the policy lacks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpustate.errors import GpustateError, UsageError

if TYPE_CHECKING:
    from gpustate.engine.records import RunRecord
    from gpustate.schedulers.base import Hold

#: As :func:`gpustate.diagnosis.remedies.by_apply` writes it.
_BY_STATES = re.compile(
    r" \(states? ([a-z0-9-]+)((?: (?:and|or) [a-z0-9-]+)*)\): gpustate apply POLICY -l NODE"
)
#: A command that sets a parameter of a state.
_SETTING = re.compile(r"POLICY( -l NODE --set ([a-z-]+)\.)")
#: The node in commands of kubectl and scontrol.
_NODE = re.compile(r"(?<=node |Name=|name=)NODE\b")


@dataclass(frozen=True)
class Target:
    """What a command names.

    Args:
        inventory: as given to the verb.
        policy: the policy's file; empty if unknown.
        states: names of its states; ``None`` if unknown.
    """

    inventory: str
    policy: str = ""
    states: Collection[str] | None = None

    def complete(self, text: str, node: str) -> str:
        """A text whose commands have ``POLICY`` and ``-l NODE``, for this node."""
        text = _BY_STATES.sub(self._with_states, text)
        if self.policy and not self._editable:
            text = _SETTING.sub(r"\2\1", text)
        where = f" -i {shlex.quote(self.inventory)} -l {shlex.quote(node)}"
        policy = shlex.quote(self.policy) if self.policy else "POLICY"
        text = text.replace("POLICY -l NODE", f"{policy} -l NODE").replace(" -l NODE", where)
        return _NODE.sub(shlex.quote(node), text)

    def complete_texts(self, data: Any, node: str) -> Any:
        """Plain data whose texts have commands for this node."""
        if isinstance(data, dict):
            return {key: self.complete_texts(value, node) for key, value in data.items()}
        if isinstance(data, list):
            return [self.complete_texts(value, node) for value in data]
        return self.complete(data, node) if isinstance(data, str) else data

    @property
    def _editable(self) -> bool:
        """The policy is a file of states, not one of the GPU Operator or a single state."""
        suffix = os.path.splitext(self.policy)[1]
        return suffix == ".py" or (suffix in (".yaml", ".yml") and _has_states(self.policy))

    def _with_states(self, match: re.Match[str]) -> str:
        names = [match[1], *re.findall(r"(?:and|or) (\S+)", match[2])]
        if self.states is None or not self.policy or any(name in self.states for name in names):
            return match[0]
        if not self._editable:
            return f": gpustate apply {names[0]} -l NODE"
        lines = " and ".join(f"`{name}:`" for name in names)
        fix = f"add {lines} to the states of {self.policy}"
        if self.policy.endswith(".py"):
            fix = f"add the state {' and '.join(names)} to {self.policy}"
        return f": {fix}, then: gpustate apply POLICY -l NODE"

    def complete_result(self, document: Mapping[str, Any]) -> None:
        """Complete the failures of a result's nodes in place; without states, the policy has those of the result."""
        for node in document["nodes"]:
            name = str(node["name"])
            states = [row["state"] for row in node.get("states", ())]
            target = self if self.states is not None else replace(self, states=states)
            for row in (*node.get("states", ()), *node.get("checks", ())):
                for key in ("reason", "evidence", "remedy"):
                    if row.get(key):
                        row[key] = target.complete(row[key], name)
            if notes := node.get("notes"):
                notes[:] = [target.complete(note, name) for note in notes]


def _has_states(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return re.search(r"(?m)^(states|preset):", file.read()) is not None
    except (OSError, ValueError):
        return False


def last_change(options: Mapping[str, Any], newest: str = "") -> RunRecord | None:
    """The record of the last run here that changed nodes of this inventory.

    Args:
        options: of the verb.
        newest: the newest run on a node, which is it if this machine has its record.
    """
    from gpustate.engine import records

    return records.last_change(str(options.get("inventory") or ""), newest)


def of_record(record: RunRecord | None, options: Mapping[str, Any]) -> Target:
    """The policy of a recorded run, else of the last one that had one, with its states where it can still be read."""
    from gpustate import policies
    from gpustate.engine import records

    inventory = str(options.get("inventory") or "")
    source = (record and records.policy_of(record)) or records.last_policy(inventory)
    if not source:
        return Target(inventory)
    relative = os.path.relpath(source)
    path = source if relative.startswith("..") else relative
    try:
        policy = policies.load(source)
    except GpustateError:
        return Target(inventory, path)
    return Target(inventory, path, [state.name for state in policy.states if not state.absent])


def command_of(run: str) -> str:
    """The command of a run, by its record on this machine; empty: it has none here."""
    from gpustate.cli.context import words
    from gpustate.engine import records

    try:
        record = records.load(run)
    except UsageError:
        return ""
    if not record.get("ended"):
        return f"gpustate rollout resume {run}"
    options = record["options"]
    limit = ["-l", str(options["limit"])] if options.get("limit") else []
    source = filter(None, (record["source"],))
    return shlex.join(
        ["gpustate", record["verb"], *source, *words(record["verb"], options), *limit]
    )


def held(hold: Hold) -> str:
    """The next step for a Node that a run of gpustate holds, as of ``status``; empty: the hold keeps nothing off it."""
    from gpustate.rollout.running import running_here
    from gpustate.rollout.status import Status
    from gpustate.schedulers.base import Member

    running = hold.run in {running_run.run for running_run in running_here()}
    member = Member("", ready=True, schedulable=False, hold=hold)
    return Status("", member, running, command_of(hold.run)).next


def continuation(unfinished: str) -> str:
    """The next step for a node whose run was interrupted, instead of that of a failed check; empty if none was.

    Args:
        unfinished: as :func:`interrupted` returns it.
    """
    cause, _, step = unfinished.partition("; ")
    return step if cause.endswith("was interrupted") else ""


def interrupted(record: RunRecord | None, node: str) -> str:
    """What to do about a recorded run that was interrupted at a node; empty if it was not."""
    from gpustate.engine.fleet import controller_runs

    if record is None or record.get("ended"):
        return ""
    outcome = record.get("outcome")
    statuses = outcome.get("nodes", {}) if outcome else {}
    if statuses.get(node) == "ok" or (statuses and node not in statuses):
        return ""
    if controller_runs(record.get("pid", 0), record.get("born", "")):
        return ""
    run = record["run"]
    return (
        f"run {run} ({record['verb']}) was interrupted; continue it: gpustate rollout resume {run}"
    )
