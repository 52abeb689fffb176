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
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
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
            found = self.places.get(path[:end])
            if found:
                return found
        return self.place


@dataclass(frozen=True, slots=True)
class Said:
    """What one layer says about one value; ``value`` may be :data:`REMOVED`."""

    layer: str
    place: str
    value: Any


def merged(layers: Sequence[Layer], state: str) -> dict[str, Any]:
    """The parameters of one state, the strongest layer last."""
    found: dict[str, Any] = {}
    for layer in layers:
        mine = layer.states.get(state)
        if mine:
            _merge(found, mine)
        for path, value in layer.exact:
            if path[0] == state:
                found = _put({state: found}, path, value).get(state, {})
    return found


def trace(layers: Sequence[Layer], path: Path) -> list[Said]:
    """Everything that was said about a value, the last one counting."""
    found: list[Said] = []
    last = {exact: layer.place_of(exact) for layer in layers for exact, _ in layer.exact}
    for layer in layers:
        said = _said(layer, path, last)
        if said is not None:
            found.append(said)
        for exact, given in layer.exact:
            if path[: len(exact)] == exact:
                rest = value_at(given, path[len(exact) :]) if given is not REMOVED else REMOVED
                found.append(Said(layer.title, layer.place_of(exact), rest))
    return found


def _said(layer: Layer, path: Path, last: Mapping[Path, str]) -> Said | None:
    """What one layer itself says; where the command line wrote into it, what stood there before."""
    for exact, place in last.items():
        written = layer.place_of(path) == place or value_at(layer.states, exact) is REMOVED
        if path[: len(exact)] == exact and not layer.inventory and written:
            before, there = layer.replaced.get(exact, (REMOVED, ""))
            value = value_at(before, path[len(exact) :])
            return Said(layer.title, there, value) if value is not REMOVED else None
    value = value_at(layer.states, path)
    return Said(layer.title, layer.place_of(path), value) if value is not REMOVED else None


def value_at(data: Any, path: Path) -> Any:
    """The value at a path; :data:`REMOVED` where there is none."""
    if data is REMOVED:
        return REMOVED
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return REMOVED
        data = data[key]
    return data


def leaves(data: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
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


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        there = into.get(str(key))
        if isinstance(there, dict) and isinstance(value, Mapping):
            there = into[str(key)] = dict(there)
            _merge(there, value)
        elif isinstance(value, Mapping):
            fresh: dict[str, Any] = {}
            _merge(fresh, value)
            into[str(key)] = fresh
        else:
            into[str(key)] = value


def _put(data: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of ``data`` with the value at ``path`` replaced or removed."""
    made = dict(data)
    key, rest = path[0], path[1:]
    if rest:
        below = made.get(key)
        if not isinstance(below, dict):
            if value is REMOVED:
                return made
            below = {}
        made[key] = _put(below, rest, value)
    elif value is REMOVED:
        made.pop(key, None)
    else:
        made[key] = value
    return made
