"""Counts keys over the releases of the GPU Operator, from a clone of it.

    python tests/support/leafhistory.py CLONE > gpustate/clusterpolicy/data/history.json

A key of a kind is there when the schema has it; one of the chart when values.yaml or a template has.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

FIRST = (1, 3, 0)
KINDS = {
    "clusterpolicy": "clusterpolicies",
    "nvidiadriver": "nvidiadrivers",
    "gpucluster": "gpuclusters",
}
SCHEMAS = (
    "config/crd/bases/nvidia.com_{}.yaml",
    "deployments/gpu-operator/crds/nvidia.com_{}_crd.yaml",
    "deployments/gpu-operator/crds/nvidia.com_{}.yaml",
)
CHART = "deployments/gpu-operator"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def git(clone: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=True)
    return done.stdout


def tags(clone: str) -> list[str]:
    """The releases, the oldest first."""
    named = (re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", tag) for tag in git(clone, "tag").split())
    numbered = sorted((tuple(map(int, match.groups())), match[0]) for match in named if match)
    return [tag for number, tag in numbered if number >= FIRST]


def schema_leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    if schema.get("properties") and not schema.get("x-kubernetes-int-or-string"):
        for name, below in schema["properties"].items():
            yield from schema_leaves(below, f"{path}.{name}" if path else name)
    elif schema.get("type") == "array" and schema["items"].get("properties"):
        yield from schema_leaves(schema["items"], path)
    else:
        yield path


def value_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from value_leaves(below, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def of_kind(clone: str, tag: str, names: set[str], kind: str) -> set[str]:
    """Paths of a kind's spec in one release; ``[]`` is left out."""
    for pattern in SCHEMAS:
        file = pattern.format(KINDS[kind])
        if file in names:
            spec = yaml.load(git(clone, "show", f"{tag}:{file}"), Loader=_LOADER)["spec"]
            versions = spec.get("versions") or [{}]
            schema = versions[0].get("schema") or spec["validation"]
            return set(schema_leaves(schema["openAPIV3Schema"]["properties"]["spec"]))
    return set()


def of_chart(clone: str, tag: str, names: set[str], schema: set[str]) -> dict[str, Any]:
    """Keys of the chart in one release, with the defaults of values.yaml (``None``: none)."""
    text = git(clone, "show", f"{tag}:{CHART}/values.yaml")
    values = dict(value_leaves(yaml.load(text, Loader=_LOADER)))
    templates = "".join(
        git(clone, "show", f"{tag}:{name}")
        for name in names
        if name.startswith(f"{CHART}/templates/")
    )
    named = set(re.findall(r"\.Values\.([A-Za-z0-9_.]+)", templates))
    whole = tuple(
        f"{path}." for path in re.findall(r"toYaml \(?\.Values\.([A-Za-z0-9_.]+)", templates)
    )
    passed_on = {path for path in schema if path in named or path.startswith(whole)}
    return {**dict.fromkeys(named | passed_on), **values}


def prefixes(first: Mapping[str, str]) -> dict[str, str]:
    """The same table with prefixes for what is the same below them."""
    below: dict[str, Counter[str]] = {}
    for path, release in first.items():
        words = path.split(".")
        for count in range(1, len(words)):
            below.setdefault(".".join(words[:count]), Counter())[release] += 1
    found: dict[str, str] = {}

    def inherited(path: str) -> str | None:
        words = path.split(".")
        for count in range(len(words) - 1, 0, -1):
            known = found.get(".".join(words[:count]))
            if known is not None:
                return known
        return None

    for path in sorted(below, key=lambda path: (path.count("."), path)):
        release = max(below[path].items(), key=lambda one: (one[1], one[0]))[0]
        if inherited(path) != release:
            found[path] = release
    for path, release in sorted(first.items()):
        if inherited(path) != release:
            found[path] = release
    return dict(sorted(found.items()))


def count(clone: str) -> dict[str, Any]:
    """Everything that ``data/history.json`` holds."""
    releases = tags(clone)
    first: dict[str, dict[str, str]] = {kind: {} for kind in (*KINDS, "helm")}
    last: dict[str, set[str]] = {}
    defaults: dict[str, Any] = {}
    for tag in releases:
        names = set(git(clone, "ls-tree", "-r", "--name-only", tag).split())
        for kind in KINDS:
            last[kind] = of_kind(clone, tag, names, kind)
            for path in last[kind]:
                first[kind].setdefault(path, tag)
        chart = of_chart(clone, tag, names, last["clusterpolicy"] | last["gpucluster"])
        for path in chart:
            first["helm"].setdefault(path, tag)
        text = git(clone, "show", f"{tag}:{CHART}/values.yaml")
        defaults = dict(value_leaves(yaml.load(text, Loader=_LOADER)))
    since = {kind: {path: first[kind][path] for path in last[kind]} for kind in KINDS}
    since["helm"] = first["helm"]
    return {
        "source": f"NVIDIA/gpu-operator {releases[0]} to {releases[-1]}",
        "releases": releases,
        "since": {kind: prefixes(table) for kind, table in since.items()},
        "chart": dict(sorted(defaults.items())),
    }


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1]), indent=1))
