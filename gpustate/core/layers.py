"""Parameters in layers: the fleet's, those of groups, those of a node, the lock file's, the command line's.

The narrower layer wins, value by value: mappings are merged key by key, everything else is replaced
as a whole. The lock file wins over them all. What was given on the command line is the last word, whatever a narrower layer says.

A path is a tuple, because keys may hold dots: ``("container-toolkit", "config",
"nvidia-container-runtime.mode")``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from gpustate.documents import Json, JsonView
from gpustate.formats.words import quote_name

Path = tuple[str, ...]
#: Scopes of the two layers that are neither the policy's nor the inventory's.
LOCK_FILE, COMMAND_LINE = "lock file", "command line"


class _Removed(Enum):
    REMOVED = "removed"


#: What the command line removed: the state's own default holds.
REMOVED: Final = _Removed.REMOVED


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer says.

    Args:
        scope: ``fleet``, ``group``, ``node``, ``lock file`` or ``command line``.
        name: of the group or node.
        states: parameters by state.
        place: where it stands as a whole.
        places: where single values stand.
        exact: paths that get exactly this value, or lose theirs; the command line's.
        inventory: it is the inventory's, not the policy's.
        replaced: what a file said where the command line says something else, with the place.
    """

    scope: str
    name: str = ""
    states: Mapping[str, JsonView] = field(default_factory=dict[str, Json])
    place: str = ""
    places: Mapping[Path, str] = field(default_factory=dict[Path, str])
    exact: tuple[tuple[Path, Any], ...] = ()
    inventory: bool = False
    replaced: Mapping[Path, tuple[Any, str]] = field(default_factory=dict[Path, tuple[Any, str]])

    @property
    def title(self) -> str:
        """As a person calls it: ``group inference``."""
        return f"{self.scope} {quote_name(self.name)}" if self.name else self.scope

    def place_of(self, path: Path) -> str:
        """Where a value stands, or the nearest thing above it that has a place."""
        for end in range(len(path), 0, -1):
            place = self.places.get(path[:end])
            if place:
                return place
        return self.place


@dataclass(frozen=True, slots=True)
class LayerValue:
    """What one layer says about one value; ``value`` may be :data:`REMOVED`."""

    layer: str
    place: str
    value: Any


def merged(layers: Sequence[Layer], state: str) -> Json:
    """The parameters of one state, the strongest layer last."""
    values: Json = {}
    for layer in layers:
        layer_values = layer.states.get(state)
        if layer_values:
            _merge(values, layer_values)
        for path, value in layer.exact:
            if path[0] == state:
                values = _put({state: values}, path, value).get(state, {})
    return values


def trace(layers: Sequence[Layer], path: Path) -> list[LayerValue]:
    """Everything that was said about a value, the last one counting."""
    entries: list[LayerValue] = []
    last = {exact: layer.place_of(exact) for layer in layers for exact, _ in layer.exact}
    for layer in layers:
        entry = _find_value(layer, path, last)
        if entry is not None:
            entries.append(entry)
        for exact, value in layer.exact:
            if path[: len(exact)] == exact:
                inner = value_at(value, path[len(exact) :]) if value is not REMOVED else REMOVED
                entries.append(LayerValue(layer.title, layer.place_of(exact), inner))
    return entries


def _find_value(layer: Layer, path: Path, last: Mapping[Path, str]) -> LayerValue | None:
    """What one layer itself says; where the command line wrote into it, what stood there before."""
    for exact, place in last.items():
        written = layer.place_of(path) == place or value_at(layer.states, exact) is REMOVED
        if path[: len(exact)] == exact and not layer.inventory and written:
            before, origin = layer.replaced.get(exact, (REMOVED, ""))
            value = value_at(before, path[len(exact) :])
            return LayerValue(layer.title, origin, value) if value is not REMOVED else None
    value = value_at(layer.states, path)
    return LayerValue(layer.title, layer.place_of(path), value) if value is not REMOVED else None


def value_at(data: Any, path: Path) -> Any:
    """The value at a path; :data:`REMOVED` where there is none."""
    if data is REMOVED:
        return REMOVED
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return REMOVED
        data = data[key]
    return data


def leaves(data: JsonView, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value other than a mapping, and every empty mapping, with its path."""
    for key, value in data.items():
        path = (*above, str(key))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def dotted(path: Path) -> str:
    """A path as people write it; dots within a key are escaped, as for ``--set``."""
    return ".".join(key.replace("\\", "\\\\").replace(".", "\\.") for key in path)


def _merge(into: Json, more: JsonView) -> None:
    for key, value in more.items():
        current = into.get(str(key))
        if isinstance(current, dict) and isinstance(value, Mapping):
            current = into[str(key)] = dict(current)
            _merge(current, value)
        elif isinstance(value, Mapping):
            fresh: Json = {}
            _merge(fresh, value)
            into[str(key)] = fresh
        else:
            into[str(key)] = value


def _put(data: Json, path: Path, value: Any) -> Json:
    """A copy of ``data`` with the value at ``path`` replaced or removed."""
    content = dict(data)
    key, deeper = path[0], path[1:]
    if deeper:
        below = content.get(key)
        if not isinstance(below, dict):
            if value is REMOVED:
                return content
            below = {}
        content[key] = _put(below, deeper, value)
    elif value is REMOVED:
        content.pop(key, None)
    else:
        content[key] = value
    return content
