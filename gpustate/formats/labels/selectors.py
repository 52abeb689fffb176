"""Label selectors of Kubernetes, as text and as objects. Pure.

Sources:
    kubernetes, apimachinery/pkg/labels/selector.go (grammar); meta/v1 LabelSelector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.documents import JsonView
from gpustate.errors import UsageError

_KEY = r"(?P<key>(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)"
_VALUE = r"(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"{_KEY}\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(rf"{_KEY}\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})")
_EXISTS = re.compile(rf"(?P<op>!?)\s*{_KEY}")
_PARTS = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label.

    Args:
        key: of the label.
        operator: ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``.
        values: for the first two.
    """

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it."""
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.operator == "In")


def parse(text: str) -> tuple[Requirement, ...]:
    """Read a selector such as ``app=train,tier in (a, b),!keep``; empty: everything matches.

    Raises:
        UsageError: it is not one.
    """
    parsed: list[Requirement] = []
    for part in filter(None, (part_text.strip() for part_text in _PARTS.split(text))):
        if match := _SET.fullmatch(part):
            values = frozenset(value.strip() for value in match["values"].split(","))
            parsed.append(
                Requirement(match["key"], "In" if match["op"] == "in" else "NotIn", values)
            )
        elif match := _EQUAL.fullmatch(part):
            operator = "NotIn" if match["op"] == "!=" else "In"
            parsed.append(Requirement(match["key"], operator, frozenset({match["value"]})))
        elif match := _EXISTS.fullmatch(part):
            parsed.append(Requirement(match["key"], "DoesNotExist" if match["op"] else "Exists"))
        else:
            raise UsageError(
                f"{part!r} is not a label selector", fix="write it as in app=train,!keep"
            )
    return tuple(parsed)


def of_object(selector: JsonView | None) -> tuple[Requirement, ...] | None:
    """The requirements of a LabelSelector; ``None``: it selects nothing."""
    if selector is None:
        return None
    requirements = [
        Requirement(key, "In", frozenset({value}))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    requirements += [
        Requirement(e["key"], e["operator"], frozenset(e.get("values") or ()))
        for e in selector.get("matchExpressions") or ()
    ]
    return tuple(requirements)


def matches(requirements: tuple[Requirement, ...] | None, labels: Mapping[str, str]) -> bool:
    """Whether labels meet all of them."""
    return requirements is not None and all(r.holds(labels) for r in requirements)
