"""Fields of the schemas, and blocks of fields that nearly every component shares.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any


class Support(StrEnum):
    """How gpustate supports a field."""

    HONOURED = "honoured"  # by a state, or by the reader itself
    KUBERNETES = "kubernetes"  # about pods and other Kubernetes objects, not about a node
    NO_MEANING = "no-meaning"  # about the Operator's containers; not applicable on a host
    LATER = "later"  # about a node, but no state of this release supports it
    DEPRECATED = "deprecated"  # the Operator still reads it, and recommends another field
    DEAD = "dead"  # the Operator, or its chart, no longer reads it


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema that holds a value.

    Args:
        type: ``string``, ``boolean``, ``integer``, ``int-or-string``, ``quantity``, ``list[...]``, ``map[...]``,
            ``any`` for values that are not checked.
        detail: if honoured, the state and parameter; otherwise the reason, half a sentence.
        support: how gpustate supports it.
        choices: the allowed values.
        default: filled in by the API server or the chart.
        minimum: the lowest allowed integer.
        instead: the path to use, for a deprecated or dead field.
        until: the last release that read it, for a dead field; empty if none did.
        objects: it is a field of objects that gpustate applies with ``--cluster-objects``, and of no state.
        container: of a component that may run as containers: its section; then it is honoured.
        off: the field where that component does not.
        parsed_again: the chart writes it without quotes, so that a string becomes what YAML reads in it.
    """

    type: str
    detail: str
    support: Support
    choices: tuple[str, ...] = ()
    default: Any = field(default=None, hash=False)
    minimum: int | None = None
    instead: str = ""
    until: str = ""
    objects: bool = False
    container: str = ""
    off: Field | None = None
    parsed_again: bool = False


Fields = Mapping[str, Field]

IMAGE_WHY = "the image of a container"
POD_WHY = "a property of a pod"
METRICS_WHY = "a property of a ServiceMonitor"


honoured = partial(Field, support=Support.HONOURED)
kubernetes = partial(Field, support=Support.KUBERNETES)
#: Of an object of the cluster, not of a node.
in_objects = partial(Field, support=Support.HONOURED, objects=True)
no_meaning = partial(Field, support=Support.NO_MEANING)
later = partial(Field, support=Support.LATER)
deprecated = partial(Field, support=Support.DEPRECATED)
dead = partial(Field, support=Support.DEAD)


def under(prefix: str, *parts: Fields) -> dict[str, Field]:
    return {
        f"{prefix}.{path}": replace(one, instead=f"{prefix}.{one.instead}") if one.instead else one
        for part in parts
        for path, one in part.items()
    }


def with_support(support: Support, detail: str, part: Fields, until: str = "") -> dict[str, Field]:
    """The same fields with another kind of support."""
    return {
        path: replace(one, support=support, detail=detail, until=until, objects=False)
        for path, one in part.items()
    }


def as_objects(detail: str, part: Fields) -> dict[str, Field]:
    """The same fields, where gpustate applies the object they are about."""
    return {
        path: replace(one, support=Support.HONOURED, detail=detail, objects=True)
        for path, one in part.items()
    }


def in_containers(section: str, part: Fields, detail: str) -> dict[str, Field]:
    """The same fields, which objects carry out where the component of a section runs as containers."""
    return {
        path: replace(
            one,
            support=Support.HONOURED,
            detail=f"{detail}, with {section} in containers",
            objects=True,
            container=section,
            off=one,
        )
        for path, one in part.items()
    }


def env(one: Field) -> dict[str, Field]:
    return {"env[].name": one, "env[].value": one}


IMAGE: Fields = {
    name: kubernetes("list[string]" if name == "imagePullSecrets" else "string", IMAGE_WHY)
    for name in ("repository", "image", "version", "imagePullPolicy", "imagePullSecrets")
}
RESOURCES: Fields = {
    "resources.limits": kubernetes("map[quantity]", POD_WHY),
    "resources.requests": kubernetes("map[quantity]", POD_WHY),
}
ARGS: Fields = {"args": kubernetes("list[string]", POD_WHY)}
ENV = env(kubernetes("string", "an environment variable of a container"))
HOST_NETWORK: Fields = {"hostNetwork": kubernetes("boolean", POD_WHY)}
COMPONENT: Fields = {**IMAGE, **RESOURCES, **ARGS, **ENV, **HOST_NETWORK}

PROBE: Fields = {
    name: kubernetes("integer", "a probe of a container", minimum=minimum)
    for name, minimum in (
        ("initialDelaySeconds", None),
        ("timeoutSeconds", 1),
        ("periodSeconds", 1),
        ("successThreshold", 1),
        ("failureThreshold", 1),
    )
}
SERVICE_MONITOR: Fields = {
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
TOLERATIONS: Fields = {
    **{
        f"tolerations[].{name}": kubernetes("string", POD_WHY)
        for name in ("key", "operator", "value", "effect")
    },
    "tolerations[].tolerationSeconds": kubernetes("integer", POD_WHY),
}
SECURITY: Fields = {
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
