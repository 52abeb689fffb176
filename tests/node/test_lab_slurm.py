"""A Slurm cluster over lab nodes, as people use it: apply, resume, jobs on GPUs, drains, reboots.

Real: slurmctld, slurmd and munge of Debian 12, their protocol, states and reasons. Simulated: GPUs, NVML,
CUDA, the driver's packages, and the 64 processors that slurmd reports.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import gpustate
from labtraces import traces
from slurmholds import TOO_FEW, change_waits, reserved
from slurmjobs import APPLIED, CUDA_COUNT, Cluster

from gpustate.errors import LabError
from gpustate.inventory.loading import load
from gpustate_lab import api
from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]


@pytest.fixture(scope="module")
def bare(lab_factory: Callable[[LabSpec], Lab]) -> Cluster:
    """Two nodes of eight GPUs, no driver yet."""
    return Cluster.of(
        lab_factory(LabSpec(nodes=2, images=("debian12",), gpus=("8xH100",), slurm=True))
    )


@pytest.fixture(scope="module")
def cluster(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The same after an apply and a resume; before that Slurm kept both nodes from jobs."""
    for state in bare.slurm.states().values():
        assert state.reason == TOO_FEW.format(0)
        assert state.flags >= {"DRAIN", "INVALID_REG"}
    bare.policy = tmp_path_factory.mktemp("slurm") / "policy.py"
    bare.policy.write_text(APPLIED)
    gpustate("apply", bare.policy, "-i", bare.lab.inventory, "--yes", code=0)
    for state in bare.slurm.states().values():
        assert state.flags == {"IDLE", "DRAIN"}, "a drain outlives its cause"
    bare.resume()
    return bare


def test_a_job_that_asks_for_two_gpus_gets_two(cluster: Cluster) -> None:
    ran = cluster.job(
        f"-w gpu1 --gres=gpu:2 sh -c 'id -un; echo $CUDA_VISIBLE_DEVICES; {CUDA_COUNT}'"
    )
    assert ran.split() == ["op", "0,1", "2"]
    smi = cluster.job("--gres=gpu:2 nvidia-smi -L")
    assert smi.count("NVIDIA H100") == 8, "without cgroups a job sees all of the node's"


def test_eight_jobs_share_the_gpus_of_a_node_and_the_ninth_waits(cluster: Cluster) -> None:
    node = cluster.lab.node("gpu2")
    node.run("rm -f /tmp/gpu.*")
    batch = "echo $CUDA_VISIBLE_DEVICES >/tmp/gpu.$SLURM_JOB_ID; sleep 60"
    for _ in range(8):
        cluster.submit(f"-w gpu2 --gres=gpu:1 --wrap '{batch}'")
    cluster.until(lambda: len(node.run("cat /tmp/gpu.* || :").stdout.split()) == 8)
    assert sorted(node.run("cat /tmp/gpu.*").stdout.split()) == [str(gpu) for gpu in range(8)]
    assert "GresUsed=gpu:h100:8" in cluster.slurm.scontrol("-d", "show", "node", "gpu2")
    refused = cluster.head("srun -w gpu2 --immediate=1 --gres=gpu:1 true", check=False)
    assert refused.returncode != 0
    cluster.head("scancel --state=RUNNING --user=op")
    cluster.until(lambda: not cluster.head("squeue -h").stdout)
    ran = cluster.job("-N2 --gres=gpu:8 sh -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert ran.split() == ["0,1,2,3,4,5,6,7"] * 2, "sixteen are allocated to one job"


def test_a_node_with_a_gpu_too_few_in_gres_conf_is_drained_until_apply_and_resume(
    cluster: Cluster,
) -> None:
    node = cluster.lab.node("gpu1")
    node.run("sed -i '/nvidia7/d' /etc/slurm/gres.conf; systemctl restart slurmd")
    cluster.until(lambda: "INVALID_REG" in cluster.state("gpu1").flags)
    assert cluster.state("gpu1").reason == TOO_FEW.format(7)
    assert "DRAIN" in cluster.state("gpu1").flags
    assert gpustate("drift", cluster.policy, "-i", cluster.lab.inventory).code == 2
    gpustate("apply", cluster.policy, "-i", cluster.lab.inventory, "--yes", code=0)
    cluster.until(lambda: cluster.state("gpu1").flags == {"IDLE", "DRAIN"})
    assert cluster.state("gpu1").reason == TOO_FEW.format(7)
    cluster.resume()


def test_a_drain_waits_for_the_job_and_resume_takes_it_back(cluster: Cluster) -> None:
    cluster.submit("-w gpu1 --gres=gpu:8 --wrap 'sleep 60'")
    cluster.until(lambda: cluster.state("gpu1").flags == {"MIXED"})
    cluster.slurm.scontrol("update", "nodename=gpu1", "state=drain", "reason=new driver")
    assert cluster.state("gpu1").flags == {"MIXED", "DRAIN"}
    assert cluster.state("gpu1").reason == "new driver"
    cluster.head("scancel --state=RUNNING --user=op")
    cluster.until(lambda: cluster.state("gpu1").flags == {"IDLE", "DRAIN"})
    cluster.resume()


@pytest.mark.parametrize("how", ["scontrol reboot", "systemctl reboot", "power loss"])
def test_a_node_that_was_off_gets_jobs_again(cluster: Cluster, how: str) -> None:
    node = cluster.lab.node("gpu2")
    before = node.boot_id()
    if how == "scontrol reboot":
        cluster.slurm.scontrol("reboot", "nextstate=resume", "gpu2")
        cluster.until(lambda: _boot_id(cluster) not in (None, before))
    elif how == "systemctl reboot":
        node.reboot()
    else:
        node.kill()
        node.boot()
    assert node.boot_id() != before
    cluster.until(lambda: cluster.state("gpu2").flags == {"IDLE"})
    ran = cluster.job("-w gpu2 --gres=gpu:2 sh -c 'hostname; echo $CUDA_VISIBLE_DEVICES'")
    assert ran.split() == ["gpu2", "0,1"]


def _boot_id(cluster: Cluster) -> str | None:
    try:
        return cluster.lab.node("gpu2").boot_id()
    except LabError:  # between two boots
        return None


def test_restarting_slurmd_leaves_its_jobs_alone(cluster: Cluster) -> None:
    cluster.submit("-w gpu1 --gres=gpu:2 --wrap 'sleep 60'")
    cluster.until(lambda: cluster.state("gpu1").flags == {"MIXED"})
    cluster.lab.node("gpu1").run("systemctl restart slurmd")
    time.sleep(2)
    assert cluster.head("squeue -h -o %T").stdout.split() == ["RUNNING"]
    cluster.head("scancel --state=RUNNING --user=op")
    cluster.until(lambda: cluster.state("gpu1").flags == {"IDLE"})


def test_a_change_waits_for_jobs_and_returns_the_node(cluster: Cluster, tmp_path: Path) -> None:
    change_waits(cluster, tmp_path, "gpu1")


def test_a_foreign_reservation_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    reserved(cluster, tmp_path, "gpu1")


def test_the_list_and_the_inventory_name_the_host_that_runs_slurmctld(cluster: Cluster) -> None:
    listed = gpustate("lab", "list", "--name", cluster.lab.name, "-o", "json", code=0)
    entry = json.loads(listed.out)["labs"][0]["slurm"]
    assert entry["running"] is True
    assert f"SlurmctldHost=slurm({entry['address']})" in Path(entry["config"]).read_text()
    groups = yaml.safe_load(cluster.lab.inventory.read_text())["all"]["children"]
    assert groups["gpu"]["vars"]["gpustate_slurm_host"] == entry["address"]
    assert sorted(groups["gpu"]["hosts"]) == ["gpu1", "gpu2"], "the head is no GPU node"
    pinged = subprocess.run(
        [*entry["ssh"], "scontrol ping"], capture_output=True, text=True, check=True
    )
    assert "is UP" in pinged.stdout


def test_the_nodes_of_a_cluster_are_an_inventory(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = gpustate("lab", "list", "--name", cluster.lab.name, "-o", "json", code=0)
    words = shlex.join(json.loads(listed.out)["labs"][0]["slurm"]["ssh"])
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nexec {words} scontrol "$@"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    inventory = load("slurm:")
    known = load(str(cluster.lab.inventory))
    found = {node.name: node.connection.host for node in inventory.nodes}
    assert found == {node.name: node.connection.host for node in known.nodes}


def test_a_node_that_was_reset_is_still_a_member_and_has_no_gpus(cluster: Cluster) -> None:
    node = cluster.lab.node("gpu2")
    node.reset()
    cluster.until(lambda: "INVALID_REG" in cluster.state("gpu2").flags)
    assert cluster.state("gpu2").reason == TOO_FEW.format(0)
    gpustate("apply", cluster.policy, "-i", cluster.lab.inventory, "--yes", code=0)
    cluster.resume()
    assert cluster.job("-w gpu2 --gres=gpu:8 hostname") == "gpu2\n"


@pytest.mark.parametrize("started", ["nodes/slurm/supervisor.json", "nodes/gpu1/supervisor.json"])
def test_down_leaves_nothing_of_an_up_that_was_killed(cluster: Cluster, started: str) -> None:
    name = f"pytest-slurm-{os.getpid()}"
    program = (
        "from gpustate_lab import api; from gpustate_lab.spec import LabSpec;"
        f"api.up(LabSpec(name={name!r}, nodes=1, images=('debian12',), gpus=('none',), slurm=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not (cluster.lab.directory.with_name(name) / started).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    half_made = api.find(name)
    api.down(name)
    assert traces(half_made) == []
