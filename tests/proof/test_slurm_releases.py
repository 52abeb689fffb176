"""The lab's Slurm cluster in every release that it has: 22.05 and 24.11 of Debian 12 and 13, 26.05 of unstable.

One node, whose name in Slurm is another one than its own. What Debian 12's does with two of them is in
tests/node/test_lab_slurm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import gpustate
from slurmholds import change_waits, drained_by_slurm, reboots, reserved
from slurmjobs import APPLIED, CUDA_COUNT, Cluster

from gpustate_lab import api
from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.node, pytest.mark.proof]

RELEASES = {"debian12": "22.05", "debian13": "24.11", "debian13-slurm26": "26.05"}
NAME = "rack7-01"


@pytest.fixture(scope="module", params=RELEASES)
def cluster(
    request: pytest.FixtureRequest,
    lab_factory: Callable[[LabSpec], Lab],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A node with its driver, in service."""
    spec = LabSpec(nodes=1, images=(request.param,), gpus=("8xH100",), slurm=True)
    found = Cluster.of(lab_factory(spec))
    assert f" {RELEASES[request.param]}." in found.slurm.version()
    rename = f"s/NodeName=gpu1 /NodeName={NAME} NodeHostname=gpu1 /; s/Nodes=gpu1 /Nodes={NAME} /"
    node = found.lab.node("gpu1")
    for machine, unit in ((found.slurm.head, "slurmctld"), (node, "slurmd")):
        machine.run(f"sed -i '{rename}' /etc/slurm/slurm.conf; systemctl restart {unit}")
    found.policy = tmp_path_factory.mktemp("slurm") / "first.py"
    found.policy.write_text(APPLIED)
    gpustate("apply", found.policy, "-i", found.lab.inventory, "--yes", code=0)
    found.until(lambda: "INVALID_REG" not in found.state(NAME).flags)
    found.resume()
    yield found
    api.down(found.lab.name)


def test_jobs_get_their_gpus_before_and_after_a_loss_of_power(cluster: Cluster) -> None:
    words = f"-w {NAME} --gres=gpu:2 sh -c 'echo $CUDA_VISIBLE_DEVICES; {CUDA_COUNT}'"
    assert cluster.job(words).split() == ["0,1", "2"]
    node = cluster.lab.node("gpu1")
    node.kill()
    cluster.until(lambda: cluster.state(NAME).flags >= {"DOWN", "NOT_RESPONDING"}, 120)
    # Newer releases keep the reason of a drain that was resumed, and add to it.
    assert cluster.state(NAME).reason.endswith("Not responding")
    node.boot()
    cluster.until(lambda: cluster.state(NAME).flags == {"IDLE"})
    assert cluster.job(words).split() == ["0,1", "2"]


def test_a_change_waits_for_jobs_and_returns_the_node(cluster: Cluster, tmp_path: Path) -> None:
    change_waits(cluster, tmp_path, NAME)


def test_a_foreign_reservation_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    reserved(cluster, tmp_path, NAME)


@pytest.mark.parametrize("returns", [2, 0])
def test_a_node_that_a_change_reboots_is_in_service_again(
    cluster: Cluster, tmp_path: Path, returns: int
) -> None:
    reboots(cluster, tmp_path, NAME, returns)


def test_a_drain_for_a_wrong_count_is_explained_and_stays(cluster: Cluster) -> None:
    drained_by_slurm(cluster, NAME)


def test_slurmd_that_ended_without_a_device_node_comes_back(cluster: Cluster) -> None:
    """Debian's slurmd ends for good then; with the drop-in it does not."""
    node = cluster.lab.node("gpu1")
    # Earlier restarts do not count.
    node.run("systemctl reset-failed slurmd")
    node.run("mv /dev/nvidia7 /dev/away; systemctl restart --no-block slurmd")
    query = 'test "$(systemctl show -P NRestarts slurmd)" -gt 0'
    cluster.until(lambda: node.run(query, check=False).returncode == 0)
    # 22.05 writes the reason to a terminal, a pipe or a file, but not to the journal's socket.
    unlogged = " 22.05." in cluster.slurm.version()
    command = "slurmd -G 2>&1" if unlogged else "journalctl --no-pager -u slurmd"
    shown = node.run(command, check=False).stdout
    assert "can't stat gres.conf file /dev/nvidia7" in shown
    node.run("mv /dev/away /dev/nvidia7")
    cluster.until(lambda: node.run("systemctl is-active slurmd", check=False).returncode == 0)
    cluster.until(lambda: cluster.state(NAME).flags == {"IDLE"})
    words = f"-w {NAME} --gres=gpu:8 sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    assert cluster.job(words).strip() == "0,1,2,3,4,5,6,7"
