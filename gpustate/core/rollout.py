"""How many nodes change at a time, as a policy sets it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote, suggest

SECTION = "rollout"
_SIZE = re.compile(r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """The policy's part of a rollout; options of the command line replace its values.

    Args:
        canary: number of the nodes, or pattern as for ``--canary``, of a wave before all others; empty: none.
        serial: sizes of the waves, numbers or percentages of all nodes; the last one repeats. Empty: the defaults.
        max_unavailable: nodes of a cluster, or percentage of them, that may be out of service; empty: the default.
        max_failures: no further node is started once so many have failed; 0: the wave of the first failure is the last.
    """

    canary: str = ""
    serial: tuple[str, ...] = ()
    max_unavailable: str = ""
    max_failures: int = 0

    def as_data(self) -> dict[str, Any]:
        """Plain data with the values that are not defaults; :func:`rollout_policy` reads it again."""
        data = {**asdict(self), "serial": ",".join(self.serial)}
        return {key: _number(value) for key, value in data.items() if value}


def rollout_policy(data: object, places: Mapping[tuple[str, ...], str]) -> RolloutPolicy:
    """Read the section ``rollout`` of a policy.

    Args:
        data: a mapping, or a policy made already; ``None``: the defaults.
        places: where values stand, by path that begins with ``rollout``.

    Raises:
        PolicyError: an unknown key or a wrong value, with its place.
    """
    if isinstance(data, RolloutPolicy):
        return data
    if not isinstance(data, Mapping | None):
        raise _error((), places, f"is {kind_of(data)}, wanted a mapping")
    known = [field.name for field in fields(RolloutPolicy)]
    values: dict[str, Any] = {}
    for key, value in (data or {}).items():
        if key not in known:
            hint = suggest(key, known, f"supported keys: {', '.join(known)}", form="{!r}")
            raise _error((str(key),), places, "unknown key", hint)
        values[key] = _value(key, value, places)
    return RolloutPolicy(**values)


def _value(key: str, value: object, places: Mapping[tuple[str, ...], str]) -> object:
    if value is None:
        return getattr(RolloutPolicy(), key)
    scalar = isinstance(value, str | int) and not isinstance(value, bool)
    if key == "max_failures":
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**9:
            raise _error((key,), places, f"is {quote(value)}, wanted a number of nodes")
        return value
    if key == "canary":
        if not scalar or not str(value).strip() or value == 0:
            raise _error((key,), places, f"is {quote(value)}, wanted a number or pattern of nodes")
        return str(value).strip()
    sizes = value if isinstance(value, list | tuple) else str(value).split(",")
    texts = tuple(str(size).strip() for size in sizes)
    several = key == "serial" or len(texts) == 1
    if not several or not texts or not all(map(_SIZE.fullmatch, texts)):
        sample = "1,10%,50%" if key == "serial" else "25%"
        words = f"is {quote(value)}, wanted numbers or percentages of nodes such as {sample}"
        raise _error((key,), places, words)
    return texts if key == "serial" else texts[0]


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _error(
    path: tuple[str, ...], places: Mapping[tuple[str, ...], str], message: str, fix: str = ""
) -> PolicyError:
    whole = (SECTION, *path)
    place = next((places[whole[:n]] for n in range(len(whole), 0, -1) if whole[:n] in places), None)
    return PolicyError(f"{'.'.join(whole)}: {message}", place=place, fix=fix or None)
