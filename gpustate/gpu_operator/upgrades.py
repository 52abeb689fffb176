"""``upgradePolicy``: how many nodes are taken at a time, as far as that means something without Kubernetes.

Surprising: the Operator paces upgrades only with ``autoUpgrade``, and the API server fills in a pace of one
node at a time that nobody need have meant. So a pace holds where ``autoUpgrade`` does and the file itself
says one. Pods are not moved and not waited for: gpustate talks to nodes.

Sources:
    NVIDIA/k8s-operator-libs: api/upgrade/v1alpha1 (``maxParallelUpgrades`` 0 is not a limit, ``maxUnavailable``
    is rounded up), pkg/upgrade (both limits hold at once).
"""

from __future__ import annotations

import re

from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator.asked import Source
from gpustate.gpu_operator.documents import Item

_PERCENT = re.compile(r"0*(100|[0-9]{1,2})%")


def wanted_pace(source: Source, spec: Item, prefix: str) -> tuple[str, ...]:
    """Sizes that a batch of nodes must not exceed: numbers, percentages; none where there is no limit.

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
        silent = tuple(s.path for s in source.settings if not s.asks_for_something)
        why = f"{prefix}upgradePolicy.autoUpgrade is not true"
        source.not_used(why, f"{prefix}upgradePolicy.max", but=silent)
        return ()
    if sizes:
        source.notes.append(
            f"{source.place(first)}: {prefix}upgradePolicy: apply takes at most "
            f"{' and '.join(sizes)} of the nodes at a time, unless --serial says otherwise"
        )
    return tuple(sizes)


def _unavailable(source: Source, item: Item, prefix: str) -> list[str]:
    text = str(item.value).strip()
    match = _PERCENT.fullmatch(text)
    if match is None and not text.isdecimal():
        raise PolicyError(
            f"{prefix}upgradePolicy.maxUnavailable is {shown(item.value)}, wanted a number or a "
            "percentage such as 25%",
            place=source.place(item),
        )
    size = f"{match[1]}%" if match is not None else str(int(text))
    if int(size.rstrip("%")) == 0:
        source.notes.append(
            f"{source.place(item)}: not carried out: {prefix}upgradePolicy.maxUnavailable "
            f"{shown(item.value)}: under the Operator no node would ever be upgraded"
        )
        return []
    return [] if size == "100%" else [size]


def _automatic(source: Source, policy: Item, prefix: str) -> bool:
    """``autoUpgrade``; where nothing is said, what the API server or the chart makes of it."""
    item = policy.get("autoUpgrade")
    if item is not None:
        return bool(item.value)
    if source.kind == "helm":
        taken_away = "autoUpgrade" in policy.value
        return not taken_away and bool(source.of_chart(f"{prefix}upgradePolicy.autoUpgrade"))
    return source.kind == "nvidiadriver"
