"""Detect the kind of a document by its content, and refuse documents that only resemble one.

Values inside another program's file are handled by :mod:`gpustate.gpu_operator.wrappers`.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1, api/nvidia/v1alpha1.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Set

from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote
from gpustate.gpu_operator import dra, nearest, tables
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.keys import fields, sections
from gpustate.gpu_operator.nearest import top_level

KINDS = {
    ("nvidia.com/v1", "ClusterPolicy"): "clusterpolicy",
    ("nvidia.com/v1alpha1", "NVIDIADriver"): "nvidiadriver",
    ("nvidia.com/v1alpha1", "GPUCluster"): "gpucluster",
    ("v1", "ConfigMap"): "configmap",
    ("v1", "Secret"): "secret",
    ("v1", "Node"): "node",
}
EXPECTED = "wanted a ClusterPolicy, an NVIDIADriver, a GPUCluster or the GPU Operator's Helm values"
#: Keys of pods that people write at the top level.
_OF_PODS = frozenset(
    {
        *("tolerations", "nodeSelector", "affinity", "imagePullSecrets", "imagePullPolicy"),
        *("priorityClassName", "runtimeClassName", "runtimeClass", "podSecurityContext"),
        *("securityContext", "serviceAccountName", "podAnnotations", "podLabels"),
        *(
            "topologySpreadConstraints",
            "updateStrategy",
            "hostNetwork",
            "hostPID",
            "usePrecompiled",
        ),
        *("kernelModuleType", "upgradePolicy", "licensingConfig", "rdma", "serviceMonitor"),
    }
)


def kind(item: Item, file: str) -> str:
    """Return the kind of a document; ``other`` for an object of another program.

    Raises:
        PolicyError: it only resembles one of the Operator's.
    """
    place = f"{file}:{item.line}"
    if not isinstance(item.value, dict):
        raise PolicyError(f"is {kind_of(item.value)}, not a policy", place=place, fix=EXPECTED)
    version, name = item.text("apiVersion"), item.text("kind")
    if not version and not name:
        return _values(item, place)
    if (version, name) in KINDS:
        return KINDS[version, name]
    _refuse_look_alike(version, name, place)
    if not version or not name:
        raise PolicyError(f"lacks {'apiVersion' if not version else 'kind'}", place=place)
    return "other"


#: The beginning of a counters file's line: field, type.
_COUNTER = re.compile(r"^DCGM_(FI|EXP)_\w+[ \t]*,[ \t]*\w+[ \t]*,", re.MULTILINE)


def counters_file(text: str, file: str) -> PolicyError | None:
    """The error for a counters file of dcgm-exporter in place of a policy; ``None`` for other texts."""
    if _COUNTER.search(text) is None:
        return None
    return PolicyError(
        "is a counters file of dcgm-exporter, not a policy",
        place=file,
        fix=f"check it: gpustate node dcgm check {shlex.quote(file)}",
    )


def _part_of_config_map(item: Item, place: str) -> PolicyError | None:
    """The error for a file that belongs into a ConfigMap of a policy; ``None`` for others."""
    file = shlex.quote(place.rpartition(":")[0])
    if dra.of_own_chart(item.value):
        title, fix = (
            "a values file of the DRA driver's chart",
            f"give it beside the Operator's: --values {file}",
        )
    elif "mig-configs" in item.value:
        title = "a mig-parted file"
        fix = f"plan a layout of it: gpustate node mig plan {file} NAME"
    elif item.text("version") == "v1" and _OF_PLUGIN & set(item.value):
        title = "a configuration of the device plugin"
        fix = "put it into the ConfigMap named by devicePlugin.config.name, where lint checks it"
    else:
        return None
    return PolicyError(f"is {title}, not a policy", place=place, fix=fix)


_OF_PLUGIN = frozenset(("flags", "resources", "sharing", "imex"))


def _values(item: Item, place: str) -> str:
    error = _part_of_config_map(item, place)
    if error is not None:
        raise error
    if sections() & set(item.value) or not item.value:
        return "helm"
    key = next(iter(item.value), "")
    if key in nearest.expected("helm"):
        return "helm"
    if nearest.spelled_otherwise(key, fields("helm")) or _near(key, sections()):
        return "helm"  # reported later with the key and a suggestion
    if _misplaced(item.value):
        return "helm"  # the same
    if any(part.get("hosts") or part.get("children") for part in item.value.values()):
        why = 'looks like an inventory; a policy has "preset:" or "states:"'
        raise PolicyError(why, place=place, fix="write: gpustate VERB POLICY -i INVENTORY")
    raise PolicyError(
        f"is not a policy: it begins with {quote(key)}{top_level(key, sections())}",
        place=place,
        fix=EXPECTED,
    )


def _misplaced(keys: Iterable[str]) -> bool:
    """Whether all are keys of the chart at another level, and at least one is specific to it."""
    key_list = list(keys)
    below = {word for path in fields("helm") for word in re.split(r"[.\[\]]+", path)[1:] if word}
    paths = [key for key in key_list if key.partition(".")[0] in sections()]
    plausible = [*paths, *(key for key in key_list if _near(key, below | _OF_PODS))]
    telling = [*paths, *(key for key in key_list if _near(key, _OF_PODS))]
    return bool(telling) and set(plausible) == set(key_list)


def _near(key: str, candidates: Set[str]) -> bool:
    return bool(difflib.get_close_matches(key, candidates, 1, 0.85))


def _refuse_look_alike(version: str, name: str, place: str) -> None:
    group = version.partition("/")[0]
    if group not in ("nvidia.com", ""):
        programs = tables.sections("expected.txt")["other programs"]
        for program in (program for key, program in programs if key == f"{group}/{name}"):
            raise PolicyError(f"{name} of {version} is {program}", place=place, fix=EXPECTED)
        title = _likely_kind(name) or _OWN_KINDS.get(_folded(name))
        if title is not None and ("nvidia" in group or name.lower().startswith(("gpu", "nvidia"))):
            raise _no_such_kind(version, name, f"did you mean {title}", place)
        return
    for known_version, known_kind in KINDS:
        if known_version == "v1" or name.lower() != known_kind.lower():
            continue
        if name == known_kind:
            raise PolicyError(
                f"{name} of {quote(version)} is unsupported, wanted {known_version}", place=place
            )
        raise PolicyError(
            f"unknown kind {quote(name)} of {version}, wanted {known_kind} of {known_version}",
            place=place,
        )
    if not version or not name:
        return
    title = _likely_kind(name)
    if title is None:
        near = difflib.get_close_matches(name, [k for v, k in KINDS if v != "v1"], 1)
        title = next((f"{k} of {v}" for v, k in KINDS if near and k == near[0]), None)
    raise _no_such_kind(version, name, f"did you mean {title}" if title else EXPECTED, place)


def _likely_kind(name: str) -> str | None:
    """What was probably meant by a kind that does not exist."""
    rows = tables.sections("expected.txt")["kinds"]
    return next((title for kinds, title in rows if _folded(name) in tables.expanded(kinds)), None)


def _folded(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


#: The Operator's kinds, which people also write with other groups.
_OWN_KINDS = {_folded(kind): f"{kind} of {version}" for version, kind in KINDS if version != "v1"}


def _no_such_kind(version: str, name: str, fix: str, place: str) -> PolicyError:
    message = f"unknown kind {quote(name)} of {version}: no release of the GPU Operator has it"
    return PolicyError(message, place=place, fix=fix)
