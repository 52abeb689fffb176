"""Quantities of Kubernetes: amounts of a resource, such as ``500m`` or ``2Gi``.

Sources:
    Kubernetes apimachinery: pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re

_QUANTITY = re.compile(
    r"\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?", re.ASCII
)


def is_quantity(value: object) -> bool:
    """Whether a value is an amount that a pod may request; it is not negative."""
    scalar = isinstance(value, str | int | float) and not isinstance(value, bool)
    return scalar and _QUANTITY.fullmatch(str(value)) is not None
