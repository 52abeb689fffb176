"""The records of fields against the schemas and the values of the GPU Operator, and the manual.

The upstream files are those of NVIDIA/gpu-operator v26.7.0 + 3 commits (a22dbf67). A clone of the
project, whose folder the environment variable GPU_OPERATOR_CLONE names, is counted as a whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leafhistory
import leafpage
import pytest
import yaml

from gpustate import registry
from gpustate.gpu_operator import history, nearest
from gpustate.gpu_operator.companions import REFERENCES
from gpustate.gpu_operator.keys import TITLES, Field, Fields, Support, fields, records, rows
from gpustate.gpu_operator.lint import lint as linted
from gpustate.policies.changes import OPERATOR_SECTIONS

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT.parent / "shared" / "upstream" / "gpu-operator"
needs_upstream = pytest.mark.skipif(
    not UPSTREAM.is_dir(), reason="wants ../shared/upstream/gpu-operator beside the repository"
)
SCHEMAS = {
    "nvidia.com_clusterpolicies.yaml": fields("clusterpolicy"),
    "nvidia.com_nvidiadrivers.yaml": fields("nvidiadriver"),
    "nvidia.com_gpuclusters.yaml": fields("gpucluster"),
}
COUNTS = {
    "nvidia.com_clusterpolicies.yaml": 391,
    "nvidia.com_nvidiadrivers.yaml": 123,
    "nvidia.com_gpuclusters.yaml": 104,
}
#: Keys of the chart's values.yaml.
CHART_VALUES = 294
#: Upstream's sample of a GPUCluster has it, its schema has not.
ONLY_IN_SAMPLES = {"nvidia.com_gpuclusters.yaml": {"hostPaths.rootFS"}}


def leaves_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every field of a structural schema: its path, its type as we write it, its schema."""
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        yield path, "int-or-string", schema
    elif "properties" in schema:
        for name, below in schema["properties"].items():
            yield from leaves_of(below, f"{path}.{name}" if path else name)
    elif kind == "object":
        inner = schema.get("additionalProperties", {})
        of = "quantity" if inner.get("x-kubernetes-int-or-string") else inner.get("type", "any")
        yield path, f"map[{of}]", schema
    elif kind == "array" and "properties" in schema["items"]:
        yield from leaves_of(schema["items"], f"{path}[]")
    elif kind == "array":
        yield path, f"list[{schema['items']['type']}]", schema
    else:
        yield path, kind, schema


def spec_of(file: str) -> dict[str, Any]:
    text = (UPSTREAM / file).read_text()
    loaded: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    versions = loaded["spec"]["versions"]
    spec: dict[str, Any] = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


@needs_upstream
@pytest.mark.parametrize("file", SCHEMAS)
def test_every_leaf_of_the_schema_is_in_the_table_and_no_other(file: str) -> None:
    upstream = {path for path, _, _ in leaves_of(spec_of(file))}
    assert len(upstream) == COUNTS[file]
    assert set(SCHEMAS[file]) == upstream | ONLY_IN_SAMPLES.get(file, set())


@needs_upstream
@pytest.mark.parametrize("file", SCHEMAS)
def test_types_choices_defaults_and_minima_agree_with_the_schema(file: str) -> None:
    table = SCHEMAS[file]
    for path, kind, schema in leaves_of(spec_of(file)):
        field = table[path]
        assert field.type == kind, path
        assert set(field.choices) == set(schema.get("enum", ())), path
        assert field.default == schema.get("default"), path
        assert field.minimum == schema.get("minimum"), path


def value_leaves() -> dict[str, Any]:
    text = (UPSTREAM / "values.yaml").read_text()
    loaded: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    return dict(leafhistory.value_leaves(loaded))


@needs_upstream
def test_lint_counts_the_leaves_of_a_file_that_say_something() -> None:
    report = linted((UPSTREAM / "values.yaml").read_text(), "values.yaml")
    assert len(report.uses) == 255, "docs/operator-files.md says how many, and what is counted"


@needs_upstream
def test_every_leaf_of_the_charts_values_has_exactly_one_record_or_is_a_list_of_such() -> None:
    found = records("helm")
    upstream = value_leaves()
    assert len(upstream) == CHART_VALUES
    for path, value in upstream.items():
        words = path.split(".")
        above = [".".join(words[:count]) for count in range(1, len(words) + 1)]
        covering = [
            one for one in above if one in found and (one == path or _open(found[one].field.type))
        ]
        below = [one for one in found if one.startswith((f"{path}.", f"{path}[]."))]
        if value in ([], {}) or isinstance(value, list):
            assert len(covering) == 1 or (not covering and below), path
        else:
            assert len(covering) == 1, path


def _open(kind: str) -> bool:
    return kind == "any" or kind.startswith("map[")


@needs_upstream
def test_defaults_of_the_chart_are_those_of_its_values() -> None:
    assert history.chart_defaults() == value_leaves()
    assert records("helm")["driver.version"].default == value_leaves()["driver.version"]
    assert records("helm")["operator.resources.limits"].default == {
        "cpu": "500m",
        "memory": "350Mi",
    }


@needs_upstream
def test_the_charts_types_fit_its_own_values() -> None:
    for path, value in value_leaves().items():
        record = records("helm").get(path)
        if record is None or value in ([], {}, ""):
            continue
        kind = record.field.type
        fits = {
            "string": isinstance(value, str),
            "quoted": isinstance(value, str),
            "boolean": isinstance(value, bool),
            "integer": isinstance(value, int),
            "int-or-string": isinstance(value, int | str),
            "any": True,
        }
        assert fits.get(kind.partition("[")[0], isinstance(value, dict | list)), path
        assert not record.field.choices or value in record.field.choices, path


@pytest.mark.parametrize("kind", TITLES)
def test_every_record_says_what_becomes_of_its_leaf(kind: str) -> None:
    for path, record in records(kind).items():
        field = record.field
        assert field.detail, path
        assert not field.detail.endswith("."), path
        assert isinstance(field.support, Support)
        assert field.support in (Support.DEAD, Support.DEPRECATED) or not (
            field.instead or field.until
        ), path
        assert not field.instead or field.instead in records(kind), path
        assert not field.until or field.until in history.releases(), path
        assert record.since in history.releases() or path == "global", path


@pytest.mark.parametrize("kind", TITLES)
def test_states_that_records_name_are_states_there_are(kind: str) -> None:
    for path, record in records(kind).items():
        if record.support is Support.HONOURED:
            for name in re.findall(r"\b([a-z]+(?:-[a-z]+)*)\.[a-z_]+\b", record.field.detail):
                assert name in OPERATOR_SECTIONS or registry.find(name) is not None, path


@pytest.mark.parametrize("kind", TITLES)
def test_keys_that_name_objects_are_leaves_of_their_kind(kind: str) -> None:
    for reference in REFERENCES[kind]:
        assert reference.path in records(kind)


def test_what_is_told_of_expected_keys_leads_to_keys_there_are() -> None:
    for kind in TITLES:
        assert nearest.expected(kind)
        for path, suggestion in nearest.expected(kind).items():
            assert path not in _inner(fields(kind)), path
            assert not suggestion.path or suggestion.path in _inner(fields(kind)), path
        for wrong, right in nearest.renamed(kind).items():
            assert wrong not in _inner(fields(kind)) or wrong == "node-feature-discovery.enabled"
            assert right in _inner(fields(kind)), (wrong, kind)


def _inner(table: Fields) -> set[str]:
    """All paths, those of inner nodes too, without ``[]``."""
    found: set[str] = set()
    for path in table:
        words = path.replace("[]", "").split(".")
        found.update(".".join(words[:count]) for count in range(1, len(words) + 1))
    return found


def test_since_when_a_key_is_there_is_told_by_the_nearest_entry_of_the_table() -> None:
    assert history.since("clusterpolicy", "driver.kernelModuleType") == "v25.3.0"
    assert history.since("nvidiadriver", "upgradePolicy.autoUpgrade") == "v26.7.0"
    assert history.since("gpucluster", "draDriver.image") == "v26.7.0"
    assert history.since("helm", "node-feature-discovery.worker.config") == "v1.7.1"
    assert history.since("helm", "nowhere") == ""
    assert history.number("24.9") == (24, 9, 0)
    assert history.number("v24.9.0-rc1") is None


@pytest.mark.skipif(
    "GPU_OPERATOR_CLONE" not in os.environ, reason="wants GPU_OPERATOR_CLONE to name a clone"
)
def test_the_counted_figures_are_those_of_the_releases() -> None:
    counted = leafhistory.count(os.environ["GPU_OPERATOR_CLONE"])
    file = ROOT / "gpustate" / "gpu_operator" / "data" / "history.json"
    assert json.loads(file.read_text("utf-8")) == counted


def test_the_page_of_all_fields_has_every_key() -> None:
    page = leafpage.page()
    for kind in ("clusterpolicy", "helm"):
        for path in fields(kind):
            assert f"`{path}`" in page, path


def test_the_manual_names_the_number_of_fields() -> None:
    manual = " ".join((ROOT / "docs" / "operator-files.md").read_text().split())
    titles = ("ClusterPolicy", "NVIDIADriver", "GPUCluster")
    words = ", ".join(
        f"{COUNTS[file]} of {title}" for file, title in zip(SCHEMAS, titles, strict=True)
    )
    assert f"{words} and one more that NVIDIA's sample of it has" in manual
    for file, table in SCHEMAS.items():
        assert len(table) == COUNTS[file] + len(ONLY_IN_SAMPLES.get(file, ()))


def test_the_manual_names_the_number_of_keys_of_the_chart() -> None:
    pages = {
        name: " ".join((ROOT / "docs" / name).read_text().split())
        for name in ("operator-files.md", "understand.md")
    }
    assert f"({CHART_VALUES} in its values.yaml)" in pages["operator-files.md"]
    counted = f"{len(fields('clusterpolicy'))} keys of ClusterPolicy and {len(fields('helm'))} of the chart"
    assert counted in pages["understand.md"]


def test_the_manual_names_every_honoured_leaf_of_clusterpolicy() -> None:
    manual = (ROOT / "docs" / "operator-files.md").read_text()
    pages = ("cluster-reference.md", "containers.md")
    objects = "".join((ROOT / "docs" / page).read_text() for page in pages)
    for path, field in fields("clusterpolicy").items():
        if field.support is not Support.HONOURED:
            continue
        if not field.objects:
            assert f"`{path.replace('[].name', '').replace('[].value', '')}`" in manual, path
            continue
        section, _, rest = path.partition(".")
        assert f"`{section}`" in objects or f"`{section}." in objects, path
        words = [(first, *rest.split(".")) for first in (section, "devicePlugin")]
        above = [".".join(one[:count]) for one in words for count in range(2, len(one) + 1)]
        assert any(f"`{one.partition('[]')[0]}`" in objects for one in above), path


@pytest.mark.parametrize("kind", TITLES)
def test_every_row_of_the_table_names_keys_there_are(kind: str) -> None:
    table = fields(kind)
    if kind == "clusterpolicy":
        of_drivers = (
            path if path.startswith("gd") else f"driver.{path}" for path in fields("nvidiadriver")
        )
        table = {**table, **dict.fromkeys(of_drivers, Field("any"))}
    dotted = [f".{path}" for path in table]
    for row in rows()[kind]:
        for key in row.keys:
            pattern = key[1:] if key.startswith("*") else f".{key.removesuffix('*')}"
            assert any(pattern in path for path in dotted), key
