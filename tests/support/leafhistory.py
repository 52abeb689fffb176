"""Counts keys over the releases of the GPU Operator, from a clone of it.

    python tests/support/leafhistory.py CLONE > gpustate/gpu_operator/data/history.json

A key of a kind is there when the schema has it; one of the chart when values.yaml or a template has. Keys
of node feature discovery are those of the chart of it that the release brings along.
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

from gpustate.gpu_operator.keys import rows

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
SUBCHART = "node-feature-discovery"
#: Keys of node feature discovery: those of the table.
NFD = [
    key for row in rows()["helm"] for key in row.keys if key.startswith("node-feature-discovery.")
]
#: The last release with the subchart of the first ones, and the first that has it unpacked.
UNPACKED = "v1.7.0"


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


def schema_defaults(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Defaults that the API server fills in, by path; ``[]`` is left out."""
    if schema.get("properties") and not schema.get("x-kubernetes-int-or-string"):
        for name, below in schema["properties"].items():
            yield from schema_defaults(below, f"{path}.{name}" if path else name)
    elif schema.get("type") == "array" and schema["items"].get("properties"):
        yield from schema_defaults(schema["items"], path)
    elif "default" in schema:
        yield path, schema["default"]


def schema_fields(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Type of every field, as the table of keys has it, with choices and minimum; ``[]`` is any element of a list."""
    kind, inner = schema.get("type", ""), schema.get("items") or {}
    if schema.get("x-kubernetes-int-or-string"):
        kind = "int-or-string"
    elif "properties" in schema or "properties" in inner:
        below = inner.get("properties") or schema["properties"]
        listed = "[]" if inner else ""
        for name, one in below.items():
            yield from schema_fields(one, f"{path}{listed}.{name}" if path else name)
        return
    elif kind == "object":
        values = schema.get("additionalProperties", {})
        quantity = values.get("x-kubernetes-int-or-string")
        kind = f"map[{'quantity' if quantity else values.get('type', 'any')}]"
    elif kind == "array":
        kind = f"list[{inner['type']}]"
    more = {"choices": schema.get("enum"), "minimum": schema.get("minimum")}
    given = {name: value for name, value in more.items() if value is not None}
    yield path, [kind, given] if given else kind


def value_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from value_leaves(below, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def schema_of(clone: str, tag: str, names: set[str], kind: str) -> Mapping[str, Any]:
    """The schema of a kind's spec in one release; empty where there is no such kind."""
    for pattern in SCHEMAS:
        file = pattern.format(KINDS[kind])
        if file in names:
            spec = yaml.load(git(clone, "show", f"{tag}:{file}"), Loader=yaml.CSafeLoader)["spec"]
            versions = spec.get("versions") or [{}]
            schema = versions[0].get("schema") or spec["validation"]
            found: Mapping[str, Any] = schema["openAPIV3Schema"]["properties"]["spec"]
            return found
    return {}


def of_subchart(clone: str, tag: str, names: set[str]) -> set[str]:
    """Fields of the table of node feature discovery that its chart of one release has."""
    base = f"{CHART}/charts/{SUBCHART}/"
    if f"{CHART}/charts/{SUBCHART}-2.0.0.tgz" in names:
        tag = UNPACKED  # the same chart, unpacked
        names = set(git(clone, "ls-tree", "-r", "--name-only", tag).split())
    if f"{base}values.yaml" not in names:
        return set()
    values = dict(
        value_leaves(
            yaml.load(git(clone, "show", f"{tag}:{base}values.yaml"), Loader=yaml.CSafeLoader)
        )
    )
    text = "".join(
        git(clone, "show", f"{tag}:{name}")
        for name in names
        if name.startswith(f"{base}templates/")
    )
    named = set(re.findall(r"\.Values\.([A-Za-z0-9_.]+)", text)) | set(values)
    whole = tuple(f"{path}." for path in re.findall(r"toYaml \(?\.Values\.([A-Za-z0-9_.]+)", text))
    # A value that a template hands on as a whole, or takes apart in a block of its own.
    whole += tuple(f"{path}." for path in re.findall(r"with \(?\.Values\.([A-Za-z0-9_.]+)", text))
    found: set[str] = set()
    for path in (path.removeprefix(f"{SUBCHART}.") for path in dict.fromkeys(NFD)):
        there = path in named or any(one.startswith(f"{path}.") for one in named)
        if there or path.startswith(whole):
            found.add(f"{SUBCHART}.{path}")
    return found


def of_chart(clone: str, tag: str, names: set[str], schema: set[str]) -> dict[str, Any]:
    """Keys of the chart in one release, with the defaults of values.yaml (``None``: none)."""
    text = git(clone, "show", f"{tag}:{CHART}/values.yaml")
    values = dict(value_leaves(yaml.load(text, Loader=yaml.CSafeLoader)))
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


def changes(of_releases: Mapping[str, Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """What each path is from which release on; an entry of a release alone: nothing any more."""
    found: dict[str, list[list[Any]]] = {}
    for tag, table in of_releases.items():
        for path, value in table.items():
            past = found.setdefault(path, [])
            if not past or len(past[-1]) == 1 or past[-1][1] != value:
                past.append([tag, value])
        for path, past in found.items():
            if path not in table and len(past[-1]) == 2:
                past.append([tag])
    return dict(sorted(found.items()))


def count(clone: str) -> dict[str, Any]:
    """Everything that ``data/history.json`` holds."""
    releases = tags(clone)
    kinds = (*KINDS, "helm")
    there: dict[str, dict[str, set[str]]] = {kind: {} for kind in kinds}
    filled: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
    charts: dict[str, dict[str, Any]] = {}
    newest: dict[str, Mapping[str, Any]] = {}
    for tag in releases:
        names = set(git(clone, "ls-tree", "-r", "--name-only", tag).split())
        for kind in KINDS:
            schema = newest[kind] = schema_of(clone, tag, names, kind)
            there[kind][tag] = set(schema_leaves(schema)) if schema else set()
            filled[kind][tag] = dict(schema_defaults(schema)) if schema else {}
        of_kinds = there["clusterpolicy"][tag] | there["gpucluster"][tag]
        chart = of_chart(clone, tag, names, of_kinds)
        inner = {path for path in chart if path.partition(".")[0] == SUBCHART}
        inside = of_subchart(clone, tag, names)
        inside |= {one for one in NFD if any(f"{path}.".startswith(f"{one}.") for path in inner)}
        there["helm"][tag] = (set(chart) - inner) | inside
        text = git(clone, "show", f"{tag}:{CHART}/values.yaml")
        charts[tag] = dict(value_leaves(yaml.load(text, Loader=yaml.CSafeLoader)))
    since: dict[str, dict[str, str]] = {}
    for kind in kinds:
        first: dict[str, str] = {}
        for tag, table in there[kind].items():
            for path in table:
                first.setdefault(path, tag)
        known = set(first) if kind == "helm" else there[kind][releases[-1]]
        since[kind] = {path: first[path] for path in known}
    return {
        "source": f"NVIDIA/gpu-operator {releases[0]} to {releases[-1]}",
        "releases": releases,
        "since": {kind: prefixes(table) for kind, table in since.items()},
        "schema": {kind: dict(schema_fields(newest[kind])) for kind in KINDS},
        "filled": {kind: changes(filled[kind]) for kind in KINDS},
        "chart": changes(charts),
    }


def text_of(counted: Mapping[str, Any]) -> str:
    """The file: a line an entry."""
    lines: list[str] = []
    for section, table in counted.items():
        if not isinstance(table, dict):
            lines.append(f'"{section}": {json.dumps(table)}')
            continue
        rows = ",\n".join(f" {json.dumps(key)}: {_row(value)}" for key, value in table.items())
        lines.append(f'"{section}": {{\n{rows}\n}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items())
    return "{\n" + rows + "\n }"


if __name__ == "__main__":
    print(text_of(count(sys.argv[1])), end="")
