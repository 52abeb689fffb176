"""Documents of verbs that only read match their published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commandline import Cli

import gpustate as package
from gpustate.core.encode import plain
from gpustate.core.facts import NodeFacts
from gpustate.diagnosis.health import judge
from gpustate.formats.nvml_report import (
    Gpu,
    GpuHealth,
    MigDevice,
    MigInstance,
    MigProfile,
    NvmlFacts,
)
from gpustate.formats.pci_gpus import PciGpu

SCHEMAS = {
    str(data["title"]): data
    for path in Path(package.__file__).parent.rglob("schema/*.json")
    for data in (json.loads(path.read_text("utf-8")),)
}
POLICY = "format: gpustate.policy/1\nstates:\n  driver: {branch: 580}\n  validator: {}\n"


def check(data: Any) -> None:
    """Compare a document with the schema that its format names."""
    jsonschema.Draft202012Validator(SCHEMAS[data["format"]]).validate(data)


@pytest.fixture
def site(project: Path) -> Path:
    (project / "policy.yaml").write_text(POLICY)
    (project / "inventory.yml").write_text(
        "all:\n  hosts:\n"
        f"    here:\n      ansible_connection: local\n      gpustate_state_folder: {project}/state\n"
        f"    away:\n      ansible_host: 127.0.0.1\n      ansible_port: 1\n"
    )
    return project


@pytest.mark.parametrize("path", SCHEMAS)
def test_every_schema_is_one(path: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[path])


@pytest.mark.parametrize("verb", ["facts", "health", "node labels", "node fabric"])
def test_documents_of_nodes_match_their_schemas(gpustate: Cli, site: Path, verb: str) -> None:
    done = gpustate(*verb.split(), "-i", "inventory.yml", "-o", "json")
    data = json.loads(done.out)
    assert data["format"] == f"gpustate.{verb.split()[-1]}/1"
    assert {row["name"] for row in data["nodes"]} == {"here", "away"}
    check(data)


def test_a_diagnosis_matches_its_schema(gpustate: Cli, site: Path) -> None:
    data = json.loads(gpustate("explain", "here", "-i", "inventory.yml", "-o", "json").out)
    assert data["nodes"][0]["checks"]
    check(data)


def test_graphs_and_converted_policies_match_their_schemas(gpustate: Cli, site: Path) -> None:
    check(json.loads(gpustate("policy", "graph", "policy.yaml", "-o", "json").out))
    check(json.loads(gpustate("policy", "graph", "--all", "-o", "json").out))
    for shape in ("yaml", "python"):
        check(
            json.loads(
                gpustate("policy", "convert", "policy.yaml", "--to", shape, "-o", "json").out
            )
        )


def test_a_node_with_gpus_matches_the_schemas() -> None:
    """Every part of a GPU is there once; no machine of the tests has one."""
    instance = MigInstance(1, "1g.10gb", 0, ((1, 0, 0),))
    profile = MigProfile("1g.10gb", 19, 19, 1, 1, 7, (0, 1), (1, 0), ((1, 0, 0),))
    health = GpuHealth(remapped_uncorrectable=3, retirement_pending=True)
    gpu = Gpu(
        *(0, "GPU-1", "0000:1b:00.0"),
        mig_devices=(MigDevice("MIG-1"),),
        mig_instances=(instance,),
        mig_profiles=(profile,),
        remap_failed=True,
        health=health,
    )
    nvml = NvmlFacts("nvml", True, gpus=(gpu,))
    facts = NodeFacts(os_id="debian", os_version="12", pci=(PciGpu("a", "2330", "030200", None),))
    row = {"name": "gpu1", **plain(facts), "distribution": facts.distribution}
    row |= {"nvml": plain(nvml), "quarantine": []}
    check({"format": "gpustate.facts/1", "nodes": [row]})
    findings = [plain(one) for one in judge(nvml)]
    assert findings
    one = {"index": 0, "uuid": "GPU-1", "pci": "0000:1b:00.0", "name": "", "state": "failed"}
    node = {"name": "gpu1", "gpus": [{**one, "findings": findings}], "others": findings}
    node |= {"quarantine": [], "quarantine_ended": []}
    check({"format": "gpustate.health/1", "nodes": [node]})
