"""A cluster's part of a plan or a result as plain data. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.documents import Json
from gpustate.errors import EXIT_ERROR, EXIT_REFUSED, EXIT_VALIDATION
from gpustate.formats.masking import is_secret_name, mask_data, remember, remember_parameters
from gpustate.manifests.differences import Difference
from gpustate.manifests.kinds import title
from gpustate.plan.objects import refused
from gpustate.reconcile.applying import Applied
from gpustate.reconcile.planning import Change

_VARIABLE = re.compile(r"\benv\[([^\]]*)\]")


def cluster_data(
    server: str, namespace: str, changes: Sequence[Change], applied: Applied | None = None
) -> Json:
    """One cluster.

    Args:
        server: its URL.
        namespace: of the objects.
        changes: planned, or done.
        applied: the rest of the result of an apply.
    """
    for change in changes:
        for difference in change.differences:
            _remember_secrets(difference)
    data: Json = {
        "server": server,
        "namespace": namespace,
        "objects": [_object_data(change) for change in changes],
    }
    if applied is not None:
        for name in ("failures", "refusals", "unready", "notes"):
            if getattr(applied, name):
                data[name] = list(getattr(applied, name))
    result: Json = mask_data(data)
    return result


def _object_data(change: Change) -> Json:
    data: Json = {"object": title(change.item), "action": change.action.value}
    if change.differences:
        data["changes"] = [
            {"field": difference.field, "before": difference.before, "after": difference.after}
            for difference in change.differences
        ]
    if change.reason:
        data["reason"] = change.reason
    return data


def _remember_secrets(difference: Difference) -> None:
    """Register secrets of an object in the cluster, which the policy need not know (any more)."""
    variables = _VARIABLE.findall(difference.field)
    last = re.split(r"[.\[]", difference.field.removesuffix("]"))[-1]
    for value in (difference.before, difference.after):
        if variables and is_secret_name(variables[-1]):
            remember(value.get("value") if isinstance(value, dict) else value)
        else:
            remember_parameters({last: value})


def exit_codes(data: Mapping[str, Any]) -> Iterator[int]:
    """Codes for what is wrong with a cluster."""
    if data.get("failures"):
        yield EXIT_ERROR
    if data.get("unready"):
        yield EXIT_VALIDATION
    if refused(data) or data.get("refusals"):
        yield EXIT_REFUSED
