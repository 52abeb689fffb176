"""The lab's Slurm cluster with the newer release of Slurm, Debian 13's 24.11.

What Debian 12's does is in tests/node/test_lab_slurm.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import gpustate
from slurmjobs import APPLIED, CUDA_COUNT, Cluster

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.node, pytest.mark.proof]


def test_debian_13_runs_jobs_on_gpus_drains_a_wrong_count_and_survives_power_loss(
    lab_factory: Callable[[LabSpec], Lab], tmp_path: Path
) -> None:
    cluster = Cluster.of(lab_factory(LabSpec(nodes=2, images=("debian13",), slurm=True)))
    assert cluster.slurm.version() == "slurm-wlm 24.11.5"
    policy = tmp_path / "policy.py"
    policy.write_text(APPLIED)
    inventory = ("-i", cluster.lab.inventory)
    gpustate("apply", policy, *inventory, "--yes", code=0)
    cluster.resume()
    ran = cluster.job(f"-w gpu1 --gres=gpu:2 sh -c 'echo $CUDA_VISIBLE_DEVICES; {CUDA_COUNT}'")
    assert ran.split() == ["0,1", "2"]

    node = cluster.lab.node("gpu1")
    node.run("sed -i '/nvidia7/d' /etc/slurm/gres.conf; systemctl restart slurmd")
    cluster.until(lambda: "INVALID_REG" in cluster.state("gpu1").flags)
    shown = json.loads(cluster.slurm.scontrol("show", "node", "gpu1", "--json"))["nodes"][0]
    assert {"IDLE", "DRAIN", "INVALID_REG"} <= set(shown["state"])
    assert shown["reason"] == "gres/gpu count reported lower than configured (7 < 8)"
    gpustate("apply", policy, *inventory, "--yes", code=0)
    cluster.until(lambda: cluster.state("gpu1").flags == {"IDLE", "DRAIN"})
    cluster.resume()

    node.kill()
    cluster.until(lambda: cluster.state("gpu1").flags >= {"DOWN", "NOT_RESPONDING"}, 120)
    # This release keeps the reason of a drain that was resumed, and adds to it.
    assert cluster.state("gpu1").reason.endswith(" : Not responding")
    node.boot()
    cluster.until(lambda: cluster.state("gpu1").flags == {"IDLE"})
    assert cluster.job("-w gpu1 --gres=gpu:8 hostname") == "gpu1\n"
