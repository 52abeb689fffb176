"""The drivers of a cluster: one for all nodes, or one for each pool of them, as NVIDIADrivers say.

Which nodes an NVIDIADriver is for say labels. What the inventory gives (``node_labels``,
``gpustate_labels``), Nodes beside the file have, or the node itself shows (its distribution, its
architecture) counts. A node with none of the labels gets no driver, as under the Operator.

Surprising: with several drivers the one of each node has to be known before it is reached, so there only the
inventory and Nodes beside the file count.

Sources:
    NVIDIA/gpu-operator v26.7: internal/validator (selectors that overlap are refused),
    api/nvidia/v1alpha1/nvidiadriver_types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import LABELS
from gpustate.core.where import parse
from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator.asked import ForLabels, ForNode, Source, Wanted
from gpustate.gpu_operator.companions import Shelf
from gpustate.gpu_operator.documents import Item, plain
from gpustate.gpu_operator.operands import NOWHERE

#: Labels that every node with a GPU has; a selector of these selects all.
_EVERY_NODE = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.driver": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "kubernetes.io/os": "linux",
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """One driver.

    Args:
        states: those of a node with this driver.
        condition: for which nodes; empty: for all.
        place: of the object.
    """

    states: tuple[Wanted, ...]
    condition: str
    place: str


def driver_stack(driver: Wanted) -> tuple[Wanted, ...]:
    """The states of a node with a driver."""
    return (
        *(Wanted("nouveau"), Wanted("driver-repository"), driver, *driver.beside),
        *(Wanted("persistenced"), Wanted("nvlsm")),
        Wanted("fabric-manager"),  # the driver container starts it too, where there are NVSwitches
    )


def condition_of(source: Source) -> str:
    """For which nodes an NVIDIADriver is, as a condition; empty: for all.

    Raises:
        PolicyError: an operator that compares numbers.
    """
    parts = list(of_selector(source.spec.get("nodeSelector")))
    required = source.spec.get("nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    terms = [list(_term(source, term)) for term in required.value] if required is not None else []
    if terms and all(terms):
        either = [_joined(term, "&") for term in terms]
        parts.append(_joined(either, "|"))
    return _joined(parts, "&") if parts else ""


def of_selector(selector: Item | None) -> Iterator[str]:
    """A condition for each label that not every node with a GPU has."""
    for name, value in selector.value.items() if selector is not None else ():
        if _EVERY_NODE.get(name) != value.value:
            yield _label(name, str(value.value))


def _term(source: Source, term: Item) -> Iterator[str]:
    expressions = term.get("matchExpressions")
    for one in expressions.value if expressions is not None else ():
        name, operator = one.text("key"), one.text("operator")
        given = one.get("values")
        values = [str(value.value) for value in given.value] if given is not None else []
        if operator not in ("In", "NotIn"):
            raise PolicyError(
                f"nodeAffinity asks for {shown(name)} with {shown(operator)}, which needs every label of "
                "the nodes",
                place=source.place(one),
                fix="name the values with operator In",
            )
        if operator == "In" and _EVERY_NODE.get(name) in values:
            continue
        either = _joined([_label(name, value) for value in values], "|")
        yield either if operator == "In" else f"~{either}"


def _label(name: str, value: str) -> str:
    quoted = [one.replace("\\", "\\\\").replace("'", "\\'") for one in (name, value)]
    return f"label('{quoted[0]}', '{quoted[1]}')"


def _joined(parts: list[str], operator: str) -> str:
    found = parts[0]
    for part in parts[1:]:
        found = f"({found} {operator} {part})"
    return found


def together(
    pools: list[Pool], shelf: Shelf, notes: list[str]
) -> tuple[tuple[Wanted, ...], tuple[ForLabels, ...], tuple[ForNode, ...]]:
    """The states of all drivers, and what they are on nodes with labels and on Nodes beside the file.

    Args:
        pools: the drivers, one at least.
        shelf: what stands beside the file.
        notes: filled with where the labels come from.

    Raises:
        PolicyError: two of them are for the same nodes.
    """
    narrow: tuple[ForLabels, ...] = ()
    if len(pools) == 1:
        stack = _narrowed(pools[0])
    else:
        stack, narrow = _side_by_side(pools)
    nodes: list[ForNode] = []
    for pool in pools:
        for node, place in _with_labels(shelf, pool.condition):
            nodes.extend(
                ForNode(node, one.state, {**one.parameters, "only": None}, place)
                for one in pool.states
            )
        if pool.condition:
            notes.append(
                f"{pool.place}: for nodes with {pool.condition}: labels are those of the inventory "
                f"(gpustate_labels, node_labels) and of Nodes in {shelf.folder.name}; a node with none of "
                "them keeps the driver it has"
            )
    return stack, narrow, tuple(nodes)


def _with_labels(shelf: Shelf, condition: str) -> Iterator[tuple[str, str]]:
    """Nodes beside the file for which a condition holds, with their places."""
    for file, item in shelf.nodes if condition else ():
        labels = item.get("metadata", "labels")
        given = {LABELS[-1]: plain(labels)} if labels is not None else {}
        name = item.text("metadata", "name")
        if parse(condition).holds(NodeView(name, (), given, NodeFacts())):
            yield name, f"{file}:{item.line}"


def _narrowed(pool: Pool) -> tuple[Wanted, ...]:
    """The states of the one driver there is, on its nodes alone."""
    for state in pool.states if pool.condition else ():
        state.give("only", pool.condition, pool.place)
    return pool.states


def _side_by_side(
    pools: Iterable[Pool],
) -> tuple[tuple[Wanted, ...], tuple[ForLabels, ...]]:
    """The states of several drivers: what holds everywhere, and what on the nodes of each.

    Raises:
        PolicyError: two of them are for the same nodes.
    """
    found = sorted(pools, key=lambda pool: bool(pool.condition))
    seen: dict[str, str] = {}
    for pool in found:
        if pool.condition in seen:
            raise PolicyError(
                f"a second NVIDIADriver for the same nodes, the first is at {seen[pool.condition]}",
                place=pool.place,
                fix="give them nodeSelectors that tell them apart",
            )
        seen[pool.condition] = pool.place
    everywhere: dict[str, Wanted] = {}
    for pool in found:
        for state in pool.states:
            if not pool.condition:
                everywhere[state.state] = state
            else:
                everywhere.setdefault(state.state, Wanted(state.state, {"only": NOWHERE}))
    narrow: list[ForLabels] = []
    for pool in found:
        mine = {state.state: state for state in pool.states}
        for name in everywhere if pool.condition else ():
            there = mine.get(name)
            given = {"only": NOWHERE} if there is None else {**there.parameters, "only": None}
            narrow.append(ForLabels(pool.condition, name, given, pool.place))
    order = [state.state for pool in found for state in pool.states]
    states = sorted(everywhere.values(), key=lambda one: order.index(one.state))
    return tuple(states), tuple(narrow)
