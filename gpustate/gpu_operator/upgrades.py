"""``upgradePolicy``: limits of how many nodes are upgraded at a time, and how workloads leave them.

Surprising: the Operator limits upgrades only with ``autoUpgrade``, and the API server's default is one node
at a time. So a limit is used only if ``autoUpgrade`` is true and the file itself sets the limit.

Workloads leave in this order. Pods that match ``waitForCompletion.podSelector`` are waited for; pods with GPUs are
evicted by ``podDeletion``; only if they do not leave, and ``drain`` is enabled, the whole node is drained. The
Operator never drains pods with the label :data:`SKIP_DRAIN`. It never reboots a node, so for a reboot a disabled
``drain`` means the defaults of kubectl.

Sources:
    NVIDIA/k8s-operator-libs: api/upgrade/v1alpha1 (``maxParallelUpgrades`` 0 is not a limit, ``maxUnavailable``
    is rounded up), pkg/upgrade (both limits hold at once; common_manager.go and pod_manager.go: order of states).
    NVIDIA/gpu-operator: controllers/upgrade_controller.go (``UpgradeSkipDrainLabelSelector``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.core.rollout import RolloutPolicy
from gpustate.errors import PolicyError, UsageError
from gpustate.formats.labels import selectors
from gpustate.formats.words import quote
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import Item

#: A condition that the Operator adds to ``drain.podSelector``.
SKIP_DRAIN = "nvidia.com/gpu-driver-upgrade-drain.skip!=true"
#: Longer than any rollout; the Operator's are 64-bit integers.
_LONGEST_S = 10**9
_PERCENT = re.compile(r"0*(100|[0-9]{1,2})%")


def desired_rollout(source: Source, spec: Item, prefix: str) -> RolloutPolicy | None:
    """How many nodes change at a time; ``None`` without a limit.

    Raises:
        PolicyError: ``maxUnavailable`` is neither a number nor a percentage.
    """
    policy = spec.get("upgradePolicy")
    if policy is None:
        return None
    parallel, unavailable = policy.get("maxParallelUpgrades"), policy.get("maxUnavailable")
    serial = (str(parallel.value),) if parallel is not None and parallel.value else ()
    share = _unavailable(source, unavailable, prefix) if unavailable is not None else ""
    first = parallel or unavailable
    if first is None:
        return None
    if not _automatic(source, policy, prefix):
        idle = tuple(s.path for s in source.settings if not s.has_effect)
        why = f"{prefix}upgradePolicy.autoUpgrade is not true"
        source.note_unused(why, f"{prefix}upgradePolicy.max", exempt=idle)
        return None
    limits = [f"waves of {size}" for size in serial]
    limits += [f"at most {share} of the nodes out of service at a time"] * bool(share)
    if limits:
        source.notes.append(
            f"{source.place(first)}: {prefix}upgradePolicy: {' and '.join(limits)}; "
            "--serial and --max-unavailable override it"
        )
    return RolloutPolicy(serial=serial, max_unavailable=share)


def desired_drain(source: Source, spec: Item, prefix: str) -> DrainPolicy | None:
    """How workloads leave; ``None`` where the file sets nothing but defaults.

    Raises:
        PolicyError: a selector cannot be read.
    """
    policy = spec.get("upgradePolicy")
    if policy is None:
        return None
    path = f"{prefix}upgradePolicy"
    wait = _section(policy, "waitForCompletion")
    deletion = _section(policy, "podDeletion") or _section(policy, "gpuPodDeletion")
    drain = _section(policy, "drain")
    first = next((item for section in (wait, deletion, drain) for item in section.values()), None)
    if first is None:
        return None
    idle = tuple(s.path for s in source.settings if not s.has_effect)
    names = ("waitForCompletion", "podDeletion", "gpuPodDeletion", "drain")
    if not _automatic(source, policy, prefix):
        why = f"{path}.autoUpgrade is not true"
        source.note_unused(why, *(f"{path}.{name}." for name in names), exempt=idle)
        return None
    selector = _selector(source, wait, f"{path}.waitForCompletion")
    if not selector:
        why = f"{path}.waitForCompletion.podSelector is empty"
        source.note_unused(why, f"{path}.waitForCompletion.", exempt=idle)
    enabled = bool(drain["enable"].value) if "enable" in drain else False
    node = EvictionRules()
    if enabled:
        drain_selector = _selector(source, drain, f"{path}.drain")
        selected = f"{drain_selector},{SKIP_DRAIN}" if drain_selector else SKIP_DRAIN
        node = _rules(drain, selected)
    else:
        why = f"{path}.drain.enable is not true"
        source.note_unused(why, f"{path}.drain.", exempt=(*idle, f"{path}.drain.enable"))
    drain_policy = DrainPolicy(
        wait_selector=selector,
        wait_timeout_s=_seconds(wait, 0) if selector else 0.0,
        gpu_pods=_rules(deletion),
        node=node,
        node_after_gpu_pods=enabled,
    )
    words = drain_policy.describe()
    if not words:
        return None
    source.notes.append(
        f"{source.place(first)}: {path}: before a change of a node apply will {words}; options such as "
        "--set drain.timeout_s=600 override it"
    )
    return drain_policy


def _section(policy: Item, name: str) -> dict[str, Item]:
    """The values of a section that are set, by key."""
    section = policy.get(name)
    if section is None or not isinstance(section.value, dict):
        return {}
    return {key: item for key, item in section.value.items() if item.value is not None}


def _rules(section: Mapping[str, Item], selector: str = "") -> EvictionRules:
    return EvictionRules(
        force="force" in section and bool(section["force"].value),
        delete_empty_dir="deleteEmptyDir" in section and bool(section["deleteEmptyDir"].value),
        timeout_s=_seconds(section, 300),
        pod_selector=selector,
    )


def _seconds(section: Mapping[str, Item], default: int) -> float:
    item = section.get("timeoutSeconds")
    return float(default if item is None else min(int(item.value), _LONGEST_S))


def _selector(source: Source, section: Mapping[str, Item], path: str) -> str:
    item = section.get("podSelector")
    text = str(item.value).strip() if item is not None else ""
    try:
        selectors.parse(text)
    except UsageError as error:
        place = source.place(item) if item is not None else None
        raise PolicyError(
            f"{path}.podSelector: {error.message}", place=place, fix=error.fix
        ) from None
    return text


def _unavailable(source: Source, item: Item, prefix: str) -> str:
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
        return ""
    return "" if size == "100%" else size


def _automatic(source: Source, policy: Item, prefix: str) -> bool:
    """``autoUpgrade``, or its default in the API server or the chart."""
    item = policy.get("autoUpgrade")
    if item is not None:
        return bool(item.value)
    if source.kind == "helm":
        taken_away = "autoUpgrade" in policy.value
        return not taken_away and bool(source.chart_default(f"{prefix}upgradePolicy.autoUpgrade"))
    return source.kind == "nvidiadriver"
