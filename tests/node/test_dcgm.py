"""DCGM and the health of GPUs on a real node: real systemd, apt, sockets and HTTP over a real run by ssh.

Simulated are the driver, NVIDIA's packages, the host engine, the exporter (it serves the real text format
from the stub NVML) and the kernel log. Looked at with dpkg, systemctl, ss and an HTTP request.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import commands
import pytest
import shares
from labnodes import also_on_ubuntu

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "dcgm": ("simulated node", "debian12", "ubuntu"),
    "dcgm-exporter": ("simulated node", "debian12", "ubuntu"),
    "quarantine": ("simulated node", "debian13", "ubuntu"),
    "gpu-labels": ("simulated node", "debian13", "ubuntu"),
}

POLICY = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy({base} get("dcgm")({dcgm}), get("dcgm-exporter")({exporter}){more})
"""
BASE = """get("preflight")(), get("nouveau")(), get("driver-repository")(), get("driver")(branch=580),
    get("persistenced")(uvm_persistence=True), get("fabric-manager")(),"""
PROOF = """, get("quarantine")(), get("gpu-labels")(), get("validator")(containers="none")"""
METRICS = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:{}/metrics\").read().decode())'"


class Site:
    """gpustate from the outside, against one node."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        self.target = ["-i", str(lab.inventory), "-l", node.name]
        self.policy = folder / "policy.py"
        self.say()

    def say(self, *, dcgm: str = "", exporter: str = "", base: str = BASE, more: str = "") -> None:
        """Write the policy."""
        text = POLICY.format(base=base, dcgm=dcgm, exporter=exporter, more=more)
        self.policy.write_text(text)

    def run(self, *words: str, code: int = 0) -> commands.Ran:
        """Run a command line."""
        return commands.gpustate(*words, *self.target, code=code, timeout=500)

    def on_policy(self, verb: str, *, code: int = 0) -> dict[str, Any]:
        """Run a verb on the policy; what it says of the node."""
        yes = [] if verb in ("drift", "validate") else ["--yes"]
        done = self.run(verb, str(self.policy), *yes, "-o", "json", code=code)
        found: dict[str, Any] = done.document["nodes"][0]
        return found


def changes(found: dict[str, Any], state: str) -> set[str]:
    """Fields of a state that differ or differed."""
    mine = next(one for one in found["states"] if one["state"] == state)
    return {change["field"] for change in mine.get("changes", [])}


def unchanged(found: dict[str, Any]) -> bool:
    return all(one["outcome"] in ("unchanged", "not applicable") for one in found["states"])


@also_on_ubuntu("debian12")
def test_installed_scraped_damaged_repaired_and_taken_away(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    site = Site(home, node, tmp_path)
    old = "dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' 'datacenter-gpu-manager*' | grep ' .i'"
    files = "ls -Ad /etc/dcgm-exporter /etc/systemd/system/nvidia-dcgm* /var/lib/dcgm-exporter"
    site.on_policy("apply")
    assert node.run("systemctl is-active nvidia-dcgm nvidia-dcgm-exporter").stdout == "active\n" * 2
    assert re.search(r"127\.0\.0\.1:5555\b", node.run("ss -ltnH").stdout)
    answer = node.run(METRICS.format(9400)).stdout
    assert len(re.findall(r"^DCGM_FI_DEV_GPU_TEMP\{", answer, re.MULTILINE)) == 8
    assert node.run("apt-mark showhold").stdout.count("datacenter-gpu-manager") == 5
    assert unchanged(site.on_policy("apply"))

    # Who took the port while the exporter was down is named, before anything is started.
    node.run("systemctl stop nvidia-dcgm-exporter")
    node.run("systemd-run --quiet --unit=squat python3 -m http.server 9400")
    node.run("until ss -ltnH | grep -q :9400; do sleep 0.2; done")
    told = json.dumps(site.on_policy("apply", code=5))
    assert re.search(
        r"port 9400 is taken by pid \d+ \(python3, user root, unit squat.service\)", told
    )
    node.run("systemctl stop squat")
    assert changes(site.on_policy("apply"), "dcgm-exporter") >= {"active"}
    assert unchanged(site.on_policy("apply"))

    # Divided GPUs are told of by their instances.
    site.say(more=', get("mig")(config="all-3g.40gb")')
    site.on_policy("apply")
    answer = node.run(METRICS.format(9400)).stdout
    assert len(re.findall(r'^DCGM_FI_DEV_GPU_TEMP\{.*GPU_I_PROFILE="3g.40gb"', answer, re.M)) == 16
    assert unchanged(site.on_policy("apply"))
    site.say(more=', get("mig")()')
    site.on_policy("apply")
    assert "GPU_I_ID" not in node.run(METRICS.format(9400)).stdout
    site.say()

    # A comment costs no restart; a field that is gone does, and so does a service that is stopped.
    pid = "systemctl show -p MainPID --value nvidia-dcgm-exporter"
    before = node.run(pid).stdout
    counters = "/etc/dcgm-exporter/gpustate-counters.csv"
    node.run(f"echo '# mine' >>{counters}")
    assert changes(site.on_policy("apply"), "dcgm-exporter") == {"counters"}
    assert node.run(pid).stdout == before
    # The exporter has to be there first: one that starts pulls its host engine up again.
    wait = f"until {METRICS.format(9400)} >/dev/null 2>&1; do sleep 0.2; done"
    node.run(
        f"sed -i /POWER_USAGE/d {counters}; systemctl restart nvidia-dcgm-exporter; {wait}; "
        "systemctl stop nvidia-dcgm"
    )
    drift = site.on_policy("drift", code=2)
    assert {"active", "bound", "words"} <= changes(drift, "dcgm")
    site.on_policy("apply")
    assert "DCGM_FI_DEV_POWER_USAGE{" in node.run(METRICS.format(9400)).stdout

    site.say(
        dcgm='address="ALL", port=5566',
        exporter='engine="localhost:5566", listen="127.0.0.1:9401", job_mapping="/var/lib/dcgm-exporter/jobs"',
    )
    site.on_policy("apply")
    node.run("echo 4711 >/var/lib/dcgm-exporter/jobs/3")
    jobs = node.run(METRICS.format(9401)).stdout
    assert re.search(r'GPU_TEMP\{gpu="3",.*hpc_job="4711"\}', jobs)
    assert re.search(r"0\.0\.0\.0:5566\b", node.run("ss -ltnH").stdout)
    assert unchanged(site.on_policy("apply"))

    node.run("rm /var/lib/dcgm-exporter/jobs/3")
    site.say(base="", exporter='job_mapping="/var/lib/dcgm-exporter/jobs"')
    site.on_policy("remove")
    assert node.run(old, check=False).stdout == ""
    assert node.run(files, check=False).stdout == ""
    assert node.run("find /etc/systemd/system -xtype l ! -lname /dev/null").stdout == ""
    assert unchanged(site.on_policy("remove"))

    # DCGM 3 is named and replaced.
    node.run("apt-get install -y -q datacenter-gpu-manager && systemctl start nvidia-dcgm")
    site.say()
    assert "old" in changes(site.on_policy("apply"), "dcgm")
    assert "datacenter-gpu-manager ii" not in node.run(old).stdout
    assert unchanged(site.on_policy("apply"))


@pytest.mark.long
@pytest.mark.parametrize("image", ["debian13"], scope="module")
def test_a_reload_at_any_moment_of_an_upgrade_loses_no_dcgm(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    """systemd merges a unit with the stub of its alias at a reload, and then may forget the process that it runs."""
    site = Site(home, node, tmp_path)
    site.on_policy("apply")
    runs = "systemctl is-active nvidia-dcgm; pgrep -c nv-hostengine"
    for number in shares.share("reloads of systemd during upgrades", range(20), most=2):
        moment_s = random.Random(number).uniform(0, 25)
        reload = ["sh", "-c", f"sleep {moment_s:.1f}; systemctl daemon-reload"]
        node.run(["systemd-run", "--quiet", "--collect", f"--unit=reload-{number}", *reload])
        driver = ("595", "580")[number % 2]
        site.run("upgrade", str(site.policy), "--driver", driver, "--yes")
        assert node.run(runs).stdout.split() == ["active", "1"], f"{number}: {moment_s:.1f} s"
        node.run("systemctl daemon-reload")
        assert node.run(runs).stdout.split() == ["active", "1"], f"{number}: a later reload"


@also_on_ubuntu("debian13")
def test_an_unwell_gpu_fails_validation_and_in_quarantine_the_others_go_on(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    site = Site(home, node, tmp_path)
    site.say(more=PROOF)
    site.on_policy("apply")
    assert site.on_policy("validate")["status"] == "ok"
    site.run("health")

    for fault in ("remap-failure:3", "pcie-width:1", "xid-13:2"):
        node.fault(fault, on=True)
    broken = site.on_policy("validate", code=3)
    check = next(one for one in broken["checks"] if one["outcome"] == "failed")
    assert check["name"] == "health"
    assert "GPU 3" in check["evidence"]
    assert "replace the GPU" in check["remedy"]
    told = site.run("health", "-o", "json", code=3).document["nodes"][0]["gpus"]
    assert [gpu["state"] for gpu in told] == ["well", "warning", "well", "failed", *["well"] * 4]

    site.run("node", "quarantine", "--gpu", "3", "--for", "1d", "-m", "RMA 4711")
    features = (
        "grep -h nvidia.com/gpu.count /etc/kubernetes/node-feature-discovery/features.d/gpustate"
    )
    proven = site.on_policy("apply")
    assert "RMA 4711" in json.dumps(proven["notes"])
    assert "kernel ran on 7 devices" in json.dumps(site.on_policy("validate")["checks"])
    assert node.run(features).stdout == "nvidia.com/gpu.count=7\n"
    assert "RMA 4711" in site.run("facts").out
    site.run("health")

    # It ends by itself: the node's clock, not a command, brings the GPU back, and it has to prove itself.
    path = "/var/lib/gpustate/quarantine.json"
    node.run(f'sed -i \'s/"until": [0-9]*/"until": 1700000000/\' {path}')
    drift = site.on_policy("drift", code=2)
    assert changes(drift, "quarantine") == {"gpus"}
    assert "the quarantine has ended" in json.dumps(site.run("health", code=3).out)
    assert "the quarantine has ended" in json.dumps(site.on_policy("validate", code=3)["checks"])
    node.fault("remap-failure:3", on=False)
    site.on_policy("apply")
    assert node.run(features).stdout == "nvidia.com/gpu.count=8\n"
    assert node.run(f"ls {path}", check=False).stdout == ""
