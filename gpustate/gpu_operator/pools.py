"""The drivers of a cluster: one for all nodes, or one per pool of nodes, from NVIDIADrivers.

An NVIDIADriver selects nodes by labels: from the inventory (``node_labels``, ``gpustate_labels``), from Nodes
next to the file, or detected on the node (distribution, architecture). A node without the labels gets no
driver, as with the Operator.

Surprising: with several drivers, each node's driver must be known before connecting to it, so then only the
inventory and Nodes next to the file are used.

Sources:
    NVIDIA/gpu-operator v26.7: internal/validator (selectors that overlap are refused),
    api/nvidia/v1alpha1/nvidiadriver_types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import LABELS
from gpustate.core.where import NOWHERE, parse
from gpustate.errors import PolicyError
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator.companions import CompanionStore
from gpustate.gpu_operator.desired import DesiredState, ForLabels, ForNode, Source
from gpustate.gpu_operator.documents import Item, plain

#: Labels of every node with a GPU; a selector of these selects all.
_EVERY_NODE = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.driver": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "kubernetes.io/os": "linux",
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Pool:
    """One driver.

    Args:
        states: of a node with this driver.
        condition: selects the nodes; empty for all.
        place: of the object.
        title: of the object: ``NVIDIADriver gold``.
    """

    states: tuple[DesiredState, ...]
    condition: str
    place: str
    title: str = "NVIDIADriver"


def driver_stack(driver: DesiredState) -> tuple[DesiredState, ...]:
    """The states of a node with a driver."""
    return (
        *(DesiredState("nouveau"), DesiredState("driver-repository"), driver, *driver.dependents),
        *(DesiredState("persistenced"), DesiredState("nvlsm")),
        DesiredState("fabric-manager"),  # as in the driver container, on nodes with NVSwitches
    )


def condition_of(source: Source) -> str:
    """The node selector of an NVIDIADriver as a condition; empty for all nodes.

    Raises:
        PolicyError: an unsupported operator.
    """
    parts = list(of_selector(source.spec.get("nodeSelector")))
    required = source.spec.get("nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    terms = [list(_term(source, term)) for term in required.value] if required is not None else []
    if terms and all(terms):
        either = [_joined(term, "&") for term in terms]
        parts.append(_joined(either, "|"))
    return _joined(parts, "&") if parts else ""


def of_selector(selector: Item | None) -> Iterator[str]:
    """A condition per label that does not select all GPU nodes anyway."""
    for name, value in selector.value.items() if selector is not None else ():
        if _EVERY_NODE.get(name) != value.value:
            yield _label(name, str(value.value))


def _term(source: Source, term: Item) -> Iterator[str]:
    expressions = term.get("matchExpressions")
    for expression in expressions.value if expressions is not None else ():
        name, operator = expression.text("key"), expression.text("operator")
        listed = expression.get("values")
        values = [str(value.value) for value in listed.value] if listed is not None else []
        if operator not in ("In", "NotIn"):
            raise PolicyError(
                f"nodeAffinity uses operator {quote(operator)} for {quote(name)}, which is unsupported",
                place=source.place(expression),
                fix="list the values with operator In",
            )
        if operator == "In" and _EVERY_NODE.get(name) in values:
            continue
        either = _joined([_label(name, value) for value in values], "|")
        yield either if operator == "In" else f"~{either}"


#: Per label the allowed values (``None``: any) and the excluded ones; labels of every GPU node left out.
Term = dict[str, tuple[frozenset[str] | None, frozenset[str]]]


def terms(spec: Item) -> list[Term]:
    """The node selector of an NVIDIADriver, one term per alternative; a single empty one for all nodes."""
    base: Term = {}
    selector = spec.get("nodeSelector")
    for name, value in _entries(selector):
        if _EVERY_NODE.get(name) != value.value:
            base[name] = frozenset({str(value.value)}), frozenset()
    listed = spec.get("nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    node_terms = listed.value if listed is not None and isinstance(listed.value, list) else []
    return [_with_expressions(base, term) for term in node_terms] or [base]


def _entries(item: Item | None) -> Iterator[tuple[str, Item]]:
    if item is not None and isinstance(item.value, dict):
        yield from item.value.items()


def _with_expressions(base: Term, term: Item) -> Term:
    merged = dict(base)
    listed = term.get("matchExpressions")
    for expression in listed.value if listed is not None and isinstance(listed.value, list) else ():
        name, values = expression.text("key"), expression.get("values")
        texts = frozenset(str(v.value) for v in values.value) if values is not None else frozenset()
        allowed, excluded = merged.get(name, (None, frozenset[str]()))
        if expression.text("operator") == "NotIn":
            merged[name] = allowed, excluded | texts
        elif expression.text("operator") == "In" and _EVERY_NODE.get(name) not in texts:
            merged[name] = texts if allowed is None else allowed & texts, excluded
    return merged


def overlap(first: list[Term], second: list[Term]) -> bool:
    """Whether some node can match both selectors."""
    return any(_compatible(a, b) for a in first for b in second)


def _compatible(first: Term, second: Term) -> bool:
    for name in {*first, *second}:
        both = [term[name] for term in (first, second) if name in term]
        excluded = frozenset[str]().union(*(refused for _, refused in both))
        allowed = [accepted for accepted, _ in both if accepted is not None]
        if allowed and not frozenset.intersection(*allowed) - excluded:
            return False
    return True


def _label(name: str, value: str) -> str:
    quoted = [text.replace("\\", "\\\\").replace("'", "\\'") for text in (name, value)]
    return f"label('{quoted[0]}', '{quoted[1]}')"


def _joined(parts: list[str], operator: str) -> str:
    expression = parts[0]
    for part in parts[1:]:
        expression = f"({expression} {operator} {part})"
    return expression


def combine(
    pools: list[Pool], store: CompanionStore, notes: list[str]
) -> tuple[tuple[DesiredState, ...], tuple[ForLabels, ...], tuple[ForNode, ...]]:
    """The states of all drivers, and their parameters by label and by Node next to the file.

    Args:
        pools: the drivers, at least one.
        store: the objects next to the file.
        notes: filled with the sources of the labels.

    Raises:
        PolicyError: two of them select the same nodes.
    """
    narrow: tuple[ForLabels, ...] = ()
    if len(pools) == 1:
        stack = _narrowed(pools[0])
    else:
        stack, narrow = _side_by_side(pools)
        _share_drain(stack, pools, notes)
    nodes: list[ForNode] = []
    drivers: dict[str, Pool] = {}
    for pool in pools:
        for node, place in _with_labels(store, pool.condition):
            owner = drivers.setdefault(node, pool)
            if owner is not pool:
                raise PolicyError(
                    f"{owner.title} ({owner.place}) and {pool.title} ({pool.place}) select the same node "
                    f"{quote_name(node)}",
                    place=place,
                    fix=f"remove a label of the node, or change a selector: {owner.condition}, "
                    f"{pool.condition}",
                )
            nodes.extend(
                ForNode(node, state.state, {**state.parameters, "only": None}, place)
                for state in pool.states
            )
        if pool.condition:
            notes.append(
                f"{pool.place}: for nodes with {pool.condition}: labels come from the inventory "
                f"(gpustate_labels, node_labels) and from Nodes in {store.folder.name}; other nodes keep "
                "their driver"
            )
    return stack, narrow, tuple(nodes)


def _share_drain(stack: Iterable[DesiredState], pools: Iterable[Pool], notes: list[str]) -> None:
    """Workloads leave all nodes in the same way, so it is used only where all drivers agree."""
    drains = [
        (pool, next((state.drain for state in pool.states if state.state == "driver"), None))
        for pool in pools
    ]
    same = all(drain == drains[0][1] for _, drain in drains)
    for state in stack:
        if state.state == "driver":
            state.drain = drains[0][1] if same else None
    if not same:
        notes.extend(
            f"{pool.place}: not carried out: upgradePolicy of {pool.title}: how workloads leave differs "
            "from other NVIDIADrivers; apply their nodes one after the other with options such as "
            "--set drain.timeout_s=600"
            for pool, drain in drains
            if drain is not None
        )


def _with_labels(store: CompanionStore, condition: str) -> Iterator[tuple[str, str]]:
    """Nodes next to the file that match a condition, with their places."""
    for file, item in store.nodes if condition else ():
        labels = item.get("metadata", "labels")
        labels_by_source = {LABELS[-1]: plain(labels)} if labels is not None else {}
        name = item.text("metadata", "name")
        if parse(condition).holds(NodeView(name, (), labels_by_source, NodeFacts())):
            yield name, f"{file}:{item.line}"


def _narrowed(pool: Pool) -> tuple[DesiredState, ...]:
    """The states of a single driver, on its nodes only."""
    for state in pool.states if pool.condition else ():
        state.set("only", pool.condition, pool.place)
    return pool.states


def _side_by_side(pools: Iterable[Pool]) -> tuple[tuple[DesiredState, ...], tuple[ForLabels, ...]]:
    """The states of several drivers: common parameters, and those of each driver's nodes.

    Raises:
        PolicyError: two of them select the same nodes.
    """
    ordered = sorted(pools, key=lambda pool: bool(pool.condition))
    places: dict[str, str] = {}
    for pool in ordered:
        if pool.condition in places:
            raise PolicyError(
                f"a second NVIDIADriver for the same nodes, the first is at {places[pool.condition]}",
                place=pool.place,
                fix="give them different nodeSelectors",
            )
        places[pool.condition] = pool.place
    everywhere: dict[str, DesiredState] = {}
    for pool in ordered:
        for state in pool.states:
            if not pool.condition:
                everywhere[state.state] = state
            else:
                everywhere.setdefault(state.state, DesiredState(state.state, {"only": NOWHERE}))
    narrow: list[ForLabels] = []
    for pool in ordered:
        own_states = {state.state: state for state in pool.states}
        for name in everywhere if pool.condition else ():
            match = own_states.get(name)
            values = {"only": NOWHERE} if match is None else {**match.parameters, "only": None}
            narrow.append(ForLabels(pool.condition, name, values, pool.place, title=pool.title))
    order = [state.state for pool in ordered for state in pool.states]
    states = sorted(everywhere.values(), key=lambda state: order.index(state.state))
    return tuple(states), tuple(narrow)
