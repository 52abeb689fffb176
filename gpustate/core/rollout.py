"""How a rollout goes through its nodes, as a policy sets it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote, suggest

SECTION = "rollout"
#: Values that are text, and what is wanted of each.
_TEXTS = {
    "canary": "a number or pattern of nodes",
    "soak": "a time such as 30m",
    "window": "times such as 'Mon-Fri 22:00-05:00'",
    "spread": "the name of a variable or label",
}
_SIZE = re.compile(r"[1-9][0-9]{0,8}|([1-9][0-9]?|100)%")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """The section ``rollout``.

    Args:
        serial: sizes of the waves, numbers or percentages of all nodes; the last one repeats. Empty: 1,10%,50% from
            ``drain`` on, else one wave.
        max_failures: no further node begins once so many have failed; 0: the wave of the first failure is the last.
        canary: number of the nodes, or their pattern as of ``--limit``, of a wave before all others; empty: none.
        soak: time between waves in which the nodes done so far are checked: 30m; empty: none.
        window: maintenance windows outside of which no node begins, 'Mon-Fri 22:00-05:00 Europe/Berlin', several
            separated by ';', in UTC unless they say; empty: none but the nodes' own.
        spread: inventory variable, or label of Nodes, with the rack of a node. At most one node of a rack is at work
            at a time. Empty: racks do not matter.
        soak_pods: at the end of the soak time run a pod with a GPU on each Node that was changed.
        max_unavailable: nodes of one cluster, or percentage of them, that may be out of service at a time, whatever
            the reason; empty: 25%.
        rollback_on_failure: roll back a node whose change failed and, if that ends the run, its wave; null: only of an
            upgrade.
        pods_timeout_s: seconds in which the pods of the cluster's DaemonSets have to become available; 0: 300.
    """

    serial: tuple[str, ...] = ()
    max_failures: int = 0
    canary: str = ""
    soak: str = ""
    window: str = ""
    spread: str = ""
    soak_pods: bool = False
    max_unavailable: str = ""
    rollback_on_failure: bool | None = None
    pods_timeout_s: int = 0

    def as_data(self) -> Json:
        """Plain data with the values that are not defaults; :func:`rollout_policy` reads it again."""
        default = RolloutPolicy()
        return {
            key: ",".join(value) if key == "serial" else _number(value)
            for key, value in asdict(self).items()
            if value != getattr(default, key)
        }


AnyRollout = TypeVar("AnyRollout", bound=RolloutPolicy)


def rollout_policy(data: object, places: Mapping[tuple[str, ...], str]) -> RolloutPolicy:
    """Read the section ``rollout`` of a policy.

    Args:
        data: a mapping, or a policy made already; ``None``: the defaults.
        places: where values stand, by path that begins with ``rollout``.

    Raises:
        PolicyError: an unknown key or a wrong value, with its place.
    """
    return data if isinstance(data, RolloutPolicy) else overridden(RolloutPolicy(), data, places)


def overridden(
    policy: AnyRollout, data: object, places: Mapping[tuple[str, ...], str]
) -> AnyRollout:
    """The policy with other values; arguments and errors as of :func:`rollout_policy`."""
    if not isinstance(data, Mapping | None):
        raise _error((), places, f"is {kind_of(data)}, wanted a mapping")
    names = [field.name for field in fields(RolloutPolicy)]
    values: Json = {}
    for key, value in (data or {}).items():
        if key not in names:
            hint = suggest(key, names, f"supported keys: {', '.join(names)}", form="{!r}")
            raise _error((str(key),), places, "unknown key", hint)
        values[key] = _value(key, value, places)
    return replace(policy, **values)


def _value(key: str, value: object, places: Mapping[tuple[str, ...], str]) -> object:
    if value is None:
        return getattr(RolloutPolicy(), key)
    scalar = isinstance(value, str | int) and not isinstance(value, bool)
    if key in ("max_failures", "pods_timeout_s"):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**9:
            unit = "a number of nodes" if key == "max_failures" else "seconds"
            raise _error((key,), places, f"is {quote(value)}, wanted {unit}")
        return value
    if key in ("soak_pods", "rollback_on_failure"):
        if not isinstance(value, bool):
            raise _error((key,), places, f"is {quote(value)}, wanted true or false")
        return value
    if key in _TEXTS:
        if not scalar or not str(value).strip() or value == 0:
            raise _error((key,), places, f"is {quote(value)}, wanted {_TEXTS[key]}")
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
    steps = (SECTION, *path)
    place = next((places[steps[:n]] for n in range(len(steps), 0, -1) if steps[:n] in places), None)
    return PolicyError(f"{'.'.join(steps)}: {message}", place=place, fix=fix or None)
