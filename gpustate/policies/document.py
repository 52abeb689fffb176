"""gpustate's own policies in YAML: a closed schema, and errors with file, line and key.

::

    preset: kubernetes-node
    driver: {branch: 580}
    containerd: {only: runtime('containerd')}
    quarantine: false
    groups:
      inference:
        driver: {branch: 570}
    cluster:
      device_plugin: {env: {DP_DISABLE_HEALTHCHECKS: xids}}

``preset`` stands for the states of :mod:`gpustate.presets`. Beside it states may stand at the top; without it they
are below ``states``. A state without parameters has its defaults; ``false`` leaves it out, of a preset too. ``groups`` and ``nodes`` refer to those of the inventory,
``rollout`` says how many nodes change at a time (:class:`gpustate.core.rollout.RolloutPolicy`), ``drain`` how workloads
leave a node (:class:`gpustate.core.drain.DrainPolicy`), and ``cluster`` what the nodes' cluster
has (:class:`gpustate.manifests.ClusterSettings`; nothing for the defaults). JSON with the same keys is read too.

Surprising: YAML reads an unquoted ``580.10`` as a number and ``on`` as true. If a parameter needs text, the error
with its line suggests quotes.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from gpustate import registry
from gpustate.core import where
from gpustate.core.building import build_in_part
from gpustate.core.layering import ALLOW, by_label
from gpustate.core.layers import REMOVED, Path, value_at
from gpustate.core.policy import Policy, build, every_parameter, parameters
from gpustate.core.state import AnyState
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote, quote_name
from gpustate.manifests import ClusterSettings, cluster_part
from gpustate.policies import trees
from gpustate.policies.changes import quoting
from gpustate.policies.implying import implied, left_out
from gpustate.policies.trees import Tree
from gpustate.presets import STACKS

FORMAT = "gpustate.policy/1"
#: Keys of a document in written order.
KEYS = (
    *("format", "name", "preset", "states", "groups", "nodes", "allow", "rollout", "drain"),
    "cluster",
)
#: Recognises a policy in YAML or JSON by a line; a name of a preset also behind a misspelled key.
_MARK = re.compile(r"""^[ \t{]*["']?\w+["']?[ \t]*:[ \t]*["']?gpustate\.policy/""", re.MULTILINE)
_LIKELY = re.compile(
    rf"""^[ \t{{]*["']?(states["']?[ \t]*:|preset["']?[ \t]*:|\w+["']?[ \t]*:[ \t]*["']?({"|".join(STACKS)})\b)""",
    re.MULTILINE,
)

StateClasses = Mapping[str, type[AnyState]]


def is_one(text: str) -> bool:
    """Whether a text is a policy in gpustate's own format."""
    return _MARK.search(text) is not None or _LIKELY.search(text) is not None


def read(text: str, path: str) -> Tree:
    """Parse the text of a policy, without the checks of :func:`make`; states beside a preset are moved below ``states``.

    Raises:
        PolicyError: it is not YAML, or a state stands in both places.
    """
    items = [tree for tree in trees.documents(text, path) if tree.value is not None]
    if not items:
        raise PolicyError("is empty, wanted a policy", place=path)
    return trees.housed(items[0], home) if items[0].get("preset") is not None else items[0]


def home(key: str) -> Path:
    """The parent of a path: states are written without the prefix ``states``; a misspelled key is at the top."""
    top_level = key in KEYS or (
        registry.find(key) is None and difflib.get_close_matches(key, KEYS, 1, 0.75)
    )
    return () if top_level else ("states",)


def expanded(tree: Tree) -> Tree:
    """A document with the states of its preset below ``states``.

    Raises:
        PolicyError: there is no such preset.
    """
    preset = tree.get("preset")
    if preset is None:
        return tree
    stack = STACKS.get(preset.value) if isinstance(preset.value, str) else None
    if stack is None:
        near = difflib.get_close_matches(str(preset.value), STACKS, 1)
        raise PolicyError(
            f"there is no preset {quote(trees.plain(preset))}",
            place=preset.place,
            fix=f"did you mean {near[0]!r}" if near else f"presets: {', '.join(STACKS)}",
        )
    document = {key: value for key, value in tree.value.items() if key != "preset"}
    section = Tree({}, f"preset {preset.value} ({preset.place})")
    listed = document.get("states") or section
    if listed.value is not None and not isinstance(listed.value, dict):
        return Tree(document, tree.place)  # refused by its type
    states = {name: trees.from_data(dict(values), section.place) for name, values in stack.items()}
    for name, state in (listed.value or {}).items():
        base = states.get(name)
        if base is not None and (state.value is None or isinstance(state.value, dict)):
            state = Tree(base.value | (state.value or {}), state.place)
        states[name] = state
    document["states"] = Tree(states, listed.place)
    return Tree(document, tree.place)


def value_by_default(path: Path) -> Any:
    """The value of a state's parameter, or of a section, that a document does not set; else ``REMOVED``."""
    if len(path) == 1 and path[0] in KEYS and path[0] not in ("format", "name", "preset", "states"):
        return {}
    cls = registry.find(path[1]) if path[0] == "states" and len(path) > 2 else None
    if cls is None:
        return REMOVED
    try:
        return value_at(every_parameter(build(cls, {})), path[2:])
    except PolicyError:
        return REMOVED  # it has a parameter without a default


def of_policy(policy: Policy, places: Mapping[Path, str], place: str) -> Tree:
    """A policy as a document with the places of its values."""

    def tree(data: Any, above: Path) -> Tree:
        origin = next(
            (places[above[:n]] for n in range(len(above), 0, -1) if above[:n] in places), place
        )
        if isinstance(data, Mapping):
            return Tree({str(k): tree(v, (*above, str(k))) for k, v in data.items()}, origin)
        return trees.from_data(data, origin)

    return tree(as_data(policy), ())


def as_data(policy: Policy) -> Json:
    """A policy as the plain data of its document."""
    data: Json = {"format": FORMAT}
    if policy.name:
        data["name"] = policy.name
    data["states"] = {state.name: parameters(state) for state in policy.states}
    data["states"] |= dict.fromkeys(left_out(policy), False)
    for key, value in (("groups", policy.groups), ("nodes", policy.nodes), ("allow", policy.allow)):
        if value:
            data[key] = value
    if rollout := policy.rollout.as_data():
        data["rollout"] = rollout
    if policy.drain is not None and policy.drain.as_data():
        data["drain"] = policy.drain.as_data()
    if policy.cluster is not None:
        data["cluster"] = policy.cluster.as_data()
    return data


def make(
    tree: Tree,
    *,
    classes: StateClasses | None = None,
    notes: tuple[str, ...] = (),
    touched: Mapping[Path, str] | None = None,
    before: Tree | None = None,
) -> Policy:
    """Build the policy of a document.

    Args:
        tree: the document.
        classes: unregistered states of a policy in Python.
        notes: of the policy.
        touched: paths set on the command line, with their places.
        before: the document before these changes.

    Raises:
        PolicyError: with the place and the key of the first problem.
    """
    policy = _Maker(tree, dict(classes or {}), touched or {}, before).policy(notes)
    if before is not None:
        policy.replaced.update(_replaced(policy.last, before))
    return policy


@dataclass(frozen=True, slots=True)
class _Maker:
    """Checks a document and builds a policy."""

    tree: Tree
    classes: dict[str, type[AnyState]] = field(default_factory=dict[str, type[AnyState]])
    touched: Mapping[Path, str] = field(default_factory=dict[Path, str])
    before: Tree | None = None
    unsettled: dict[str, PolicyError] = field(default_factory=dict[str, PolicyError])

    def policy(self, notes: tuple[str, ...]) -> Policy:
        self._check_top()
        _check_values(self.tree, ())
        places = {**dict(trees.places(self.tree)), **self.touched}
        name = self.tree.get("name")
        if name is not None and name.value is not None and not isinstance(name.value, str):
            raise PolicyError(
                f"name is {kind_of(name.value)}, wanted a string",
                place=name.place,
                fix="put it in quotes",
            )
        listed = self._mapping(("states",))
        states = [self._state(key, tree) for key, tree in listed.items() if tree.value is not False]
        without = [name for name, tree in listed.items() if tree.value is False]
        groups, nodes = self._overrides("groups"), self._overrides("nodes")
        states += self._confined({*listed, *implied(states, without), ALLOW}, groups, nodes)
        for state, reason in implied(states, without).values():
            states.append(state)
            places["states", state.name] = reason
        return Policy(
            *states,
            name=(name.value or None) if name is not None else None,
            notes=notes,
            allow=trees.plain(self.tree.get("allow") or Tree({}, "")) or {},
            groups=groups,
            nodes=nodes,
            places=places,
            last=_last(self.touched, trees.plain(self.tree)),
            rollout=trees.plain(self.tree.get("rollout") or Tree(None, "")),
            drain=trees.plain(self.tree.get("drain") or Tree(None, "")),
            cluster=self._cluster(places),
            without=without,
            unsettled=self.unsettled,
        )

    def _cluster(self, places: Mapping[Path, str]) -> ClusterSettings | None:
        """The settings of a cluster's objects; a key without a value has the defaults."""
        tree = self.tree.get(cluster_part.SECTION)
        if tree is None:
            return None
        settings = cluster_part.read({} if tree.value is None else trees.plain(tree), places)
        cluster_part.refuse_ignored(settings, places)
        return settings

    def _check_top(self) -> None:
        if not isinstance(self.tree.value, dict):
            raise PolicyError(
                f"is {kind_of(self.tree.value)}, wanted a policy",
                place=self.tree.place,
                fix=f"begin with: preset: {next(iter(STACKS))}",
            )
        mark, preset = self.tree.get("format"), self.tree.get("preset")
        if mark is not None and mark.value != FORMAT:
            raise PolicyError(f"format is {quote(mark.value)}, wanted {FORMAT!r}", place=mark.place)
        if preset is not None:
            raise PolicyError(
                "a patch cannot change the preset", place=preset.place, fix="use --set preset=NAME"
            )
        for key, value in self.tree.value.items():
            if key not in KEYS:
                raise PolicyError(f"unknown key {quote(key)}", place=value.place, fix=_hint(key))
        if self.tree.get("states") is None:
            raise PolicyError(
                "lacks 'preset' and 'states'",
                place=self.tree.place,
                fix=f"write: preset: {next(iter(STACKS))}, or list states under 'states:'",
            )

    def _mapping(self, keys: Path, contents: str = "states to parameters") -> dict[str, Tree]:
        tree = self.tree.get(*keys)
        if tree is None or tree.value is None:
            return {}
        if not isinstance(tree.value, dict):
            raise PolicyError(
                f"{'.'.join(map(quote_name, keys))} is {kind_of(tree.value)}, wanted a mapping of {contents}",
                place=tree.place,
                fix="write 'name:' entries, without '- '" if isinstance(tree.value, list) else None,
            )
        mapping: dict[str, Tree] = tree.value
        return mapping

    def _state(self, name: str, tree: Tree) -> AnyState:
        cls = self.classes.get(name) or registry.find(name)
        if cls is None:
            raise PolicyError(
                f"states: unknown state {quote(name)}", place=tree.place, fix=registry.hint(name)
            )
        if tree.value is not None and not isinstance(tree.value, dict):
            raise PolicyError(
                f"states.{name} is {kind_of(tree.value)}, wanted a mapping of parameters to values",
                place=tree.place,
            )
        values = trees.plain(tree) or {}

        def place(loc: tuple[str | int, ...]) -> str:
            current: Tree = tree
            for step in loc:
                below = _below(current, step)
                if below is None:
                    break
                current = below
            return current.place

        try:
            return build(cls, values, place=tree.place, locate=place)
        except PolicyError as error:
            at = self._blamed(cls, values, error.place)
            fix = quoting(at, error.fix or _quote(error.message))
            mistake = PolicyError(f"states.{error.message}", place=at, fix=fix)
            state = build_in_part(cls, values, mistake)
            self.unsettled[name] = mistake
            return state

    def _blamed(self, cls: type[AnyState], values: JsonView, at: str | None) -> str | None:
        """The place of an error: that of a change, if the error occurs only with the change.

        A validator may report the section of a value, or another value that conflicts with it.
        """
        home = ("states", cls.name)
        changes = {path[2:]: at_ for path, at_ in self.touched.items() if path[:2] == home}
        if at in changes.values():
            return at
        old = self.before.get(*home) if self.before is not None else None
        was = (trees.plain(old) if old is not None else None) or {}
        undone = [
            at_
            for path, at_ in changes.items()
            if path and isinstance(was, dict) and _good(cls, _as_before(values, was, path))
        ]
        return undone[-1] if undone else at

    def _confined(
        self, listed: Collection[str], groups: Mapping[str, JsonView], nodes: Mapping[str, JsonView]
    ) -> Iterator[AnyState]:
        """The states that only groups or nodes have: each with their condition."""
        conditions: dict[str, list[where.Condition]] = {}
        for key, body in groups.items():
            for name in body:
                condition = where.parse(key) if by_label(key) else where.group(key)
                conditions.setdefault(name, []).append(condition)
        for key, body in nodes.items():
            for name in body:
                conditions.setdefault(name, []).append(where.node(key))
        for name, alternatives in conditions.items():
            cls = self.classes.get(name) or registry.find(name)
            if cls is None or name in listed or ("states", name) in self.touched:
                continue  # refused by the policy, with its place
            yield build(cls, {"only": reduce(or_, alternatives).text}, place=self.tree.place)

    def _overrides(self, section: str) -> dict[str, Json]:
        overrides: dict[str, Json] = {}
        for name in self._mapping((section,), "names to states"):
            body = self._mapping((section, name))
            overrides[name] = {state: trees.plain(tree) or {} for state, tree in body.items()}
        return overrides


def _good(cls: type[AnyState], values: JsonView) -> bool:
    try:
        build(cls, values)
    except PolicyError:
        return False
    return True


def _as_before(current: JsonView, was: JsonView, path: Path) -> Json:
    """Values with the old value at one path."""
    result = dict(current)
    key, deeper = path[0], path[1:]
    new, old = current.get(key), was.get(key)
    if deeper and isinstance(new, dict) and isinstance(old, dict):
        result[key] = _as_before(new, old, deeper)
    elif key in was:
        result[key] = old
    else:
        result.pop(key, None)
    return result


def _hint(key: str) -> str:
    """What an unknown key at the top of a policy should be."""
    if registry.find(key) is not None:
        return "move it below 'states'"
    near = difflib.get_close_matches(key, (*KEYS, *registry.names()), 1)
    if not near:
        return f"supported keys: {', '.join(KEYS)}"
    return f"did you mean {near[0]!r}" + ("" if near[0] in KEYS else ", below 'states'")


def _below(tree: Tree, step: str | int) -> Tree | None:
    """The child of a mapping or list; ``None`` if there is none."""
    if isinstance(tree.value, dict):
        return tree.value.get(str(step))
    if isinstance(tree.value, list) and isinstance(step, int) and step < len(tree.value):
        child: Tree = tree.value[step]
        return child
    return None


def _quote(message: str) -> str | None:
    """The remedy for a number where text is needed, such as an unquoted ``580.10``."""
    unquoted = re.search(r"wanted text \(given: (-?[\d.]+|True|False)\)", message)
    return "put it in quotes" if unquoted else None


def _check_values(tree: Tree, path: Path) -> None:
    """Refuse values that YAML supports and JSON does not: a plan with them could not be saved."""
    if isinstance(tree.value, dict):
        for key, value in tree.value.items():
            _check_values(value, (*path, key))
    elif isinstance(tree.value, list):
        for value in tree.value:
            _check_values(value, path)
    elif isinstance(tree.value, float) and not math.isfinite(tree.value):
        raise PolicyError(
            f"{'.'.join(map(quote_name, path))} is {tree.value}, wanted a number", place=tree.place
        )


def _replaced(last: Iterable[Path], before: Tree) -> Iterator[tuple[Path, tuple[Any, str]]]:
    """The values at paths before the changes of the command line."""
    for path in last:
        tree = before.get(*path)
        if tree is not None:
            yield path, (trees.plain(tree), tree.place)


def _last(touched: Mapping[Path, str], data: JsonView) -> Iterator[Path]:
    """The paths of states' values set on the command line; a section stands for all its values."""
    for path in touched:
        if path and path[0] in {"groups", "nodes"}:
            if len(path) > 2:
                yield path
        elif path == ("states",):
            yield from (("states", name) for name in data.get("states") or {})
        elif path and path[0] == "states":
            yield path
