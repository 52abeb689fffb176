"""``upgradePolicy``: limits of how many nodes are upgraded at a time.

Surprising: the Operator limits upgrades only with ``autoUpgrade``, and the API server's default is one node
at a time. So a limit is used only if ``autoUpgrade`` is true and the file itself sets the limit. Pods are
neither evicted nor waited for.

Sources:
    NVIDIA/k8s-operator-libs: api/upgrade/v1alpha1 (``maxParallelUpgrades`` 0 is not a limit, ``maxUnavailable``
    is rounded up), pkg/upgrade (both limits hold at once).
"""

from __future__ import annotations

import re

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import Item

_PERCENT = re.compile(r"0*(100|[0-9]{1,2})%")


def desired_pace(source: Source, spec: Item, prefix: str) -> tuple[str, ...]:
    """Upper limits of a batch of nodes, numbers or percentages; empty without a limit.

    Raises:
        PolicyError: ``maxUnavailable`` is neither a number nor a percentage.
    """
    policy = spec.get("upgradePolicy")
    if policy is None:
        return ()
    parallel, unavailable = policy.get("maxParallelUpgrades"), policy.get("maxUnavailable")
    sizes = [str(parallel.value)] if parallel is not None and parallel.value else []
    if unavailable is not None:
        sizes += _unavailable(source, unavailable, prefix)
    first = parallel or unavailable
    if first is None:
        return ()
    if not _automatic(source, policy, prefix):
        silent = tuple(s.path for s in source.settings if not s.has_effect)
        why = f"{prefix}upgradePolicy.autoUpgrade is not true"
        source.note_unused(why, f"{prefix}upgradePolicy.max", but=silent)
        return ()
    if sizes:
        source.notes.append(
            f"{source.place(first)}: {prefix}upgradePolicy: apply changes at most "
            f"{' and '.join(sizes)} of the nodes at a time, unless --serial overrides it"
        )
    return tuple(sizes)


def _unavailable(source: Source, item: Item, prefix: str) -> list[str]:
    text = str(item.value).strip()
    match = _PERCENT.fullmatch(text)
    if match is None and not text.isdecimal():
        raise PolicyError(
            f"{prefix}upgradePolicy.maxUnavailable is {quote(item.value)}, wanted a number or a "
            "percentage such as 25%",
            place=source.place(item),
        )
    size = f"{match[1]}%" if match is not None else str(int(text))
    if int(size.rstrip("%")) == 0:
        source.notes.append(
            f"{source.place(item)}: not carried out: {prefix}upgradePolicy.maxUnavailable "
            f"{quote(item.value)}: under the Operator no node would ever be upgraded"
        )
        return []
    return [] if size == "100%" else [size]


def _automatic(source: Source, policy: Item, prefix: str) -> bool:
    """``autoUpgrade``, or its default in the API server or the chart."""
    item = policy.get("autoUpgrade")
    if item is not None:
        return bool(item.value)
    if source.kind == "helm":
        taken_away = "autoUpgrade" in policy.value
        return not taken_away and bool(source.chart_default(f"{prefix}upgradePolicy.autoUpgrade"))
    return source.kind == "nvidiadriver"
