"""The lab's cluster at every Kubernetes version that it has, and with thousands of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labkubernetes import create, get, logs, pod, wait_phase
from labtraces import traces

from gpustate_lab import api, process
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes import virtual
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.spec import KUBERNETES_VERSIONS, LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

VIRTUAL = 2000
#: What the lab promises for them, on two idle cores.
SECONDS, MEBIBYTES = 120, 1536


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_a_pod_runs_on_each_containerd_at_every_version(
    lab_programs: None, lab_factory: Callable[[LabSpec], Lab], version: str
) -> None:
    lab = lab_factory(LabSpec(nodes=2, images=("debian12", "debian13"), kubernetes=version))
    for node in lab.nodes:
        info = get(lab, "node", node.name)["status"]["nodeInfo"]
        assert info["kubeletVersion"].startswith(f"v{version}.")
        create(lab, pod(f"on-{node.name}", "echo ran", node=node.name))
        wait_phase(lab, f"on-{node.name}", "Succeeded")
        assert logs(lab, f"on-{node.name}") == "ran\n"
    api.down(lab.name)
    assert traces(lab) == []


def test_two_thousand_virtual_nodes_are_ready_in_two_minutes_and_a_gibibyte_and_a_half(
    lab_programs: None, lab_factory: Callable[[LabSpec], Lab]
) -> None:
    spec = LabSpec(
        nodes=1, images=("debian13",), gpus=("none",), kubernetes="1.36", virtual=VIRTUAL
    )
    began = time.monotonic()
    lab = lab_factory(spec)
    seconds = time.monotonic() - began
    cluster = Kubernetes(lab)
    with cluster.layout.client() as client:
        assert virtual.count_ready(client) == VIRTUAL
    directory = cluster.layout.directory
    memory = {
        file.name.removesuffix(".run.json"): _resident_mib(directory, file)
        for file in directory.glob("*.run.json")
    }
    total = sum(memory.values())
    print(f"\n{VIRTUAL} virtual nodes: up in {seconds:.0f} s, {total:.0f} MiB: {memory}")
    assert total < MEBIBYTES
    assert seconds < SECONDS


def _resident_mib(directory: Path, file: Path) -> float:
    name = file.name.removesuffix(".run.json")
    pid = process.read_state(directory / f"{name}.json")["program"]["pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"{name} does not run")
