"""Shared parts of the renderings of a plan: groups, totals and their texts. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.file_queries import apart
from gpustate.core.outcome import DELETED, RESTARTED
from gpustate.formats.dpkg import version_key
from gpustate.formats.words import cut, listed
from gpustate.plan import objects
from gpustate.plan.context import troubled, way_back
from gpustate.plan.groups import TOUCHED, Group, counts, group_nodes, groups_from_plan, totals
from gpustate.plan.ranges import fold, natural

#: Longest value of a change on one line.
WIDE = 72
#: Keys of a mapping that change alike, groups of them, and items of a list, on one line.
_KEYS, _GROUPS, _ITEMS = 8, 4, 6
#: A digest of a file that a state ships, which tells a person only whether it differs.
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
#: Characters of a line of a file that comes or leaves as a whole: pins name a thousand packages.
_LINE = 240
LEVELS = ("reboot", "reset", "drain", "restart", "reload", "none")
#: Outcomes of states that are not shown unless all are.
QUIET = ("unchanged", "not applicable")
#: Outcomes of states whose changes were planned, and made in part or not at all.
_INCOMPLETE = ("interrupted", "failed", "not run")
#: Meaning of each level of disruption.
MEANING = {
    "reboot": "all workloads must leave, the node reboots",
    "reset": "GPU workloads must leave, a GPU is reset",
    "drain": "GPU workloads must leave",
    "restart": "a service restarts, workloads continue",
    "reload": "a service rereads its configuration",
    "none": "no disruption",
}
#: Nodes whose workloads are listed, and how many of each.
_NODES, _WORKLOADS = 8, 6
#: Notes for a node on which some states are refused or failed, and for one that is refused with all its changes.
_PROCEEDS = "an apply runs the states that do not depend on it; with --all-or-nothing it does not change the node"
_STAYS = "no state of the node is applied"
#: What becomes of states that only wait for others.
WAITING = "decided once the states that they depend on are applied"


@dataclass(frozen=True, slots=True)
class Overview:
    """A plan as a whole.

    Args:
        document: ``gpustate.plan/1``.
        groups: nodes that share a plan.
        counts: nodes that would change, that would not, that could not be planned, that would be refused.
        totals: what it costs, level by level, worst first.
    """

    document: Mapping[str, Any]
    groups: Sequence[Group]
    counts: Mapping[str, int]
    totals: Sequence[Mapping[str, Any]]

    @property
    def size(self) -> int:
        """Number of nodes."""
        return sum(self.counts.values())

    @property
    def troubled(self) -> list[str]:
        """Nodes that could not be planned, or failed."""
        return [name for group in self.groups if troubled(group) for name in group.names]

    @property
    def trouble(self) -> str:
        """The heading for these nodes."""
        planned = self.document.get("format", "").startswith("gpustate.plan/")
        return "Not planned" if planned else "Not finished"

    @property
    def sentence(self) -> str:
        """Number of nodes that change and their worst disruption."""
        change = self.counts["change"]
        at_worst = [
            (row["nodes"] + row["possible"], row["disruption"])
            for row in self.totals
            if row["nodes"] + row["possible"]
        ]
        worst = ", ".join(
            f"{n} {w}" if w != "none" else f"{n} without disruption" for n, w in at_worst
        )
        text = f"Plan: {change} node{'s' * (change != 1)} would change"
        if at_worst and at_worst[0][1] == "none":
            text += ", without disruption"
        elif worst:
            text += f" (at worst: {worst})"
        if parts := sum(len(group.names) for group in self.groups if group.node.get("proceeds")):
            text += f", {parts} of them in part"
        text += f", {self.counts['unchanged']} unchanged"
        refused, not_planned = self.counts.get("refused", 0), self.counts["not_planned"]
        text += f", {refused} refused" if refused else ""
        return text + (f", {not_planned} not planned" if not_planned else "") + "."


def overview(document: Mapping[str, Any]) -> Overview:
    """Look at a plan as a whole; groups are recreated only where the plan names none.

    Groups come in the order of a reader, whatever order the inventory has.
    """
    fleet: Mapping[str, Any] = document.get("fleet") or {}
    saved = fleet.get("groups")
    unsorted = (
        group_nodes(document["nodes"])
        if saved is None
        else groups_from_plan(document["nodes"], saved)
    )
    groups = sorted(unsorted, key=_place)
    return Overview(document, groups, counts(groups), totals(groups))


def _place(group: Group) -> tuple[int, int, Any]:
    """Sort by disruption, then unchanged nodes, then nodes that could not be planned or failed."""
    if group.pending:
        return 0, -Disruption.parse(group.worst[0]), natural(group.names[0])
    return (3 if troubled(group) else 2 if group.quiet else 1), 0, natural(group.names[0])


def short(value: Any) -> str:
    """A value on one line."""
    if value in ("", None):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    if "\n" in text:
        return f"{len(text.splitlines())} lines"
    return cut(text, WIDE)


def change_line(change: Mapping[str, Any]) -> str:
    """A change on one line."""
    before, after = change["before"], change["after"]
    name = change.get("label", change["field"])
    if "lines" in change:
        return f"{name}:"
    if "path" in change:
        name = str(change["path"])
        if before is None:
            return f"{name}: new file, {short(after)}"
        if after is None:
            return f"{name}: removed"
        note, text = apart(before) if isinstance(before, str) else ("", None)
        return f"{name}: {note}" if note and text == after else f"{name}: content"
    if isinstance(before, dict) and isinstance(after, dict):
        return f"{name}: {_mapping(before, after)}"
    if isinstance(before, list) and isinstance(after, list):
        lost = [short(item) for item in before if item not in after]
        new = [short(item) for item in after if item not in before]
        parts = [f"+ {listed(new, _ITEMS)}"] if new else []
        parts += [f"- {', '.join(lost)}"] if lost else []
        return f"{name}: {' '.join(parts) or 'order'}"
    if after is True and not before and "label" in change:
        return str(name)
    if _DIGEST.fullmatch(str(after or before)):
        return f"{name}: {'new' if not before else 'other content' if after else 'removed'}"
    return f"{name}: {short(before)} -> {short(after)}"


def _mapping(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The changes of a mapping: keys whose values change alike are listed together."""
    changed, removed = _keys(before, after)
    coming = [
        f"{listed(keys, _KEYS)}: {transition}"
        for transition, keys in _alike(before, after, changed).items()
    ]
    leaving = [
        f"{', '.join(keys)}: {transition}"
        for transition, keys in _alike(before, after, removed).items()
    ]
    return "; ".join(filter(None, (listed(coming, _GROUPS, "; "), *leaving)))


def _alike(
    before: Mapping[str, Any], after: Mapping[str, Any], keys: Sequence[str]
) -> dict[str, list[str]]:
    """Keys of a mapping by what becomes of their values, as ``none -> 580.95.05``."""
    transitions: dict[str, list[str]] = {}
    for key in keys:
        transition = f"{short(before.get(key))} -> {short(after.get(key))}"
        transitions.setdefault(transition, []).append(key)
    return transitions


def _keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Keys of a mapping whose values come or change, and those that leave, none of which a line leaves out."""
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    removed = [key for key in keys if after.get(key) is None]
    return [key for key in keys if key not in removed], removed


def diff_lines(change: Mapping[str, Any]) -> list[str]:
    """The change of a file as a unified diff; empty for other values than texts of several lines."""
    import difflib

    path = str(change.get("path", change["field"]))
    before, after = change["before"], change["after"]
    if not isinstance(before, str | None) or not isinstance(after, str | None):
        return []
    if "\n" not in (before or "") + (after or ""):
        return []
    lines = difflib.unified_diff(
        (before or "").splitlines(),
        (after or "").splitlines(),
        path if before is not None else "/dev/null",
        path if after is not None else "/dev/null",
        lineterm="",
    )
    return list(lines) if None not in (before, after) else [cut(line, _LINE) for line in lines]


def is_shortened(change: Mapping[str, Any]) -> bool:
    """Whether :func:`change_line` leaves keys or items out."""
    before, after = change["before"], change["after"]
    if isinstance(before, dict) and isinstance(after, dict):
        groups = _alike(before, after, _keys(before, after)[0]).values()
        return len(groups) > _GROUPS + 1 or any(len(keys) > _KEYS + 1 for keys in groups)
    if isinstance(before, list) and isinstance(after, list):
        return sum(item not in before for item in after) > _ITEMS + 1
    return False


def detail_lines(change: Mapping[str, Any]) -> list[str]:
    """What :func:`change_line` leaves out: the diff of a file, every key of a mapping, every item of a list."""
    before, after = change["before"], change["after"]
    if not is_shortened(change):
        return diff_lines(change)
    if isinstance(before, dict):
        return [
            f"+ {k}: {short(after[k])}"
            if k not in before
            else f"- {k}: {short(before[k])}"
            if k not in after
            else f"~ {k}: {short(before[k])} -> {short(after[k])}"
            for k in sorted({*before, *after})
            if before.get(k) != after.get(k)
        ]
    return [
        *(f"+ {short(item)}" for item in after if item not in before),
        *(f"- {short(item)}" for item in before if item not in after),
    ]


def state_words(state: Mapping[str, Any]) -> tuple[str, str]:
    """Disruption of a state (``""``: none, ``<=reboot``: at most), and its outcome in words."""
    outcome = str(state["outcome"])
    cost = str(state.get("worst") or state.get("disruption") or "")
    words = outcome
    if outcome == "known after":
        words = f"decided after {_and(state['known_after'])} {'are' if state['known_after'][1:] else 'is'} applied"
        cost = f"<={cost}" if cost not in ("", "none") else ""
    elif state.get("reason"):
        words = f"{outcome}: {state['reason']}"
    if state.get("changes") and outcome in _INCOMPLETE:
        words += "; it was to change:"
    if state.get("condition"):
        words = f"{cost.removeprefix('<=')} only if {state['condition']}" + f"; {words}" * (
            words != "would change"
        )
        cost = f"<={cost.removeprefix('<=')}"
    return "" if cost == "none" else cost, words


def waiting(states: Sequence[Mapping[str, Any]]) -> list[str]:
    """States of which a plan says only that they wait for others, at no cost; fewer than two are none."""
    names = [
        str(state["state"])
        for state in states
        if state["outcome"] == "known after"
        and state.get("worst", "none") == "none"
        and not any(state.get(key) for key in ("changes", "notes", "condition", "versions"))
    ]
    return names if len(names) > 1 else []


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def remainder(node: Mapping[str, Any]) -> str:
    """What becomes of the other states of a node where some are refused or failed; empty where there are none."""
    if node.get("proceeds"):
        return _PROCEEDS
    outcomes = {state["outcome"] for state in node["states"]}
    return _STAYS if node["status"] == "refused" and outcomes & {*TOUCHED} else ""


def at_worst(group: Group) -> str:
    """The worst disruption of a group; what it includes, and whether it depends on a condition."""
    word, certain = group.worst
    includes = " (after a drain)" if word in ("reset", "reboot") else ""
    return f"{word}{includes}" if certain else f"{word}{includes}, on a condition"


def summary(group: Group) -> list[tuple[str, str]]:
    """What a change of each node of a group is: names and texts of the rows of the first page."""
    touched = [state for state in group.node["states"] if state["outcome"] in TOUCHED]
    versions = [row for state in touched for row in state.get("versions", ())]
    reboots = [effect for effect in group.effects if effect.disruption is Disruption.REBOOT]
    conditions = dict.fromkeys(f"only if {effect.condition}" for effect in reboots)
    sure = any(effect.certain for effect in reboots)
    rows = [
        ("versions", ", ".join(_version(row) for row in versions)),
        ("surely", _effects(group, certain=True)),
        ("possibly", _effects(group, certain=False)),
        (
            "reboots",
            "yes, once its workloads have left" if sure else ", or ".join(conditions) or "none",
        ),
        ("restarted", ", ".join(sorted({n for _, n, how in group.disturbed if how == RESTARTED}))),
        *(("note", note) for note in group.node.get("notes", ())),
        ("in use", _in_use(group)),
    ]
    return [row for row in rows if row[1] and (row[0] != "reboots" or group.effects)]


def in_use(group: Group) -> list[tuple[str, str]]:
    """The workloads of the first nodes of a group, by name, and what becomes of them."""
    by_node: dict[str, list[str]] = {}
    for node, name, how in group.disturbed:
        if how != RESTARTED:
            by_node.setdefault(node, []).append(f"{name} ({how})")
    rows = [(node, listed(names, _WORKLOADS)) for node, names in list(by_node.items())[:_NODES]]
    omitted = len(by_node) - _NODES
    return [*rows, *([("others", f"{omitted} nodes; -o json lists them")] if omitted > 0 else [])]


def _version(row: Mapping[str, str]) -> str:
    before, after = row["before"], row["after"]
    down = before and after and version_key(after) < version_key(before)
    text = f"{row['name']} {f'{before} -> ' if before else ''}{after or 'removed'}"
    return f"{text} (downgrade)" if down else text


def _effects(group: Group, *, certain: bool) -> str:
    """The states that cost something, level by level."""
    levels: dict[str, dict[str, str]] = {}
    sure = {effect.disruption for effect in group.effects if effect.certain}
    for effect in group.effects:
        if effect.certain == certain and (
            certain or effect.condition or effect.disruption not in sure
        ):
            level = levels.setdefault(effect.disruption.word, {})
            condition = effect.condition and f", only if {effect.condition}"
            level.setdefault(effect.state, f"{effect.state}{condition}")
    return "; ".join(
        f"{word} ({MEANING[word]}): {', '.join(level.values())}" for word, level in levels.items()
    )


def _in_use(group: Group) -> str:
    """How many workloads are disturbed, by their namespaces."""
    kinds: dict[str, int] = {}
    for _, name, how in group.disturbed:
        if how == RESTARTED:
            continue
        space, slash, _ = name.partition("/")
        kind = f"pods of {space}" if slash else "jobs" if name.startswith("job ") else "programs"
        kinds[kind] = kinds.get(kind, 0) + 1
    text = ", ".join(
        f"{count} {kind.replace('s', '', 1) if count == 1 else kind}"
        for kind, count in kinds.items()
    )
    lost = sum(DELETED in how for _, _, how in group.disturbed)
    return f"{text}; {lost} {DELETED}" if lost else text


def undone(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """The runs that a rollback undoes, each with its nodes, where several nodes go back."""
    nodes: dict[str, list[str]] = {}
    for node, row in (document.get("rollback") or {}).items():
        if row["run"]:
            nodes.setdefault(row["run"], []).append(node)
    return nodes


def closing(view: Overview) -> list[tuple[str, str]]:
    """How the nodes would change, and how they go back: names and texts of the last rows of the first page."""
    document = view.document
    rollout = document.get("rollout") or {}
    rows = [("waves", rollout["text"])] if rollout else []
    if len(runs := undone(document)) > 1:
        each = (f"{run} ({', '.join(fold(names))})" for run, names in runs.items())
        rows.append(
            (
                "runs",
                f"nodes go back before different runs: {'; '.join(each)}; for one of them only: gpustate rollback RUN",
            )
        )
    if len(rollout.get("waves", ())) > 1 and any("pod" in _in_use(group) for group in view.groups):
        text = "those that leave may start on nodes of later waves, and leave these again"
        rows.append(("pods", text))
    clusters = document.get("clusters", ())
    lost = f"; {objects.NO_GPUS}" if objects.takes_gpus(clusters) else ""
    if number := sum(map(objects.pending, clusters)):
        rows.append(("objects", f"{number} of the cluster{'s' * (len(clusters) > 1)} change{lost}"))
    command, words = way_back(document, "RUN"), (document.get("context") or {}).get("retry", ())
    if command and words[1] != "drift":
        rolls_back = (
            (document.get("policy") or {})
            .get("rollout", {})
            .get("rollback_on_failure", words[1] == "upgrade")
        )
        failed = "stays out of service; a failed package step is undone"
        if words[1] != "rollback":
            failed += ", other changes only with rollout.rollback_on_failure"
        if rolls_back:
            failed = "is rolled back and returned to service"
            failed += ", with the other nodes of its wave" if rollout else ""
        stay = "; objects of the cluster are not restored" if clusters else ""
        text = (
            "packages that a repository still has, module parameters, files, services, MIG layout"
        )
        rows += [
            ("failure", f"a node whose change fails {failed}"),
            ("way back", f"{command}; restores {text}{stay}"),
        ]
    return rows
