"""What a change of a node means to a lab's Slurm cluster: holds, foreign ones too, jobs, reboots, Slurm's own drains."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from changedstate import write_policy
from commands import gpustate
from slurmjobs import APPLIED, Cluster

#: Slurm's own words.
TOO_FEW = "gres/gpu count reported lower than configured ({} < 8)"


def change_waits(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Change the driver of gpu1 under a foreign drain, without access, under a job and at a limit.

    Args:
        cluster: its driver is the one of the first policy.
        tmp_path: for policies.
        name: Slurm's name of the node.
    """
    other = tmp_path / "policy.py"
    other.write_text(APPLIED.replace("580.65.06", "595.91.07"))
    node, words = cluster.lab.node("gpu1"), ("-i", cluster.lab.inventory, "-l", "gpu1", "--yes")

    def version() -> str:
        query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1"
        return node.run(query, check=False).stdout.strip()

    cluster.slurm.scontrol("update", f"nodename={name}", "state=drain", "reason=disk swap")
    refused = gpustate("apply", other, *words, code=5)
    assert f"{name} is out of service: drained by root since" in refused.out
    assert cluster.state(name).reason == "disk swap"
    shown = gpustate("status", "-i", cluster.lab.inventory, "-o", "json", code=0)
    assert [row["name"] for row in shown.document["members"]] == [name]
    assert shown.document["members"][0]["foreign"][0].startswith("drained by root since")
    cluster.resume()
    unnamed = tmp_path / "inventory.yml"
    lines = cluster.lab.inventory.read_text().splitlines(keepends=True)
    unnamed.write_text("".join(line for line in lines if "gpustate_slurm_host" not in line))
    without = gpustate("apply", other, "-i", unnamed, "-l", "gpu1", "--yes", code=5)
    assert "slurmd runs on this node" in without.out
    assert version() == "580.65.06"

    cluster.submit(f"-w {name} --gres=gpu:8 --wrap 'sleep 600'")
    cluster.until(lambda: cluster.state(name).flags == {"MIXED"})
    seen: list[tuple[set[str], str, str]] = []
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(gpustate, "apply", other, *words, "--reason", "CHG-7", code=0)
        while not applied.done():
            state = cluster.state(name)
            seen.append((set(state.flags), state.reason, version()))
            if [row[0] for row in seen[-4:]] == [{"MIXED", "DRAIN"}] * 4:
                cluster.head("scancel --user=op")
            time.sleep(1)
    applied.result()
    draining = [row for row in seen if row[0] == {"MIXED", "DRAIN"}]
    assert draining, seen
    assert all(re.fullmatch(r"gpustate:\S+: CHG-7 \(held\) by \S+", r[1]) for r in draining), seen
    assert all(row[2] == "580.65.06" for row in draining), "nothing changes under a job"
    assert version() == "595.91.07"
    cluster.until(lambda: cluster.state(name).flags == {"IDLE"})
    assert cluster.state(name).reason in ("", "none")

    cluster.submit(f"-w {name} --gres=gpu:2 --requeue --wrap 'sleep 600'")
    cluster.submit(f"-w {name} --gres=gpu:2 --no-requeue --job-name=fixed --wrap 'sleep 600'")
    cluster.until(lambda: cluster.head("squeue -h -t R -o %T").stdout.split() == ["RUNNING"] * 2)
    limit = (*words, "--set", "drain.timeout_s=3")
    planned = gpustate("plan", cluster.policy, *limit[:-3], *limit[-2:], code=0)
    assert re.search(r"job \d+ of op \(is waited for, requeued after 3 s\)", planned.out), (
        planned.out
    )
    assert "3 s at most; otherwise it cannot leave: it cannot be requeued: Requeue=0" in planned.out
    stopped = gpustate("apply", cluster.policy, *limit, code=5)
    assert "not drained within 3 s, and nothing was requeued: job" in stopped.out
    assert cluster.head("squeue -h -o %T").stdout.split() == ["RUNNING"] * 2
    cluster.head("scancel --name=fixed")
    gpustate("apply", cluster.policy, *limit, code=0)
    assert version() == "580.65.06"
    assert cluster.head("squeue -h -o %T").stdout.split() != [], "the job waits for its turn again"
    cluster.head("scancel --user=op")
    cluster.until(lambda: cluster.state(name).flags == {"IDLE"})


def reserved(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Change gpu1 under a foreign reservation; arguments as for :func:`change_waits`."""
    policy = write_policy(tmp_path, "reserved")
    words = [policy, "-i", cluster.lab.inventory, "-l", "gpu1", "--yes"]
    foreign = ("starttime=now", "duration=60", "users=root", "flags=maint,ignore_jobs")
    cluster.slurm.scontrol(
        "create", "reservation", "reservationname=cooling", *foreign, f"nodes={name}"
    )
    try:
        cluster.until(lambda: any("MAINT" in flag for flag in cluster.state(name).flags))
        refused = gpustate("apply", *words, code=5)
    finally:  # later tests use the node, too
        cluster.slurm.scontrol("delete", "reservationname=cooling")
    assert f"{name} is out of service: reserved for maintenance" in refused.out
    cluster.until(lambda: cluster.state(name).flags == {"IDLE"})


def reboots(cluster: Cluster, tmp_path: Path, name: str, returns: int) -> None:
    """A change of gpu1 that needs a reboot, with a Slurm that takes nodes back after one or does not.

    Args:
        cluster, tmp_path, name: as for :func:`change_waits`.
        returns: Slurm's ``ReturnToService``.
    """
    _set_return_to_service(cluster, returns)
    try:
        policy = write_policy(tmp_path, f"returns{returns}", reboots=True)
        node = cluster.lab.node("gpu1")
        before = node.boot_id()
        cluster.until(lambda: cluster.state(name).flags == {"IDLE"})
        words = (policy, "-i", cluster.lab.inventory, "-l", "gpu1", "--yes")
        gpustate("apply", *words, code=0, timeout=400)
        assert node.boot_id() != before
        cluster.until(lambda: cluster.state(name).flags == {"IDLE"})
        assert not cluster.state(name).reason.startswith("gpustate:")
        ran = cluster.job(f"-w {name} --gres=gpu:8 hostname")
        assert ran == "gpu1\n"
    finally:
        # With 0, a node that did not respond for 30 s stays down in every later test.
        _set_return_to_service(cluster, 2)


def _set_return_to_service(cluster: Cluster, value: int) -> None:
    edit = f"sed -i 's/^ReturnToService=.*/ReturnToService={value}/' /etc/slurm/slurm.conf"
    for machine in (cluster.slurm.head, cluster.lab.node("gpu1")):
        machine.run(edit)
    cluster.slurm.scontrol("reconfigure")


def drained_by_slurm(cluster: Cluster, name: str) -> None:
    """Slurm drains gpu1 for a GPU too few in ``gres.conf``; that is explained, put right, and left to people.

    Args:
        cluster, name: as for :func:`change_waits`.
    """
    node, inventory = cluster.lab.node("gpu1"), ("-i", cluster.lab.inventory)
    node.run("sed -i '/nvidia7/d' /etc/slurm/gres.conf; systemctl restart slurmd")
    cluster.until(lambda: "INVALID_REG" in cluster.state(name).flags)
    assert cluster.state(name).reason == TOO_FEW.format(7)
    (row,) = gpustate("status", *inventory, "-o", "json", code=0).document["members"]
    assert (row["name"], row["in_service"], row["foreign"]) == (name, False, [])
    assert re.search(rf" by slurm since \S+: {re.escape(TOO_FEW.format(7))}", row["why"])
    assert "slurmd registered with fewer GPUs than slurm.conf has" in row["why"]
    assert TOO_FEW.format(7) in gpustate("status", *inventory, code=0).out
    applied = gpustate("apply", cluster.policy, *inventory, "--yes", code=0)
    cluster.until(lambda: cluster.state(name).flags == {"IDLE", "DRAIN"})
    assert cluster.state(name).reason == TOO_FEW.format(7), "a drain that is not gpustate's stays"
    (row,) = gpustate("status", *inventory, "-o", "json", code=0).document["members"]
    resume = f"scontrol update NodeName={name} State=RESUME"
    assert re.match(rf"drained by slurm since \S+: {re.escape(TOO_FEW.format(7))}", row["why"])
    assert row["why"].endswith(f"once its cause is gone: {resume}")
    print(applied.out)
    cluster.slurm.head.run(resume)
    cluster.until(lambda: cluster.state(name).flags == {"IDLE"})
