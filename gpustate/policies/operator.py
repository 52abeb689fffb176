"""Load a policy from a file of the GPU Operator.

Changes of the command line apply to the object itself with its own keys: ``--set driver.version=...`` is
``spec.driver.version`` of a ClusterPolicy, and a patch is the same as for ``kubectl patch clusterpolicy``. In a
file with several objects they apply to the first that has their keys: the ClusterPolicy (or the Helm values), then
the GPUCluster, then the NVIDIADrivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpustate import gpu_operator, registry
from gpustate.core.layers import REMOVED, Path, leaves, value_at
from gpustate.core.policy import Policy, build, every_parameter, parameters
from gpustate.core.state import AnyState
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats.words import quote_name
from gpustate.formats.yaml_events import Written
from gpustate.gpu_operator import DesiredState, dra, history, keys
from gpustate.gpu_operator.check import always_strict, never_strict
from gpustate.gpu_operator.documents import OBJECTS, Item, filled_in, without_heading
from gpustate.gpu_operator.other_files import OtherFiles
from gpustate.gpu_operator.parts import Part, classified, parts
from gpustate.gpu_operator.shape import EXPECTED
from gpustate.policies import document, files, trees
from gpustate.policies.changes import Changes, Format, quoting
from gpustate.policies.trees import Tree

_OBJECT_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
#: Changes are tried on the objects of a file in this order; Helm values have no kind.
_CHANGED = ("ClusterPolicy", None, "GPUCluster", "NVIDIADriver")


@dataclass(frozen=True, slots=True)
class _How:
    """Options for reading a file: the release, and whether unknown keys are errors."""

    strict: bool
    release: str


def read(
    text: str,
    path: str,
    *,
    strict: bool = False,
    changes: Changes | None = None,
    release: str | None = None,
) -> Policy:
    """Turn the text of an Operator file into a policy.

    Args:
        text: all of it.
        path: of the file.
        strict: unknown keys are errors, not notes.
        changes: of the command line.
        release: of the Operator; by default that of the wrapper, or the newest.

    Raises:
        PolicyError: with the line of the problem.
        UsageError: there is no such release.
    """
    how = _How(strict, history.release(release) if release is not None else "")
    if not changes:
        return _read(text, path, how)
    changes, own_notes = _without_dra_values(changes)
    documents, declared, other_paths = _documents(text, path)
    how = replace(how, release=how.release or declared)
    policy = _changed(documents, changes, path, how, other_paths)
    try:
        before: Policy | None = _read(text, path, how)
    except PolicyError:
        before = None  # the change repairs it
    changed = policy.with_states(*policy.states, last=_last(policy, before, path, other_paths))
    changed.notes = (*changed.notes, *own_notes)
    old = _by_state(before) if before is not None else {}
    for full in changed.last:
        value = value_at(old, full[1:])
        if before is not None and value is not REMOVED:
            changed.replaced[full] = value, before.places.get(full[:3], path)
    return changed


def _changed(
    documents: list[Tree], changes: Changes, path: str, how: _How, other_paths: tuple[str, ...]
) -> Policy:
    """The policy with the changes on the first object that they fit.

    Raises:
        PolicyError: they fit none; of the object that is asked first.
    """
    first_error: PolicyError | None = None
    for number in _by_kind(documents):
        origins = OtherFiles(path)
        try:
            changed = changes.on(documents[number], _format(documents[number], how.release)).tree
            items = [changed if n == number else tree for n, tree in enumerate(documents)]
            file_parts = classified([_item(tree, origins) for tree in items], origins)
            try:
                policy = _policy(file_parts, path, how, (path, *other_paths))
            except PolicyError as error:
                fix = quoting(error.place, error.fix)
                raise type(error)(error.message, place=error.place, fix=fix) from None
            policy.notes += _of_several(documents, number)
            return policy
        except PolicyError as error:
            first_error = first_error or error
    raise first_error or PolicyError("contains no object", place=path)


def _read(text: str, path: str, how: _How) -> Policy:
    return _policy(parts(text, path), path, how, None)


def _policy(items: Sequence[Part], path: str, how: _How, files_: tuple[str, ...] | None) -> Policy:
    """The policy of some documents; with ``files_``, keys that are in none of these files have to be known."""
    strict = always_strict if how.strict else never_strict
    if files_ is not None and not how.strict:
        strict = lambda line: items[0].origins.resolved(path, line)[0] not in files_  # noqa: E731
    try:
        reading = gpu_operator.read_parts(items, path, strict=strict, release=how.release)
    except PolicyError as error:
        if error.fix != EXPECTED:
            raise
        fix = (
            f"{EXPECTED}; a policy of gpustate's own begins with 'format: {document.FORMAT}'; a plan is saved with: "
            "gpustate plan POLICY --out FILE"
        )
        raise PolicyError(error.message, place=error.place, fix=fix) from error
    states = [_state(state, path) for state in reading.states]
    places: dict[Path, str] = {
        ("states", state.state, name): place
        for state in reading.states
        for name, place in state.places.items()
    }
    places[("states",)] = path
    nodes: dict[str, dict[str, Json]] = {}
    for entry in reading.for_nodes:
        nodes.setdefault(entry.node, {}).setdefault(entry.state, {}).update(entry.parameters)
        places[("nodes", entry.node, entry.state)] = entry.place
    groups: dict[str, dict[str, Json]] = {}
    exclusive: dict[str, str] = {}
    by_state = {state.name: parameters(state) for state in states}
    for part in reading.for_labels:
        defaults = _defaults(part.state, by_state[part.state]) if part.complete else {}
        groups.setdefault(part.condition, {})[part.state] = {**defaults, **part.parameters}
        places[("groups", part.condition)] = part.place
        exclusive[part.condition] = f"{part.title} ({part.place})"
    policy = Policy(
        *states,
        name=reading.name or None,
        notes=reading.notes,
        groups=groups,
        nodes=nodes,
        places=places,
        rollout=reading.rollout,
        drain=reading.drain,
        cluster=reading.objects,
    )
    policy.exclusive, policy.release = exclusive, reading.release
    return policy


def _defaults(state: str, values: JsonView) -> Json:
    """Defaults of parameters that are set elsewhere."""
    by_default = every_parameter(build(registry.get(state), {}))
    return {name: by_default[name] for name in values if name in by_default}


def _home(key: str) -> Path:
    return () if key in _OBJECT_KEYS else ("spec",)


def _without_dra_values(changes: Changes) -> tuple[Changes, list[str]]:
    """The changes without values files of the DRA driver's chart, and the notes on those."""
    remaining: list[str] = []
    notes: list[str] = []
    for file in changes.values:
        contents = (
            [trees.plain(tree) for tree in trees.documents(files.text_of(file), file)]
            if file != "-"
            else []
        )
        if contents and isinstance(contents[0], dict) and dra.of_own_chart(contents[0]):
            notes += dra.notes_on_own_chart(contents[0], file)
        else:
            remaining.append(file)
    return replace(changes, values=tuple(remaining)), notes


def _format(document: Tree, release: str) -> Format:
    """How changes apply to an object or to values, which a patch of the rendered object changes too."""
    kind = document.get("kind")
    if kind is None:
        default = partial(keys.unset, "helm", release)
        return Format(default=default, removed=True, wrappers=("spec", "values"))

    def of_object(path: Path) -> Any:
        if path == ("spec",):
            return {}
        name = str(kind.value).lower()
        return keys.unset(name, release, path[1:]) if path[0] == "spec" else REMOVED

    return Format(_home, default=of_object)


def _documents(text: str, path: str) -> tuple[list[Tree], str, tuple[str, ...]]:
    """The objects of a file, those of a ``List`` one by one, the release set by one of them, other files.

    Values are without their wrapper.
    """
    file_parts = parts(text, path)
    if any(part.held is not None for part in file_parts):
        wrapped = [part for part in file_parts if part.held is not None or part.kind != "other"]
        release = next((part.release for part in wrapped if part.release), "")
        return (
            [_tree(part.item, path, part.origins) for part in wrapped],
            release,
            tuple(file_parts[0].origins.paths),
        )
    release = next((part.release for part in file_parts if part.release), "")
    return _own_documents(filled_in(text), path), release, ()


def _tree(item: Item, path: str, origins: OtherFiles) -> Tree:
    """An item as a tree with places in the file."""
    value: Any = item.value
    if isinstance(value, dict):
        value = {key: _tree(child, path, origins) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_tree(child, path, origins) for child in value]
    file, line = origins.resolved(path, item.line)
    return Tree(value, f"{file}:{line}")


def _item(tree: Tree, origins: OtherFiles) -> Item:
    """A tree as an item with the numbers of its lines."""
    value = tree.value
    if isinstance(value, dict):
        value = {key: _item(child, origins) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_item(child, origins) for child in value]
    elif isinstance(value, float) and not isinstance(value, Written):
        value = Written(repr(value))
    lines = value.count("\n") + 1 if isinstance(value, str) else 1
    return Item(value, origins.number(tree.place, lines))


def _own_documents(text: str, path: str) -> list[Tree]:
    objects: list[Tree] = []
    for tree in trees.documents(without_heading(text), path, OBJECTS):
        items = tree.get("items")
        kind = tree.get("kind")
        if (
            kind is not None
            and kind.value == "List"
            and items is not None
            and isinstance(items.value, list)
        ):
            objects.extend(items.value)
        elif tree.value is not None:
            objects.append(tree)
    return objects or [Tree({}, path)]


def _of_several(documents: list[Tree], number: int) -> tuple[str, ...]:
    """A note where other objects of the changed one's kind keep what they have."""
    objects = [trees.plain(document) for document in documents]
    changed = objects.pop(number)
    kind = changed.get("kind")
    siblings = [value for value in objects if kind and value.get("kind") == kind]
    if not siblings:
        return ()
    name, *names = (
        quote_name(value.get("metadata", {}).get("name")) for value in (changed, *siblings)
    )
    return (f"the command line changes {kind} {name} alone; edit the file for {', '.join(names)}",)


def _by_kind(documents: list[Tree]) -> list[int]:
    """The objects in the order in which changes are tried on them."""
    kinds = [kind.value if (kind := tree.get("kind")) is not None else None for tree in documents]
    numbers = [number for kind in _CHANGED for number, name in enumerate(kinds) if name == kind]
    return numbers or [0]


def _last(policy: Policy, before: Policy | None, path: str, paths: tuple[str, ...]) -> list[Path]:
    """Paths of parameters set by the command line."""
    new, old = _by_state(policy), _by_state(before) if before is not None else None
    changed: set[Path] = set()
    for leaf, value in leaves(new):
        place = policy.places.get(("states", *leaf[:2]), path)
        by_change = place != path and place.rpartition(":")[0] not in (path, *paths)
        if by_change or (old is not None and value_at(old, leaf) != value):
            changed.add(("states", *leaf))
    for leaf, _ in leaves(old or {}):
        if leaf[0] in new and value_at(new, leaf) is REMOVED:
            changed.add(("states", *leaf))
    return sorted(changed)


def _by_state(policy: Policy) -> dict[str, Json]:
    return {state.name: parameters(state) for state in policy.states}


def _state(state: DesiredState, path: str) -> AnyState:
    cls = registry.get(state.state)
    try:
        return build(cls, state.parameters, place=path)
    except PolicyError as error:
        # Again one by one, to find the line of the parameter.
        for name, place in state.places.items():
            try:
                build(cls, {name: state.parameters[name]}, place=place)
            except PolicyError as alone:
                if alone.message == error.message:
                    raise
        raise
