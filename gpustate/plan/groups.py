"""Groups of nodes that share a plan, and the totals of a fleet's plan. Pure; works on documents.

Two nodes share a plan when they have the same changes at the same costs, the same reasons and the same
notes. A node's own name in a reason or a note makes no difference, nor do the numbers of processes and the ids
of containers, which are other ones on every node, nor the pods, jobs and programs that leave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.core.change import Disruption
from gpustate.plan.ranges import fold, natural

#: Placeholders for a node's name and for a number that differs between nodes.
NODE, NUMBER = "NODE", "..."
#: Process ids and container ids, with the text before them.
_NODE_NUMBER = re.compile(
    r"\b(pid |process |\w+-)(?:(?<=pid )[0-9]+|(?<=process )[0-9]+|(?<=-)[0-9a-f]{32,64})\b"
)
#: A node that needs its console has a plan for everything else.
_PLANNED = ("ok", "blocked: needs a console")
#: Outcomes of states that a plan would change.
TOUCHED = ("would change", "known after")
_QUIET = ("unchanged", "not applicable")
_TEXTS = ("reason", "evidence", "command", "inspect")
#: A shorter name may be an ordinary word.
_SHORTEST = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """What a state costs each node of a group.

    Args:
        state: its name.
        disruption: the level.
        certain: it surely does.
        condition: on which condition it does otherwise; empty: not known.
    """

    state: str
    disruption: Disruption
    certain: bool
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that share a plan.

    Args:
        names: of the nodes, ``gpu2`` before ``gpu10``.
        node: what is so for all of them, as one row of a document.
        disturbed: what is in use on them: node, name, and what becomes of it.
    """

    names: tuple[str, ...]
    node: Mapping[str, Any]
    disturbed: tuple[tuple[str, str, str], ...] = ()

    @property
    def ranges(self) -> list[str]:
        """The names folded into ranges."""
        return fold(self.names)

    @property
    def pending(self) -> bool:
        """These nodes would change."""
        if self.refused:
            return False
        planned = self.node["status"] in _PLANNED or self.node.get("proceeds")
        return bool(planned) and any(state["outcome"] in TOUCHED for state in self.node["states"])

    @property
    def refused(self) -> bool:
        """Their plan could be made, and an apply would refuse them."""
        return bool(self.node.get("would_refuse"))

    @property
    def worst(self) -> tuple[str, bool]:
        """Worst disruption of each node, and whether it is certain or only possible."""
        effects = self.effects
        worst = effects[0].disruption if effects else Disruption.NONE
        return worst.word, not effects or effects[0].certain

    @property
    def effects(self) -> list[Effect]:
        """What each state costs: the worst first, what is certain before what is only possible."""
        effects: set[Effect] = set()
        for state in self.node["states"]:
            name = str(state["state"])
            for change in _changes(state):
                condition = change.get("condition", "")
                level = Disruption.parse(change["disruption"])
                effects.add(Effect(name, level, not condition, condition))
            if state["outcome"] == "known after":
                level, condition = Disruption.parse(state["worst"]), state.get("condition", "")
                certain = not condition and bool(state.get("versions"))
                effects.add(Effect(name, level, certain, condition))
        costly = (effect for effect in effects if effect.disruption)
        return sorted(costly, key=lambda e: (-e.disruption, not e.certain, e.state, e.condition))

    @property
    def quiet(self) -> bool:
        """The nodes are unchanged and have nothing to report."""
        return self.node["status"] == "ok" and all(
            state["outcome"] in _QUIET for state in self.node["states"]
        )


def group_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Group nodes of a plan or a result by equal content, in order of first appearance."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in nodes:
        alike.setdefault(_key(node), []).append(node)
    return [_group(sorted(same, key=lambda node: natural(node["name"]))) for same in alike.values()]


def groups_from_plan(
    nodes: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[Group]:
    """The groups in a plan, which were checked against its nodes when it was read."""
    by_name = {node["name"]: node for node in nodes}
    return [_group([by_name[name] for name in row["nodes"]]) for row in rows]


def _group(nodes: Sequence[Mapping[str, Any]]) -> Group:
    return Group(
        tuple(str(node["name"]) for node in nodes),
        nodes[0] if len(nodes) == 1 else _without_names(nodes[0]),
        tuple(
            (str(node["name"]), row["name"], row["how"])
            for node in nodes
            for row in node.get("disturbed", ())
        ),
    )


def _key(node: Mapping[str, Any]) -> tuple[str, str]:
    states = node["states"]
    texts = [node.get("reason"), _notes(node), [_state_texts(state) for state in states]]
    values = [[value for key, value in state.items() if key not in _TEXT_KEYS] for state in states]
    return _without_name(_dump(texts), str(node["name"])), _dump(
        [node["status"], node.get("proceeds"), node.get("would_refuse"), values]
    )


_TEXT_KEYS = frozenset((*_TEXTS, "notes"))


def _state_texts(state: Mapping[str, Any]) -> list[Any]:
    return [*(state.get(name) for name in _TEXTS), _notes(state)]


def _notes(part: Mapping[str, Any]) -> list[str]:
    """Sort notes, since processes come in the order of their ids."""
    return sorted({_NODE_NUMBER.sub(_numberless, note) for note in part.get("notes") or ()})


def _numberless(match: re.Match[str]) -> str:
    return f"{match[1]}{NUMBER}"


def _dump(value: Any) -> str:
    """A text that is equal for equal data; keys of documents have a fixed order."""
    return repr(value)


def _without_name(text: str, name: str) -> str:
    """A text without the node's name and ids."""
    text = _NODE_NUMBER.sub(_numberless, text)
    if len(name) < _SHORTEST or name not in text:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", NODE, text)


def _without_names(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row without the name of its node."""
    name = str(node["name"])

    def remove_name(part: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(part)
        for key in _TEXTS:
            if isinstance(copy.get(key), str):
                copy[key] = _without_name(copy[key], name)
        if "notes" in copy:
            bare_notes = (_without_name(note, name) for note in copy["notes"])
            copy["notes"] = list(dict.fromkeys(bare_notes))
        return copy

    return {**remove_name(node), "states": [remove_name(state) for state in node["states"]]}


def _changes(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Changes that an apply makes; changes of refused states do not count."""
    changes: Sequence[Mapping[str, Any]] = state.get("changes", ())
    return () if state["outcome"] == "refused" else changes


def totals(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Totals per level of disruption, worst first, without empty levels.

    A node counts at the worst that is certain (``nodes``), or, where a state that is not known yet may
    cost more than that, at the worst that is possible (``possible``).
    """
    rows: dict[Disruption, dict[str, Any]] = {
        level: {"disruption": level.word, "nodes": 0, "possible": 0, "changes": 0}
        for level in reversed(Disruption)
    }
    for group in groups:
        if not group.pending:
            continue
        for state in group.node["states"]:
            for change in _changes(state):
                rows[Disruption.parse(change["disruption"])]["changes"] += len(group.names)
        word, sure = group.worst
        rows[Disruption.parse(word)]["nodes" if sure else "possible"] += len(group.names)
    return [row for row in rows.values() if row["nodes"] or row["possible"] or row["changes"]]


def counts(groups: Sequence[Group]) -> dict[str, int]:
    """Numbers of nodes that would change, are unchanged, could not be planned, and would be refused."""
    numbers = {"change": 0, "unchanged": 0, "not_planned": 0}
    for group in groups:
        key = "change" if group.pending else "refused" if group.refused else "unchanged"
        if key == "unchanged" and group.node["status"] != "ok":
            key = "not_planned"
        numbers[key] = numbers.get(key, 0) + len(group.names)
    return numbers


def groups_data(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Groups for a plan's document: nodes that share a plan, and their disruption."""
    return [
        {
            "names": group.ranges,
            "nodes": list(group.names),
            "status": group.node["status"],
            "disruption": group.node["disruption"],
            "changes": sum(len(_changes(state)) for state in group.node["states"]),
        }
        for group in groups
    ]
