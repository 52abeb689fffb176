"""The documents of several nodes that ``gpustate node mig`` prints, against their published schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from gpustate.cli import mig
from gpustate.errors import ConnectionFailed, GpustateError
from gpustate.mig import tables
from gpustate.mig.layout import Layout


def schema(name: str) -> dict[str, Any]:
    text = resources.files("gpustate.plan").joinpath("schema", f"{name}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def validator(name: str) -> Draft202012Validator:
    """With the documents of one node, which those of several refer to."""
    whole = schema(name)
    Draft202012Validator.check_schema(whole)
    known = [schema("mig-layout"), schema("mig-plan")]
    registry: Registry[Any] = Registry().with_resources(
        (one["$id"], Resource.from_contents(one)) for one in known
    )
    return Draft202012Validator(whole, registry=registry)


@pytest.fixture
def _nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tables.find("H100 80GB HBM3")

    def nodes(_: object) -> Iterator[tuple[str, Layout | GpustateError]]:
        yield "gpu1", mig._counted(f"2x{model.name}")
        yield "gpu2", ConnectionFailed("does not answer")

    monkeypatch.setattr(mig, "_nodes", nodes)


@pytest.mark.usefixtures("_nodes")
@pytest.mark.parametrize(
    ("words", "name"),
    [(("show",), "mig-nodes"), (("plan", "builtin", "all-1g.10gb"), "mig-node-plans")],
)
def test_what_is_printed_of_several_nodes_fits_its_schema(
    words: tuple[str, ...], name: str
) -> None:
    done = CliRunner().invoke(mig.group, [*words, "-i", "hosts", "-o", "json"])
    data: Any = json.loads(done.stdout)
    assert [node["name"] for node in data["nodes"]] == ["gpu1", "gpu2"]
    assert "error" in data["nodes"][1]
    assert data["format"] == schema(name)["properties"]["format"]["const"]
    check = validator(name)
    check.validate(data)
    data["nodes"][0]["gpus"][0]["more"] = 1
    assert not check.is_valid(data)


def test_a_node_without_gpus_and_without_a_reason_is_no_row() -> None:
    for name in ("mig-nodes", "mig-node-plans"):
        row: dict[str, Any] = {"name": "gpu1"}
        assert not validator(name).is_valid({"format": f"gpustate.{name}/1", "nodes": [row]})
