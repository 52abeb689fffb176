"""Checks across the documents of one file, and of the objects next to it.

Sources:
    NVIDIA/gpu-operator v26.7: controllers (clusterpolicy_controller.go, nvidiadriver_controller.go),
    internal/validator, api/nvidia/v1alpha1/gpucluster_types.go, config/crd/bases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.formats.words import quote
from gpustate.gpu_operator import contents
from gpustate.gpu_operator.companions import (
    REFERENCES,
    Companion,
    CompanionStore,
    Reference,
    inline_of,
    object_name,
)
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.pools import overlap, terms

#: Sections that the schema of ClusterPolicy requires; an empty mapping is enough.
REQUIRED = (
    *("operator", "daemonsets", "driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter"),
    *("nodeStatusExporter", "gfd"),
)
_BRANCH = re.compile(r"(\d{3,4})(\..*)?(-.*)?")
#: The only name that a GPUCluster may have.
GPU_CLUSTER = "gpu-cluster"
#: The lowest driver branch that a GPUCluster supports.
_DRA_BRANCH = 580


def documents(contexts: Sequence[Context]) -> Iterator[Finding]:
    """Objects that conflict with one another."""
    kinds: dict[str, list[Context]] = {}
    for context in contexts:
        kinds.setdefault(context.kind, []).append(context)
    for kind in ("clusterpolicy", "gpucluster", "helm"):
        for context in kinds.get(kind, [])[1:]:
            yield context.find(
                "contradiction", "", f"a second {context.title}: only one takes effect", "keep one"
            )
    stacks = [
        context
        for kind in ("clusterpolicy", "gpucluster", "helm")
        for context in kinds.get(kind, [])[:1]
    ]
    for context in stacks[1:]:
        yield context.find(
            "contradiction", "", f"{context.title} and {stacks[0].title} are mutually exclusive"
        )
    drivers = kinds.get("nvidiadriver", [])
    yield from _drivers(drivers)
    yield from _overlaps(drivers)
    for policy in kinds.get("clusterpolicy", [])[:1]:
        yield from _policy(policy, drivers)
    for cluster in kinds.get("gpucluster", [])[:1]:
        yield from _cluster(cluster, drivers)


def _drivers(drivers: Sequence[Context]) -> Iterator[Finding]:
    defaults = [driver for driver in drivers if driver.own_value("default") is True]
    for driver in defaults[1:]:
        yield driver.find(
            "contradiction",
            "default",
            f"default is true here and in {defaults[0].title}, and only one may be the default",
        )


def _overlaps(drivers: Sequence[Context]) -> Iterator[Finding]:
    """Selectors that some node can match together: the Operator then refuses both drivers."""
    narrow = [(driver, terms(driver.spec)) for driver in drivers]
    narrow = [(driver, selector) for driver, selector in narrow if selector != [{}]]
    for number, (driver, selector) in enumerate(narrow):
        for earlier_driver, earlier_selector in narrow[:number]:
            if overlap(selector, earlier_selector):
                path = "nodeSelector" if driver.item_at("nodeSelector") else "nodeAffinity"
                yield driver.find(
                    "overlap",
                    path,
                    f"a node can match this and the selector of {earlier_driver.title} (line {earlier_driver.item.line}), "
                    "and the Operator refuses two NVIDIADrivers for one node",
                    "select by different values of one label",
                )


def _policy(policy: Context, drivers: Sequence[Context]) -> Iterator[Finding]:
    lacking = [name for name in REQUIRED if policy.item_at(name) is None]
    if lacking:
        yield policy.find(
            "incomplete",
            "",
            f"lacks {', '.join(lacking)}, which the API server requires",
            "add each of them, at least as {}",
        )
    by_crd = policy.value("driver.useNvidiaDriverCRD") is True
    if drivers and not by_crd:
        yield drivers[0].find(
            "without-effect",
            "",
            f"{drivers[0].title} has no effect: driver.useNvidiaDriverCRD of the ClusterPolicy is not true",
            "set driver.useNvidiaDriverCRD to true",
        )
    if by_crd and policy.on("driver"):
        for path in ("version", "kernelModuleType", "usePrecompiled", "rdma.enabled"):
            field_value = policy.own_value(f"driver.{path}")
            if field_value not in (None, "", False) and field_value != policy.value("driver.none"):
                yield policy.find(
                    "without-effect",
                    f"driver.{path}",
                    f"driver.{path} has no effect with driver.useNvidiaDriverCRD: the NVIDIADriver sets it",
                    f"move it to {path} of the NVIDIADriver",
                )


def _cluster(cluster: Context, drivers: Sequence[Context]) -> Iterator[Finding]:
    name = cluster.item.text("metadata", "name")
    if name and name != GPU_CLUSTER:
        yield cluster.find(
            "contradiction",
            "",
            f"metadata.name is {quote(name)}, and the API server accepts only {GPU_CLUSTER!r}",
            f"rename it to {GPU_CLUSTER}",
        )
    for driver in drivers:
        match = _BRANCH.fullmatch(str(driver.own_value("version") or ""))
        if match is not None and int(match[1]) < _DRA_BRANCH:
            yield driver.find(
                "contradiction",
                "version",
                f"version is {quote(driver.own_value('version'))}, and a GPUCluster needs branch {_DRA_BRANCH}",
                f"set it to {_DRA_BRANCH} or later",
            )


def companions(context: Context, store: CompanionStore) -> Iterator[Finding]:
    """ConfigMaps and Secrets: missing ones, and the content of the others."""
    for reference in REFERENCES.get(context.kind, ()):
        name = object_name(context.own_value(reference.path), context.kind)
        if not name:
            continue
        try:
            companion = (
                inline_of(context.spec, reference, name, context.file)
                if context.kind == "helm"
                else None
            )
            companion = companion or store.find(reference.kind, name)
        except PolicyError as error:
            yield context.find(
                "companion", reference.path, f"{error.place}: {error.message}", error.fix
            )
            continue
        if companion is None:
            yield context.find(
                "not-found",
                reference.path,
                f"the {reference.kind} {quote(name)} was not found, so it is not checked",
                f"add it to the file, or to the folder {store.folder.name}",
            )
            continue
        yield from _content(context, reference, companion)


#: The kind of a ConfigMap's data, recognised by its key or by a word of its text.
_HOLDS = (
    ("clients.yaml", "", "clients"),
    ("dcgm-metrics.csv", "", "counters"),
    ("nvidia.conf", "", "modules"),
    ("nvidia-uvm.conf", "", "modules"),
    ("gridd.conf", "", "license"),
    ("", "mig-configs:", "mig"),
    ("", "version: v1", "plugin"),
)


def companions_only(file: str, items: Sequence[Item]) -> tuple[list[Finding], bool]:
    """Findings on ConfigMaps without the policy that names them, and whether any was recognised."""
    findings: list[Finding] = []
    recognised = False
    for item in items:
        name = item.text("metadata", "name")
        try:
            companion = CompanionStore(file, (item,)).find(item.text("kind"), name)
        except PolicyError as error:
            findings.append(Finding("companion", "", error.message, file, item.line, error.fix))
            recognised = True
            continue
        holds = _held(companion) if companion is not None else ""
        if companion is None or not holds:
            continue
        recognised = True
        title = f"{companion.kind} {name}"
        for flaw in contents.check(holds, companion):
            findings.append(
                Finding("companion", "", flaw.message, flaw.file, flaw.line, flaw.fix, title)
            )
    return findings, recognised


def _held(companion: Companion) -> str:
    for key, word, holds in _HOLDS:
        if key in companion.entries:
            return holds
        if word and any(word in entry.text for entry in companion.entries.values()):
            return holds
    return ""


def _content(context: Context, reference: Reference, companion: Companion) -> Iterator[Finding]:
    for flaw in contents.check(reference.holds, companion):
        yield Finding(
            flaw.rule, reference.path, flaw.message, flaw.file, flaw.line, flaw.fix, context.title
        )
    if reference.path == "devicePlugin.config.name":
        default = context.own_value("devicePlugin.config.default")
        if default and str(default) not in companion.entries:
            yield context.find(
                "contradiction",
                "devicePlugin.config.default",
                f"devicePlugin.config.default is {quote(default)}, and the ConfigMap {quote(companion.name)} "
                f"has {', '.join(sorted(companion.entries))}",
            )
        elif context.value("mig.strategy") == "mixed":
            yield from _not_with_mixed(context, companion, str(default or ""))


def _not_with_mixed(context: Context, companion: Companion, default: str) -> Iterator[Finding]:
    """The Operator passes ``mig.strategy`` to the plugin, which refuses mixed together with MPS."""
    try:
        words = contents.mixed_with_mps(companion, default)
    except PolicyError:
        return  # there is a finding already
    if words:
        yield context.find("contradiction", "mig.strategy", words, deviceplugin.INSTEAD_OF_MIXED)
