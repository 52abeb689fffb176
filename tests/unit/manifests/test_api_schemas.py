"""Every object that is rendered, against the API's own schemas: unknown fields, missing ones, and values of another type.

Kubernetes' kinds are those of lightkube's models, which are generated from the OpenAPI of kube-apiserver. Others have custom
resource definitions. The objects are the golden ones, of policies with every component.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from everyobject import DEFINITIONS, DRA, WHOLE
from jsonschema import Draft202012Validator
from lightkube.core.resource_registry import ResourceRegistry

from gpustate.documents import Json
from gpustate.gpu_operator.objects import images
from gpustate.manifests import templates
from gpustate.manifests.build import build
from gpustate.manifests.kinds import KINDS

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"
#: Settings with every component, beside the golden files.
SETTINGS = {"whole": WHOLE, "whole with DRA": dataclasses.replace(WHOLE, dra_driver=DRA)}
SOURCES = [
    *sorted(file.stem for file in GOLDEN.glob("*.yaml") if ".policy" not in file.name),
    *SETTINGS,
]
NFD = [one for one in yaml.load_all(templates.text("nfd-crds.yaml"), yaml.CSafeLoader) if one]
#: Schemas of custom resources by kind.
CUSTOM: dict[str, Json] = {
    one["spec"]["names"]["kind"]: one["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
    for one in (*DEFINITIONS, *NFD)
}


def mistakes(item: Json) -> list[str]:
    """What the API server would refuse or drop."""
    if item["kind"] in CUSTOM:
        validator = Draft202012Validator(_closed(CUSTOM[item["kind"]]))
        return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(item)]
    # The registry of the process has classes of any content, where a client was there before.
    resource = ResourceRegistry().load(item["apiVersion"], item["kind"])
    try:
        known = msgspec.to_builtins(msgspec.convert(item, resource))
    except msgspec.ValidationError as error:
        return [str(error)]
    return list(_dropped(item, known, item["kind"]))


def _closed(schema: Json) -> Json:
    """A structural schema that refuses unknown fields."""
    closed = {
        key: {name: _closed(one) for name, one in value.items()} if key == "properties" else value
        for key, value in schema.items()
        if key not in ("format", "description")
    }
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(schema["additionalProperties"])
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    if schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    return closed


def _dropped(given: Any, known: Any, path: str) -> Iterator[str]:
    """Fields that a model does not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            if key not in known and value is not None:
                yield f"{path}: unknown field {key}"
            else:
                yield from _dropped(value, known.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(known, list):
        for number, value in enumerate(given):
            yield from _dropped(value, known[number], f"{path}[{number}]")


def objects(source: str) -> list[Json]:
    """The objects of a golden file, or of settings with every component."""
    if source in SETTINGS:
        return build(SETTINGS[source], images())
    text = (GOLDEN / f"{source}.yaml").read_text()
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


@pytest.mark.parametrize("source", SOURCES)
def test_rendered_objects_fit_the_schemas_of_the_api(source: str) -> None:
    found = [
        f"{item['kind']} {item['metadata']['name']}: {mistake}"
        for item in objects(source)
        for mistake in mistakes(item)
    ]
    assert found == []


def test_objects_of_every_kind_are_checked() -> None:
    checked = {item["kind"] for source in SOURCES for item in objects(source)}
    assert checked == {kind.name for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "steps", "value", "said"),
    [
        ("DaemonSet", ("spec", "template", "spec", "hostPid"), True, "unknown field hostPid"),
        ("DaemonSet", ("spec", "template", "spec", "hostPID"), "true", "Expected `bool"),
        ("DaemonSet", ("spec", "template", "spec", "containers"), {}, "Expected `array"),
        ("ServiceMonitor", ("spec", "intervall"), "15s", "intervall"),
        ("ServiceMonitor", ("spec", "endpoints"), {}, "array"),
    ],
)
def test_mistakes_are_found(kind: str, steps: tuple[str, ...], value: Any, said: str) -> None:
    items = (one for source in SOURCES for one in objects(source) if one["kind"] == kind)
    item = copy.deepcopy(next(items))
    node = item
    for step in steps[:-1]:
        node = node[step]
    node[steps[-1]] = value
    assert any(said in one for one in mistakes(item))
