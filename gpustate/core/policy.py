"""A policy: which states, with which parameters, on which nodes.

The order of the states means nothing; they say themselves what they need. Their parameters come in
layers, the narrower one winning (:mod:`gpustate.core.layers`): the policy's own for the fleet, for
groups and for nodes, and beside each the inventory's variable ``gpustate``::

    gpustate:
      driver: {branch: 570}

A lock file, a bundle and ``ensure`` of the command line are parts of the policy, too: :meth:`Policy.with_locks`,
:meth:`Policy.but` and :meth:`Policy.with_ensure` make another policy, and :func:`resolve` alone says what a node gets.

Paths of values are those of a policy as YAML: ``states.driver.branch``,
``groups.inference.driver.branch``, ``nodes.gpu7.driver.branch``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gpustate.core.building import build, build_in_part, every_parameter, explain, parameters
from gpustate.core.drain import DrainPolicy, drain_policy
from gpustate.core.inventory import InventoryNode
from gpustate.core.layering import ALLOW, SECTIONS, groups_of, layers_of, place_for_node
from gpustate.core.layers import (
    COMMAND_LINE,
    LOCK_FILE,
    REMOVED,
    Layer,
    Path,
    dotted,
    merged,
    value_at,
)
from gpustate.core.parameter_errors import in_part, show_value
from gpustate.core.rollout import RolloutPolicy, rollout_policy
from gpustate.core.state import AnyState, State
from gpustate.core.where import NOWHERE
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats.masking import remember_parameters
from gpustate.formats.words import kind_of, quote, quote_name, suggest

__all__ = [
    "Policy",
    "Resolved",
    "build",
    "every_parameter",
    "explain",
    "layers_of",
    "parameters",
    "resolve",
    "unselected",
]

#: For groups or nodes, by name: parameters by state, and ``allow``.
Overrides = Mapping[str, Mapping[str, JsonView]]
#: What nodes with the same layers share; the node stays with it, for the key holds ids of its parts.
_Cached = tuple[tuple[Layer, ...], tuple[AnyState, ...], InventoryNode]


@runtime_checkable
class ClusterPart(Protocol):
    """Settings of the objects of the nodes' cluster, which a policy carries and does not know."""

    def as_data(self) -> Json:
        """Plain data with the values that are not defaults."""
        ...

    def matrix_facts(self) -> Mapping[str, object]:
        """Facts for the compatibility matrix, by name."""
        ...


class Policy:
    """States that should hold together.

    Args:
        states: at most one of each name.
        name: shown in plans; the file's name when not given.
        notes: what a reader of another format could not express, shown in the plan.
        allow: rules of the compatibility matrix to go on in spite of, each with the reason.
        groups, nodes: for groups and nodes of the inventory, parameters by state that replace those
            given here. A group may be a condition on labels instead: ``label('pool', 'gold')``.
        places: where values stand, by path; readers of files give it.
        last: paths of values that no narrower layer replaces; the command line's.
        rollout: how many nodes change at a time, or plain data for it; ``None``: by the defaults.
        drain: how workloads leave, or plain data for it; ``None``: by the defaults.
        cluster: settings of the objects of the nodes' cluster (:class:`gpustate.manifests.ClusterSettings`); ``None``: there are none.
        without: names of states that are left out, although others of the policy imply them.
        unsettled: by name, what is wrong with states whose parameters fit together only with those of other layers.

    Raises:
        PolicyError: one name twice, parameters for a group or node that cannot be, or no settings in ``cluster``.
    """

    def __init__(
        self,
        *states: AnyState,
        name: str | None = None,
        notes: tuple[str, ...] = (),
        allow: Mapping[str, str] | None = None,
        groups: Overrides | None = None,
        nodes: Overrides | None = None,
        places: Mapping[Path, str] | None = None,
        last: Iterable[Path] = (),
        rollout: RolloutPolicy | JsonView | None = None,
        drain: DrainPolicy | JsonView | None = None,
        cluster: ClusterPart | None = None,
        without: Iterable[str] = (),
        unsettled: Mapping[str, PolicyError] | None = None,
    ) -> None:
        names: set[str] = set()
        for state in states:
            if not isinstance(state, State):
                raise PolicyError(
                    f"{state!r} is not a state", fix="call the state class: Driver(...)"
                )
            if state.name in names:
                raise PolicyError(
                    f"state {state.name!r} is defined twice",
                    fix="keep one and override it per group",
                )
            names.add(state.name)
        self.states = states
        self.name = name
        self.notes = notes
        self.places = dict(places or {})
        self.allow = _reasons(allow or {}, self.places.get((ALLOW,)))
        self.groups = self._overrides("groups", groups or {})
        self.nodes = self._overrides("nodes", nodes or {})
        self.last = _paths(last)
        self.rollout = rollout_policy(rollout, self.places)
        self.drain = drain_policy(drain, self.places)
        self.cluster = cluster
        if cluster is not None:
            if not isinstance(cluster, ClusterPart):
                raise PolicyError(
                    f"cluster: is {kind_of(cluster)}, wanted settings",
                    fix="write: cluster=ClusterSettings(...), of gpustate.manifests",
                )
            remember_parameters(cluster.as_data())
        self.without = tuple(without)
        self.unsettled = dict(unsettled or {})
        #: What a file said at those paths, with its place; for those who ask why.
        self.replaced: dict[Path, tuple[Any, str]] = {}
        #: Groups of which a node may be in one only, with the object of the Operator's file that each is from.
        self.exclusive: Mapping[str, str] = {}
        #: Release of the GPU Operator that its file is for; empty for other policies.
        self.release = ""
        #: What a lock file says about nodes, by their names.
        self.locked: Mapping[str, Layer] = {}
        self._resolved: dict[tuple[object, ...], _Cached] = {}

    def __repr__(self) -> str:
        return f"Policy({', '.join(state.name for state in self.states)})"

    def with_states(
        self,
        *states: AnyState,
        name: str | None = None,
        last: Iterable[Path] = (),
        places: Mapping[Path, str] | None = None,
    ) -> Policy:
        """The same policy with other states; what it says for groups and nodes about others is left out."""
        names = {state.name for state in states} | {ALLOW}

        def restrict(overrides: Overrides) -> dict[str, Json]:
            return {
                key: {state: values for state, values in body.items() if state in names}
                for key, body in overrides.items()
            }

        policy = Policy(
            *states,
            name=name or self.name,
            notes=self.notes,
            allow=self.allow,
            groups=restrict(self.groups),
            nodes=restrict(self.nodes),
            places=self.places if places is None else places,
            last=(*self.last, *last),
            rollout=self.rollout,
            drain=self.drain,
            cluster=self.cluster,
            without=self.without,
            unsettled={name: error for name, error in self.unsettled.items() if name in names},
        )
        policy.replaced.update(self.replaced)
        policy.exclusive, policy.release = self.exclusive, self.release
        policy.locked = self.locked
        return policy

    def with_cluster(self, settings: ClusterPart) -> Policy:
        """The same policy with other settings of the cluster's objects."""
        policy = self.with_states(*self.states)
        policy.cluster = settings
        return policy

    def with_locks(self, locks: Mapping[str, Mapping[str, JsonView]], place: str) -> Policy:
        """The same policy with what a lock file says about nodes, in the place of any other lock file.

        Args:
            locks: by node, parameters by state. Nodes with one and the same mapping share their states.
            place: the lock file.
        """
        policy = self.with_states(*self.states)
        layers = {id(lock): Layer(LOCK_FILE, states=lock, place=place) for lock in locks.values()}
        policy.locked = {name: layers[id(lock)] for name, lock in locks.items()}
        return policy

    def layers_data(self) -> Json:
        """What the policy says beside its states, as plain data that the constructor takes again."""
        last = [list(path) for path in self.last]
        drain = self.drain.as_data() if self.drain is not None else {}
        data = {
            "groups": self.groups,
            "nodes": self.nodes,
            "last": last,
            "rollout": self.rollout.as_data(),
            "drain": drain,
        }
        return {key: value for key, value in data.items() if value}

    def with_ensure(self, ensure: str) -> Policy:
        """The same policy with every state's ``ensure`` set; ``absent`` removes everything."""
        with in_part():
            states = [build(type(s), {**parameters(s), "ensure": ensure}) for s in self.states]
        return self.with_states(*states, last=(("states", s.name, "ensure") for s in states))

    def _overrides(self, section: str, overrides: Overrides) -> dict[str, Json]:
        """Check what is said for groups or nodes.

        Raises:
            PolicyError: with the place of what is wrong.
        """
        by_name = {state.name: state for state in self.states}
        fleet = Layer("fleet", places=self.places)
        if not isinstance(overrides, Mapping):
            raise PolicyError(
                f"{section}: must map names to states, is {show_value(overrides)}",
                place=fleet.place_of((section,)) or None,
            )
        for key, body in overrides.items():
            key_place = fleet.place_of((section, str(key))) or None
            title = f"{section}.{quote_name(key)}"
            if not isinstance(body, Mapping):
                raise PolicyError(
                    f"{title}: must map states to parameters, is {show_value(body)}",
                    place=key_place,
                )
            for name, values in body.items():
                path = (section, str(key), str(name))
                place = fleet.place_of(path) or None
                if name == ALLOW:
                    _reasons(values, place)
                    continue
                if name not in by_name and ("states", str(name)) in self.places:
                    # Only what a change removed has a place, and is not there.
                    suffix = f" ({place})" if place else ""
                    raise PolicyError(
                        f"removes the state {quote(name)}, which {title} changes{suffix}",
                        place=self.places["states", str(name)],
                        fix="remove that too",
                    )
                if name not in by_name:
                    raise PolicyError(
                        f"{title}: the policy has no state {quote(name)}",
                        place=place,
                        fix=_near(str(name), by_name),
                    )
                _built(by_name[name], values, fleet, path, title)
        return {str(key): dict(body) for key, body in overrides.items()}


def _built(state: AnyState, values: object, fleet: Layer, path: Path, title: str) -> None:
    """Check parameters for a group or node against the state they are for."""
    place = fleet.place_of(path) or None
    if not isinstance(values, Mapping):
        raise PolicyError(
            f"{title}: {state.name}: must map parameters to values, is {show_value(values)}",
            place=place,
        )
    layers = (
        Layer("fleet", states={state.name: parameters(state)}),
        Layer("group", states={state.name: values}),
    )
    try:
        with in_part():
            build(
                type(state),
                merged(layers, state.name),
                locate=lambda loc: fleet.place_of((*path, *map(str, loc))),
            )
    except PolicyError as error:
        raise PolicyError(
            f"{title}: {error.message}", place=error.place or None, fix=error.fix
        ) from None


def _paths(last: Iterable[Iterable[str]]) -> tuple[Path, ...]:
    """Paths of values, each once, sorted; a saved plan has them as lists.

    Raises:
        PolicyError: they are no paths.
    """
    paths: set[Path] = set()
    for entry in last if isinstance(last, Iterable) else (None,):
        path: Path = tuple(entry) if isinstance(entry, list | tuple) else ()
        section = str(path[0]) if path else ""
        complete = len(path) > (1 if section == "states" else 2)
        if not complete or section not in SECTIONS or not all(isinstance(key, str) for key in path):
            raise PolicyError(f"{quote(entry)} is not a path of a value")
        paths.add(path)
    return tuple(sorted(paths))


def _reasons(allow: object, place: str | None) -> dict[str, str]:
    """Exceptions from rules of the compatibility matrix, each with its reason.

    Raises:
        PolicyError: they are no mapping of ids to text.
    """
    if not isinstance(allow, Mapping):
        raise PolicyError(f"allow: must map rules to reasons, is {show_value(allow)}", place=place)
    for name, reason in allow.items():
        if not isinstance(reason, str) or not reason.strip():
            raise PolicyError(f"allow: {quote_name(name)}: wants a reason, as text", place=place)
    return {str(name): str(reason) for name, reason in allow.items()}


def _near(name: str, candidates: Iterable[str]) -> str:
    names = sorted(candidates)
    if not names:
        return "it has no state at all"
    return suggest(name, names, f"there are {', '.join(names)}", form="{!r}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The states of one node with its own parameters."""

    node: InventoryNode
    states: tuple[AnyState, ...]
    notes: tuple[str, ...] = ()
    allow: Mapping[str, str] = field(default_factory=dict[str, str])
    cluster: ClusterPart | None = None


def resolve(policy: Policy, node: InventoryNode, registered: Collection[str] = ()) -> Resolved:
    """Put the layers of one node together.

    Args:
        policy: for all nodes.
        node: the one.
        registered: names of all registered states. An override of one that the policy lacks is meant
            for another policy; one of a name that nobody has is a mistake.

    Raises:
        PolicyError: overrides of a wrong shape or with parameters a state does not have, with the
            place they came from; two objects of another program's file that both select the node.
    """
    key = _key(policy, node)
    _check_exclusive(policy, node)
    if key == ((), (), ()) and not policy.last and not policy.unsettled:
        return Resolved(node, policy.states, allow=policy.allow, cluster=policy.cluster)
    if key not in policy._resolved:
        layers = layers_of(policy, node)
        states = tuple(_state(state, layers, node, policy.unsettled) for state in policy.states)
        policy._resolved[key] = (layers, states, node)
    layers, states, _ = policy._resolved[key]
    allow = dict(policy.allow)
    notes: list[str] = []
    for layer in layers:
        if layer.scope in (LOCK_FILE, COMMAND_LINE):
            continue
        allow.update(_reasons(layer.states.get(ALLOW, {}), _place_in(layer, (ALLOW,), node)))
        notes.extend(_note_unknown(policy, layer, node, registered))
    notes.extend(_without_effect(states, layers, node))
    return Resolved(node, states, tuple(notes), allow, policy.cluster)


def _check_exclusive(policy: Policy, node: InventoryNode) -> None:
    """Refuse a node that several objects select, where the program of the file allows one."""
    exclusive = policy.exclusive
    if len(exclusive) < 2:
        return
    groups = [group for group in groups_of(policy, node) if group in exclusive]
    if len(groups) > 1:
        raise PolicyError(
            f"{' and '.join(exclusive[group] for group in groups)} select the same node {quote_name(node.name)}",
            place=policy.places.get(("groups", groups[-1])),
            fix=f"remove a label of the node, or change a selector: {', '.join(groups)}",
        )


def unselected(policy: Policy, node: InventoryNode) -> str:
    """The objects of another program's file if none of them selects a node; empty otherwise."""
    exclusive = policy.exclusive
    if not exclusive or any(group in exclusive for group in groups_of(policy, node)):
        return ""
    narrow = {name for group in exclusive for name in policy.groups.get(group, {})}
    conditions = [state.only for state in policy.states if state.name in narrow]
    if not all(only is not None and only.text == NOWHERE for only in conditions):
        return ""  # one is for all other nodes
    return ", ".join(f"{title}: {group}" for group, title in exclusive.items())


def _key(policy: Policy, node: InventoryNode) -> tuple[object, ...]:
    """Equal for nodes to which the same layers apply; three empty ones where none does."""
    groups = groups_of(policy, node)
    # A name only where something is said about it: nodes share what they have in common.
    named_here = node.name in policy.nodes or any(
        path[0] == "nodes" and path[1:2] == (node.name,) for path in policy.last
    )
    alone = node.vars.get("gpustate") is not None and not node.layers
    values = [id(layer.value) for layer in node.layers if layer.value is not None]
    locked = policy.locked.get(node.name)
    return (
        tuple(groups),
        (node.name,) if named_here or alone else (),
        (
            *values,
            *([id(node.vars["gpustate"])] if alone else []),
            *([id(locked)] if locked is not None else []),
        ),
    )


def _state(
    state: AnyState,
    layers: tuple[Layer, ...],
    node: InventoryNode,
    unsettled: Mapping[str, PolicyError],
) -> AnyState:
    """One state with what all layers say about it."""
    values = merged(layers, state.name)
    if values == parameters(state):
        if state.name in unsettled:
            raise unsettled[state.name]
        return state

    def place(loc: tuple[str | int, ...]) -> str | None:
        path = (state.name, *map(str, loc))
        for layer in reversed(layers):
            fitting = (keys for keys, _ in layer.exact if keys[: len(path)] == path[: len(keys)])
            if (exact := next(fitting, None)) is not None:
                return layer.place_of(max(path, exact, key=len))
            for end in range(len(path), 1, -1):
                if value_at(layer.states, path[:end]) is not REMOVED:
                    return _place_in(layer, path, node)
        return None

    own_layers = [layer for layer in layers if layer.states.get(state.name)]
    origin = _place_in(own_layers[-1], (state.name,), node) if own_layers else None
    try:
        return build(type(state), values, place=origin, locate=place)
    except PolicyError as error:
        build_in_part(type(state), values, error)  # fails where no layer is at fault
        names = _of_other_layers(type(state), values, layers)
        if not names:
            raise
        places = {name: place((name,)) or "another layer" for name in names}
        removed = " and ".join(f"{name} ({where})" for name, where in places.items())
        options = " ".join(f"--set {dotted((state.name, name))}=null" for name in names)
        fix = f"remove {removed}, or add {options}"
        raise PolicyError(error.message, place=error.place, fix=error.fix or fix) from None


def _of_other_layers(cls: type[AnyState], values: JsonView, layers: tuple[Layer, ...]) -> list[str]:
    """Parameters of weaker layers that do not fit those of the strongest one that has any of the state."""

    def layer_of(name: str) -> int:
        path = (cls.name, name)
        numbers = [
            number
            for number, layer in enumerate(layers)
            if value_at(layer.states, path) is not REMOVED
            or any(exact[:2] == path or exact == path[:1] for exact, _ in layer.exact)
        ]
        return max(numbers, default=0)

    numbers = {name: layer_of(name) for name in values}
    fitting = {n: values[n] for n in values if numbers[n] == max(numbers.values())}
    misfits: list[str] = []
    for name in (None, *(name for name in values if name not in fitting)):
        more = {} if name is None else {name: values[name]}
        try:
            build(cls, {**fitting, **more})
        except PolicyError:
            if name is None:
                return []
            misfits.append(name)
        else:
            fitting |= more
    return misfits


def _place_in(layer: Layer, path: Path, node: InventoryNode) -> str | None:
    place = layer.place_of(path)
    return place_for_node(place, node) if layer.inventory else place or None


def _without_effect(
    states: tuple[AnyState, ...], layers: tuple[Layer, ...], node: InventoryNode
) -> Iterator[str]:
    """Notes on parameters that a narrower layer gives to a state that a wider one removes."""
    for state in states:
        if not state.absent:
            continue
        ensure = (state.name, "ensure")
        removing = max(
            number
            for number, layer in enumerate(layers)
            if value_at(layer.states, ensure) is not REMOVED
            or any(ensure[: len(path)] == path for path, _ in layer.exact)
        )
        origin = _place_in(layers[removing], ensure, node) or layers[removing].title
        for layer in layers[removing + 1 :]:
            exact = [path for path, _ in layer.exact if path[0] == state.name]
            for path in (*((state.name, key) for key in layer.states.get(state.name, ())), *exact):
                place = _place_in(layer, path, node) or layer.title
                yield f"{place}: {dotted(path)} has no effect, ensure is absent ({origin})"


def _note_unknown(
    policy: Policy, layer: Layer, node: InventoryNode, registered: Collection[str]
) -> Iterator[str]:
    """Notes on states that the policy lacks; an error for one that nobody has."""
    names = {state.name for state in policy.states} | {ALLOW}
    for name in sorted(set(layer.states) - names):
        place = place_for_node(layer.place_of((name,)), node)
        if registered and name not in registered:
            raise PolicyError(
                f"there is no state {quote(name)}", place=place, fix=_near(name, registered)
            )
        if not registered:
            yield f"{place}.{quote_name(name)}: the policy has no such state; ignored"
