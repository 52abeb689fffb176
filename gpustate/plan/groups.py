"""Nodes that share a plan, and what a fleet's plan costs in all. Pure; works on documents.

Two nodes share a plan when they have the same changes at the same costs, the same reasons and the same
notes. A node's own name in a reason or a note makes no difference, nor do the numbers of processes and the ids
of containers, which are other ones on every node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.core.change import Disruption
from gpustate.plan.ranges import fold, natural

#: Stands for a node's own name where a text is about many, and for a number that is each node's own.
NODE, NUMBER = "(node)", "..."
#: Numbers of processes and ids of containers, with what is before them.
_OWN = re.compile(
    r"\b(pid |process |\w+-)(?:(?<=pid )[0-9]+|(?<=process )[0-9]+|(?<=-)[0-9a-f]{32,64})\b"
)
#: A node that waits for a person at its console has a plan for all the rest.
_PLANNED = ("ok", "blocked: needs a console")
#: Words of states that a plan would do something to.
TOUCHED = ("would change", "known after")
_QUIET = ("unchanged", "not applicable")
_TEXTS = ("reason", "evidence", "command", "inspect")
#: A shorter name may be a word of its own.
_SHORTEST = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that share a plan.

    Args:
        names: of the nodes, ``gpu2`` before ``gpu10``.
        node: what is so for all of them, as one row of a document.
    """

    names: tuple[str, ...]
    node: Mapping[str, Any]

    @property
    def ranges(self) -> list[str]:
        """The names in few words."""
        return fold(self.names)

    @property
    def pending(self) -> bool:
        """Something would change on them."""
        planned = self.node["status"] in _PLANNED or self.node.get("proceeds")
        return bool(planned) and any(state["outcome"] in TOUCHED for state in self.node["states"])

    @property
    def worst(self) -> tuple[str, bool]:
        """The worst it costs each of them, and whether that is certain or only possible."""
        certain, possible = Disruption.NONE, Disruption.NONE
        for state in self.node["states"]:
            for change in _changes(state):
                certain = max(certain, Disruption.parse(change["disruption"]))
            if state["outcome"] == "known after":
                possible = max(possible, Disruption.parse(state["worst"]))
        return max(certain, possible).word, certain >= possible

    @property
    def quiet(self) -> bool:
        """Nothing is there to tell but that they are as they should be."""
        return self.node["status"] == "ok" and all(
            state["outcome"] in _QUIET for state in self.node["states"]
        )


def group(nodes: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Nodes of a plan or a result by what they share, in order of first appearance."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in nodes:
        found.setdefault(_key(node), []).append(node)
    return [
        Group(
            tuple(sorted((str(node["name"]) for node in same), key=natural)),
            same[0] if len(same) == 1 else _nobody_s(same[0]),
        )
        for same in found.values()
    ]


def as_said(nodes: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The groups that a plan itself names, which were held against its nodes when it was read."""
    by_name = {node["name"]: node for node in nodes}
    return [
        Group(
            tuple(row["nodes"]),
            by_name[row["nodes"][0]]
            if len(row["nodes"]) == 1
            else _nobody_s(by_name[row["nodes"][0]]),
        )
        for row in rows
    ]


def _key(node: Mapping[str, Any]) -> tuple[str, str]:
    states = node["states"]
    told = [node.get("reason"), _notes(node), [_told(state) for state in states]]
    done = [[value for key, value in state.items() if key not in _TOLD] for state in states]
    return _without_name(_dump(told), str(node["name"])), _dump(
        [node["status"], node.get("proceeds"), done]
    )


_TOLD = frozenset((*_TEXTS, "notes"))


def _told(state: Mapping[str, Any]) -> list[Any]:
    return [*(state.get(name) for name in _TEXTS), _notes(state)]


def _notes(part: Mapping[str, Any]) -> list[str]:
    """Notes in an order of their own: processes come in that of their numbers."""
    return sorted({_OWN.sub(_numberless, note) for note in part.get("notes") or ()})


def _numberless(found: re.Match[str]) -> str:
    return f"{found[1]}{NUMBER}"


def _dump(value: Any) -> str:
    """A text that is the same for equal data; documents have their keys in a fixed order."""
    return repr(value)


def _without_name(text: str, name: str) -> str:
    """A text without what is the node's own."""
    text = _OWN.sub(_numberless, text)
    if len(name) < _SHORTEST or name not in text:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", NODE, text)


def _nobody_s(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row in which the name of the node it came from does not stand any more."""
    name = str(node["name"])

    def bare(part: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(part)
        for key in _TEXTS:
            if isinstance(copy.get(key), str):
                copy[key] = _without_name(copy[key], name)
        if "notes" in copy:
            bare_notes = (_without_name(note, name) for note in copy["notes"])
            copy["notes"] = list(dict.fromkeys(bare_notes))
        return copy

    return {**bare(node), "states": [bare(state) for state in node["states"]]}


def _changes(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Changes that an apply makes; a refused state lists what it lacks, too."""
    changes: Sequence[Mapping[str, Any]] = state.get("changes", ())
    return () if state["outcome"] == "refused" else changes


def totals(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What the plan costs, level by level, worst first; levels that nothing costs are left out.

    A node counts at the worst that is certain (``nodes``), or, where a state that is not known yet may
    cost more than that, at the worst that is possible (``possible``).
    """
    rows: dict[Disruption, dict[str, Any]] = {
        level: {"disruption": level.word, "nodes": 0, "possible": 0, "changes": 0}
        for level in reversed(Disruption)
    }
    for one in groups:
        if not one.pending:
            continue
        for state in one.node["states"]:
            for change in _changes(state):
                rows[Disruption.parse(change["disruption"])]["changes"] += len(one.names)
        word, sure = one.worst
        rows[Disruption.parse(word)]["nodes" if sure else "possible"] += len(one.names)
    return [row for row in rows.values() if row["nodes"] or row["possible"] or row["changes"]]


def counts(groups: Sequence[Group]) -> dict[str, int]:
    """How many nodes would change, are as they should be, and could not be planned."""
    found = {"change": 0, "unchanged": 0, "not_planned": 0}
    for one in groups:
        key = "change" if one.pending else "unchanged"
        found[key if one.pending or one.node["status"] == "ok" else "not_planned"] += len(one.names)
    return found


def groups_data(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """As it stands in a plan: which nodes share one, and what it costs them."""
    return [
        {
            "names": one.ranges,
            "nodes": list(one.names),
            "status": one.node["status"],
            "disruption": one.node["disruption"],
            "changes": sum(len(_changes(state)) for state in one.node["states"]),
        }
        for one in groups
    ]
