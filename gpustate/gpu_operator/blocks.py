"""Leaves and the blocks of them that nearly every component shares.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any


class Fate(StrEnum):
    """What becomes of a key that a file sets."""

    HONOURED = "honoured"  # a state, or the reader itself, does what it says
    KUBERNETES = "kubernetes"  # about pods and other Kubernetes objects; says nothing of a node
    NO_MEANING = "no-meaning"  # about containers that stand in for a host; nothing of it on a host
    LATER = "later"  # about a node, and no state of this release does it
    DEPRECATED = "deprecated"  # the Operator still looks at it, and says to use something else
    DEAD = "dead"  # the Operator, or its chart, no longer looks at it


@dataclass(frozen=True, slots=True)
class Leaf:
    """One settable value.

    Args:
        type: ``string``, ``boolean``, ``integer``, ``int-or-string``, ``list[...]``, ``map[...]``,
            ``any`` for what is not looked into.
        detail: honoured: the state and parameter; otherwise half a sentence that says why not.
        fate: what becomes of it.
        choices: the only values it may have.
        default: what the API server, or the chart, fills in.
        minimum: the least an integer may be.
        instead: the path to use, for what is deprecated or dead.
        until: the last release that looked at it, for what is dead; empty: none did.
    """

    type: str
    detail: str
    fate: Fate
    choices: tuple[str, ...] = ()
    default: Any = field(default=None, hash=False)
    minimum: int | None = None
    instead: str = ""
    until: str = ""


Leaves = Mapping[str, Leaf]

IMAGE_WHY = "the image of a container"
POD_WHY = "a property of a pod"
METRICS_WHY = "a property of a ServiceMonitor"


honoured = partial(Leaf, fate=Fate.HONOURED)
kubernetes = partial(Leaf, fate=Fate.KUBERNETES)
no_meaning = partial(Leaf, fate=Fate.NO_MEANING)
later = partial(Leaf, fate=Fate.LATER)
deprecated = partial(Leaf, fate=Fate.DEPRECATED)
dead = partial(Leaf, fate=Fate.DEAD)


def under(prefix: str, *parts: Leaves) -> dict[str, Leaf]:
    return {
        f"{prefix}.{path}": replace(leaf, instead=f"{prefix}.{leaf.instead}")
        if leaf.instead
        else leaf
        for part in parts
        for path, leaf in part.items()
    }


def with_fate(fate: Fate, detail: str, part: Leaves, until: str = "") -> dict[str, Leaf]:
    """The same leaves with another fate."""
    return {
        path: replace(leaf, fate=fate, detail=detail, until=until) for path, leaf in part.items()
    }


def env(leaf: Leaf) -> dict[str, Leaf]:
    return {"env[].name": leaf, "env[].value": leaf}


IMAGE: Leaves = {
    name: kubernetes("list[string]" if name == "imagePullSecrets" else "string", IMAGE_WHY)
    for name in ("repository", "image", "version", "imagePullPolicy", "imagePullSecrets")
}
RESOURCES: Leaves = {
    "resources.limits": kubernetes("map[int-or-string]", POD_WHY),
    "resources.requests": kubernetes("map[int-or-string]", POD_WHY),
}
ARGS: Leaves = {"args": kubernetes("list[string]", POD_WHY)}
ENV = env(kubernetes("string", "an environment variable of a container"))
HOST_NETWORK: Leaves = {"hostNetwork": kubernetes("boolean", POD_WHY)}
COMPONENT: Leaves = {**IMAGE, **RESOURCES, **ARGS, **ENV, **HOST_NETWORK}

PROBE: Leaves = {
    name: kubernetes("integer", "a probe of a container", minimum=minimum)
    for name, minimum in (
        ("initialDelaySeconds", None),
        ("timeoutSeconds", 1),
        ("periodSeconds", 1),
        ("successThreshold", 1),
        ("failureThreshold", 1),
    )
}
PROBES = {
    **under("startupProbe", PROBE),
    **under("livenessProbe", PROBE),
    **under("readinessProbe", PROBE),
}
SERVICE_MONITOR: Leaves = {
    "enabled": kubernetes("boolean", METRICS_WHY),
    "interval": kubernetes("string", METRICS_WHY),
    "scrapeTimeout": kubernetes("string", METRICS_WHY),
    "honorLabels": kubernetes("boolean", METRICS_WHY),
    "additionalLabels": kubernetes("map[string]", METRICS_WHY),
    "relabelings[].sourceLabels": kubernetes("list[string]", METRICS_WHY),
    "relabelings[].separator": kubernetes("string", METRICS_WHY),
    "relabelings[].regex": kubernetes("string", METRICS_WHY),
    "relabelings[].modulus": kubernetes("integer", METRICS_WHY, minimum=0),
    "relabelings[].targetLabel": kubernetes("string", METRICS_WHY),
    "relabelings[].replacement": kubernetes("string", METRICS_WHY),
    "relabelings[].action": kubernetes(
        "string",
        METRICS_WHY,
        choices=tuple(
            spelled
            for word in (
                *("Replace", "Keep", "Drop", "HashMod", "LabelMap", "LabelDrop", "LabelKeep"),
                *("Lowercase", "Uppercase", "KeepEqual", "DropEqual"),
            )
            for spelled in (word.lower(), word)
        ),
        default="replace",
    ),
}
TOLERATIONS: Leaves = {
    **{
        f"tolerations[].{name}": kubernetes("string", POD_WHY)
        for name in ("key", "operator", "value", "effect")
    },
    "tolerations[].tolerationSeconds": kubernetes("integer", POD_WHY),
}
SECURITY: Leaves = {
    **dict.fromkeys(
        (
            *("appArmorProfile.localhostProfile", "appArmorProfile.type", "fsGroupChangePolicy"),
            *("seLinuxChangePolicy", "seLinuxOptions.level", "seLinuxOptions.role"),
            *("seLinuxOptions.type", "seLinuxOptions.user", "seccompProfile.localhostProfile"),
            *("seccompProfile.type", "supplementalGroupsPolicy", "sysctls[].name"),
            *("sysctls[].value", "windowsOptions.gmsaCredentialSpec"),
            *("windowsOptions.gmsaCredentialSpecName", "windowsOptions.runAsUserName"),
        ),
        kubernetes("string", POD_WHY),
    ),
    **dict.fromkeys(("fsGroup", "runAsGroup", "runAsUser"), kubernetes("integer", POD_WHY)),
    **dict.fromkeys(("runAsNonRoot", "windowsOptions.hostProcess"), kubernetes("boolean", POD_WHY)),
    "supplementalGroups": kubernetes("list[integer]", POD_WHY),
}
