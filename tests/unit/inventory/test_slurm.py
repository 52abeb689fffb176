"""``slurm:``: the nodes with GPUs that scontrol shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory.loading import load

#: As scontrol 22.05 and 24.11 print them.
NODES = """\
NodeName=gpu1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 AvailableFeatures=h100 Gres=gpu:h100:8(S:0-1) NodeAddr=10.0.0.1 NodeHostName=gpu1 Version=22.05.8 State=IDLE Partitions=all,batch BootTime=2026-11-29T05:00:00 Reason=gres/gpu count reported lower than configured (0 < 8)
NodeName=gpu2 Arch=x86_64 AvailableFeatures=(null) Gres=gpu:2,shard:8 NodeAddr=gpu2 NodeHostName=gpu2 State=DOWN Partitions=all
NodeName=cpu1 Arch=x86_64 AvailableFeatures=(null) Gres=(null) NodeAddr=10.0.0.3 State=IDLE Partitions=all
NodeName=new1 AvailableFeatures=(null) Gres=gpu:4 NodeAddr=10.0.0.4 State=UNKNOWN
"""


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_nodes_with_gpus_have_their_address_partitions_and_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "ssh", f"echo $* >{tmp_path}/log; cat <<'END'\n{NODES}END", monkeypatch)
    inventory = load("slurm:ops@ctl")
    assert (tmp_path / "log").read_text().endswith("-- ops@ctl scontrol show nodes --oneliner\n")
    nodes = {node.name: node for node in inventory.nodes}
    assert list(nodes) == ["gpu1", "gpu2", "new1"]
    assert nodes["gpu1"].connection.host == "10.0.0.1"
    assert {node.text("gpustate_slurm_host", "", "") for node in inventory.nodes} == {"ctl"}
    assert inventory.groups["partition_all"] == ("gpu1", "gpu2")
    assert inventory.groups["slurm"] == ("gpu1", "gpu2", "new1")


def test_what_scontrol_says_and_a_cluster_without_gpus_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1", monkeypatch
    )
    with pytest.raises(InventoryError, match="Unable to contact"):
        load("slurm:")
    program(tmp_path, "scontrol", "echo NodeName=cpu1 Gres=\\(null\\)", monkeypatch)
    with pytest.raises(InventoryError, match="no node of the Slurm cluster has Gres=gpu"):
        load("slurm:")
