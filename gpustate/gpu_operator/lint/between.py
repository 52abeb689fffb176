"""What the documents of one file say of one another, and the objects beside them.

Sources:
    NVIDIA/gpu-operator v26.7: controllers (clusterpolicy_controller.go, nvidiadriver_controller.go),
    internal/validator, api/nvidia/v1alpha1/gpucluster_types.go, config/crd/bases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate.formats.words import shown
from gpustate.gpu_operator import contents, gpucluster
from gpustate.gpu_operator.companions import (
    REFERENCES,
    Companion,
    Reference,
    Shelf,
    inline_of,
    object_name,
    padded,
)
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding

#: What the schema of ClusterPolicy requires; an empty mapping is enough.
REQUIRED = (
    *("operator", "daemonsets", "driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter"),
    *("nodeStatusExporter", "gfd"),
)
_BRANCH = re.compile(r"(\d{3,4})(\..*)?(-.*)?")
#: The first branch that a GPUCluster works with.
_DRA_BRANCH = 580


def documents(contexts: Sequence[Context]) -> Iterator[Finding]:
    """Objects that get into one another's way."""
    kinds: dict[str, list[Context]] = {}
    for one in contexts:
        kinds.setdefault(one.kind, []).append(one)
    for kind in ("clusterpolicy", "gpucluster", "helm"):
        for one in kinds.get(kind, [])[1:]:
            yield one.find(
                "contradiction", "", f"a second {one.title}: only one of them counts", "keep one"
            )
    stacks = [
        one for kind in ("clusterpolicy", "gpucluster", "helm") for one in kinds.get(kind, [])[:1]
    ]
    for one in stacks[1:]:
        yield one.find(
            "contradiction", "", f"{one.title} beside {stacks[0].title}, wanted one of them"
        )
    drivers = kinds.get("nvidiadriver", [])
    yield from _drivers(drivers)
    for policy in kinds.get("clusterpolicy", [])[:1]:
        yield from _policy(policy, drivers)
    for cluster in kinds.get("gpucluster", [])[:1]:
        yield from _cluster(cluster, drivers)


def _drivers(drivers: Sequence[Context]) -> Iterator[Finding]:
    defaults = [one for one in drivers if one.given("default") is True]
    for one in defaults[1:]:
        yield one.find(
            "contradiction",
            "default",
            f"default is true here and in {defaults[0].title}, wanted one",
        )


def _policy(policy: Context, drivers: Sequence[Context]) -> Iterator[Finding]:
    lacking = [name for name in REQUIRED if policy.item_at(name) is None]
    if lacking:
        yield policy.find(
            "incomplete",
            "",
            f"lacks {', '.join(lacking)}, which the API server wants",
            "give each, if only as {}",
        )
    by_crd = policy.value("driver.useNvidiaDriverCRD") is True
    if drivers and not by_crd:
        yield drivers[0].find(
            "without-effect",
            "",
            f"{drivers[0].title} does nothing: driver.useNvidiaDriverCRD of the ClusterPolicy is not true",
            "set driver.useNvidiaDriverCRD to true",
        )
    if by_crd and policy.on("driver"):
        for path in ("version", "kernelModuleType", "usePrecompiled", "rdma.enabled"):
            given = policy.given(f"driver.{path}")
            if given not in (None, "", False) and given != policy.value("driver.none"):
                yield policy.find(
                    "without-effect",
                    f"driver.{path}",
                    f"driver.{path} does nothing with driver.useNvidiaDriverCRD: the NVIDIADriver says it",
                    f"move it to {path} of the NVIDIADriver",
                )


def _cluster(cluster: Context, drivers: Sequence[Context]) -> Iterator[Finding]:
    name = cluster.item.text("metadata", "name")
    if name and name != gpucluster.NAME:
        yield cluster.find(
            "contradiction",
            "",
            f"metadata.name is {shown(name)}, and the API server takes only {gpucluster.NAME!r}",
            f"call it {gpucluster.NAME}",
        )
    for driver in drivers:
        match = _BRANCH.fullmatch(str(driver.given("version") or ""))
        if match is not None and int(match[1]) < _DRA_BRANCH:
            yield driver.find(
                "contradiction",
                "version",
                f"version is {shown(driver.given('version'))}, and a GPUCluster wants branch {_DRA_BRANCH}",
                f"write {_DRA_BRANCH} or later",
            )


def companions(context: Context, shelf: Shelf) -> Iterator[Finding]:
    """ConfigMaps and Secrets: found or not, and what stands in them."""
    for reference in REFERENCES.get(context.kind, ()):
        name = object_name(context.given(reference.path), context.kind)
        if not name:
            continue
        try:
            found = (
                inline_of(context.spec, reference, name, context.file)
                if context.kind == "helm"
                else None
            )
            found = found or shelf.find(reference.kind, name)
        except PolicyError as error:
            yield context.find(
                "companion", reference.path, f"{error.place}: {error.message}", error.fix
            )
            continue
        if found is None:
            yield context.find(
                "not-found",
                reference.path,
                f"the {reference.kind} {shown(name)} is not beside the file, so it is not looked into",
                f"put it into the file, or into the folder {shelf.folder.name}",
            )
            continue
        yield from _content(context, reference, found)


#: What a ConfigMap holds by a key that only such a one has, or by a word of its text.
_HOLDS = (
    ("clients.yaml", "", "clients"),
    ("dcgm-metrics.csv", "", "counters"),
    ("nvidia.conf", "", "modules"),
    ("nvidia-uvm.conf", "", "modules"),
    ("gridd.conf", "", "license"),
    ("", "mig-configs:", "mig"),
    ("", "version: v1", "plugin"),
)


def alone(file: str, items: Sequence[Item]) -> tuple[list[Finding], bool]:
    """What is to be said of ConfigMaps without the policy that names them, and whether any is known."""
    found: list[Finding] = []
    known = False
    for item in items:
        name = item.text("metadata", "name")
        try:
            companion = Shelf(file, (item,)).find(item.text("kind"), name)
        except PolicyError as error:
            found.append(Finding("companion", "", error.message, file, item.line, error.fix))
            known = True
            continue
        holds = _held(companion) if companion is not None else ""
        if companion is None or not holds:
            continue
        known = True
        title = f"{companion.kind} {name}"
        for flaw in contents.check(holds, companion):
            found.append(
                Finding("companion", "", flaw.message, flaw.file, flaw.line, flaw.fix, title)
            )
    return found, known


def _held(companion: Companion) -> str:
    for key, word, holds in _HOLDS:
        if key in companion.entries:
            return holds
        if word and any(word in entry.text for entry in companion.entries.values()):
            return holds
    return ""


def _content(context: Context, reference: Reference, found: Companion) -> Iterator[Finding]:
    for flaw in contents.check(reference.holds, found):
        yield Finding(
            flaw.rule, reference.path, flaw.message, flaw.file, flaw.line, flaw.fix, context.title
        )
    if reference.path == "devicePlugin.config.name":
        default = context.given("devicePlugin.config.default")
        if default and str(default) not in found.entries:
            yield context.find(
                "contradiction",
                "devicePlugin.config.default",
                f"devicePlugin.config.default is {shown(default)}, and the ConfigMap {shown(found.name)} "
                f"has {', '.join(sorted(found.entries))}",
            )
        elif context.value("mig.strategy") == "mixed":
            yield from _not_with_mixed(context, found, str(default or ""))


def _not_with_mixed(context: Context, found: Companion, default: str) -> Iterator[Finding]:
    """The Operator hands ``mig.strategy`` to the plugin, which refuses mixed together with MPS."""
    entry = found.entries.get(default)
    if entry is None:
        return
    try:
        config = deviceplugin.read(padded(entry), entry.file)
    except PolicyError:
        return  # there is a finding already
    if config.sharing.strategy == "mps":
        yield context.find(
            "contradiction",
            "mig.strategy",
            f"mig.strategy is mixed, and {default} of the ConfigMap {shown(found.name)} shares GPUs with "
            "MPS: the device plugin refuses both together",
            "use single or none, or sharing.timeSlicing",
        )
