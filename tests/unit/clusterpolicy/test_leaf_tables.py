"""The tables of leaves against the custom resource definitions of the GPU Operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpustate.clusterpolicy.blocks import Fate, Leaves
from gpustate.clusterpolicy.helm import HELM
from gpustate.clusterpolicy.leaves import CLUSTER_POLICY, NVIDIA_DRIVER

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT.parent / "shared" / "upstream" / "gpu-operator"
needs_upstream = pytest.mark.skipif(
    not UPSTREAM.is_dir(), reason="wants ../shared/upstream/gpu-operator beside the repository"
)
TABLES = {
    "nvidia.com_clusterpolicies.yaml": CLUSTER_POLICY,
    "nvidia.com_nvidiadrivers.yaml": NVIDIA_DRIVER,
}


def leaves_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every leaf of a structural schema: its path, its type as we write it, its schema."""
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        yield path, "int-or-string", schema
    elif "properties" in schema:
        for name, below in schema["properties"].items():
            yield from leaves_of(below, f"{path}.{name}" if path else name)
    elif kind == "object":
        inner = schema.get("additionalProperties", {})
        of = (
            "int-or-string" if inner.get("x-kubernetes-int-or-string") else inner.get("type", "any")
        )
        yield path, f"map[{of}]", schema
    elif kind == "array" and "properties" in schema["items"]:
        yield from leaves_of(schema["items"], f"{path}[]")
    elif kind == "array":
        yield path, f"list[{schema['items']['type']}]", schema
    else:
        yield path, kind, schema


def spec_of(file: str) -> dict[str, Any]:
    text = (UPSTREAM / file).read_text()
    loaded: Any = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    versions = loaded["spec"]["versions"]
    spec: dict[str, Any] = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


@needs_upstream
@pytest.mark.parametrize("file", TABLES)
def test_every_leaf_of_the_schema_is_in_the_table_and_no_other(file: str) -> None:
    upstream = {path for path, _, _ in leaves_of(spec_of(file))}
    assert len(upstream) > 100
    assert set(TABLES[file]) == upstream


@needs_upstream
@pytest.mark.parametrize("file", TABLES)
def test_types_choices_defaults_and_minima_agree_with_the_schema(file: str) -> None:
    table = TABLES[file]
    for path, kind, schema in leaves_of(spec_of(file)):
        leaf = table[path]
        assert leaf.type == kind, path
        assert set(leaf.choices) == set(schema.get("enum", ())), path
        assert leaf.default == schema.get("default"), path
        assert leaf.minimum == schema.get("minimum"), path


@pytest.mark.parametrize("table", [CLUSTER_POLICY, NVIDIA_DRIVER, HELM], ids=["cp", "nd", "helm"])
def test_every_leaf_says_what_becomes_of_it(table: Leaves) -> None:
    for path, leaf in table.items():
        assert leaf.detail, path
        assert not leaf.detail.endswith("."), path


def test_the_manual_names_every_honoured_leaf_of_clusterpolicy() -> None:
    manual = (ROOT / "docs" / "operator-files.md").read_text()
    for path, leaf in CLUSTER_POLICY.items():
        if leaf.fate is Fate.HONOURED:
            assert f"`{path.replace('[].name', '').replace('[].value', '')}`" in manual, path
