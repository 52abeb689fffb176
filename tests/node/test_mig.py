"""MIG on a real node: real systemd and a real run over ssh; the driver, its MIG and NVIDIA's packages are simulated.

Looked at with nvidia-smi, systemctl and nvidia-ctk, not with the probes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import commands
import migparted
import realgfd
from labnodes import also_on_ubuntu

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"mig": ("simulated node", "debian12", "ubuntu")}

POLICY = """
from gpustate import Policy
from gpustate.registry import get

base = (
    get("preflight")(),
    get("nouveau")(),
    get("driver-repository")(),
    get("driver")(branch=580),
    get("fabric-manager")(),
    get("persistenced")(),
    get("toolkit-repository")(),
    get("container-toolkit")(version="1.18.2"),
)
policy = Policy({states} get("mig")("all", file={file!r}), {cdi})
"""
#: The first GPU only, so that the others show what is left alone.
CONFIG = """version: v1
mig-configs:
  all:
    - devices: [0]
      mig-enabled: true
      mig-devices: {devices}
"""
#: mig-parted says nothing is there unless every GPU has an entry.
OTHERS = """    - devices: [1, 2, 3, 4, 5, 6, 7]
      mig-enabled: false
"""
#: Stands for the DCGM host engine: it has a MIG device open, and is stopped by its name.
CLIENT = """[Service]
ExecStart=/usr/bin/env CUDA_VISIBLE_DEVICES=0 /usr/bin/gpustate-lab-workload 0
"""


def gpustate(
    verb: str,
    lab: Lab,
    node: Node,
    folder: Path,
    devices: str,
    code: int = 0,
    *,
    alone: bool = False,
) -> dict[str, Any]:
    """Run a verb with a configuration; the node's part of the document."""
    config, policy = folder / "mig.yaml", folder / "policy.py"
    config.write_text(CONFIG.format(devices=devices))
    states, cdi = ("", "") if alone or verb == "remove" else ("*base,", 'get("cdi")()')
    policy.write_text(POLICY.format(states=states, cdi=cdi, file=str(config)))
    target = ["-i", lab.inventory, "-l", node.name, "-o", "json"]
    target += [] if verb == "drift" else ["--yes"]
    document = commands.gpustate(verb, policy, *target, code=code, timeout=500).document
    if verb == "apply" and code == 0:
        assert migparted.holds(node, config.read_text() + OTHERS, "all")
    return document


def places(node: Node) -> set[str]:
    """``profile at start`` of every GPU instance of the first GPU."""
    text = node.run("nvidia-smi mig -i 0 -lgi", check=False).stdout
    return {f"{m[1]} at {m[2]}" for m in re.finditer(r"MIG (\S+) +\d+ +\d+ +(\d+):", text)}


def mig_uuids(node: Node) -> set[str]:
    return set(re.findall(r"MIG-[0-9a-f-]{36}", node.run("nvidia-smi -L").stdout))


@also_on_ubuntu("debian12")
def test_divided_divided_otherwise_damaged_rebooted_and_taken_away(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    gpustate("apply", home, node, tmp_path, '{"1g.10gb": 2, "3g.40gb": 1}')
    first = places(node)
    assert len(first) == 3
    assert len(mig_uuids(node)) == 3
    assert node.run("nvidia-smi mig -i 1 -lgi", check=False).returncode == 6, "left alone"
    names = node.run("nvidia-ctk cdi list 2>/dev/null").stdout
    assert mig_uuids(node) <= set(re.findall(r"MIG-[0-9a-f-]{36}", names))
    again = gpustate("apply", home, node, tmp_path, '{"1g.10gb": 2, "3g.40gb": 1}')
    assert " changed=0 " in again["summary"]

    for strategy in ("none", "single", "mixed"):
        option = ("--mig-strategy", strategy)
        ran = commands.gpustate(
            "node", "labels", "-i", home.inventory, "-l", node.name, "-o", "json", *option, code=0
        )
        assert ran.document["nodes"][0]["labels"] == realgfd.labels(node, "=".join(option))

    capabilities_lose_their_nodes_and_get_them_back(home, node, tmp_path)

    # A job in the 3g, a known service in a 1g: the job's is kept, a 1g goes, the service is back.
    threes = next(d for d in node.run("nvidia-smi -L").stdout.splitlines() if "MIG 3g" in d)
    uuid = re.findall(r"MIG-[0-9a-f-]{36}", threes)[0]
    (node.root / "etc/systemd/system/nvidia-dcgm.service").write_text(CLIENT)
    node.run(
        f"systemctl daemon-reload; systemctl start nvidia-dcgm.service; "
        f"systemd-run -q -u job -E CUDA_VISIBLE_DEVICES={uuid} gpustate-lab-workload 0"
    )
    apps = "nvidia-smi --query-compute-apps=pid --format=csv,noheader | wc -l"
    node.run(f"timeout 60 sh -c 'until [ $({apps}) = 2 ]; do sleep 0.2; done'")
    job = node.run("systemctl show -p MainPID --value job.service").stdout.strip()
    service = "systemctl show -p MainPID --value nvidia-dcgm.service"
    before = node.run(service).stdout
    refused = gpustate("apply", home, node, tmp_path, '{"7g.80gb": 1}', code=5)
    assert f"pid {job} (gpustate-lab-wo" in json.dumps(refused)
    assert "unit job.service" in json.dumps(refused)
    assert places(node) == first
    gpustate("apply", home, node, tmp_path, '{"2g.20gb": 1, "3g.40gb": 1}')
    assert {one for one in first if one.startswith("3g")} < places(node)
    assert len(places(node)) == 2
    assert node.run("systemctl show -p MainPID --value job.service").stdout.strip() == job
    assert node.run("systemctl is-active nvidia-dcgm.service").stdout == "active\n"
    assert node.run(service).stdout != before
    node.run("systemctl stop job.service nvidia-dcgm.service")

    layout = '{"2g.20gb": 1, "3g.40gb": 1}'
    second = places(node)
    # The same devices made by another tool are the policy's, wherever that places them.
    for devices in ("{}", layout):
        text = CONFIG.format(devices=devices) + OTHERS
        assert migparted.run(node, "apply", text, "all").returncode == 0
    assert places(node) != second
    gpustate("drift", home, node, tmp_path, layout)
    node.run("nvidia-smi mig -i 0 -dci; nvidia-smi mig -i 0 -dgi")
    gpustate("drift", home, node, tmp_path, layout, code=2)
    gpustate("apply", home, node, tmp_path, layout)
    assert len(places(node)) == len(second)

    kept = places(node)
    node.reboot()
    # systemd breaks a cycle by leaving one unit out, another one at every boot.
    checked = node.run("systemd-analyze verify default.target 2>&1", check=False).stdout
    assert "cycle" not in checked
    assert node.run("systemctl is-active gpustate-mig.service").stdout == "active\n"
    assert places(node) == kept
    assert " changed=0 " in gpustate("apply", home, node, tmp_path, layout)["summary"]

    gpustate("remove", home, node, tmp_path, layout)
    modes = node.run("nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader").stdout
    assert set(modes.split()) == {"Disabled"}
    left = node.run(
        "ls -d /var/lib/gpustate/mig /etc/systemd/system/gpustate-mig.service "
        "/etc/systemd/system/*.wants/gpustate-mig.service",
        check=False,
    )
    assert left.stdout == ""


def capabilities_lose_their_nodes_and_get_them_back(lab: Lab, node: Node, folder: Path) -> None:
    """One is gone, one has the numbers of an earlier load of the module; the devices themselves stay."""

    def explained() -> dict[str, Any]:
        ran = commands.gpustate("explain", node.name, "-i", lab.inventory, "-o", "json")
        return ran.node(node.name)

    layout = '{"1g.10gb": 2, "3g.40gb": 1}'
    listed = "stat -c '%n %t:%T %a' /dev/nvidia-caps/*"
    devices, before = mig_uuids(node), node.run(listed).stdout
    node.run("nvidia-modprobe -c=0 -u")
    well = {check["name"]: check["outcome"] for check in explained()["checks"]}
    assert well["device-nodes"] == "ok", well
    files = "cd /run/gpustate-lab/proc/driver/nvidia/capabilities && grep -r DeviceFileMinor gpu0"
    rows = re.findall(r"mig/(gi\d+)/(ci0/)?access:DeviceFileMinor: (\d+)", node.run(files).stdout)
    minors = {(one, part): int(minor) for one, part, minor in rows}
    name = min(minors)[0]
    instance, compute = minors[name, ""], minors[name, "ci0/"]
    caps = "/dev/nvidia-caps/nvidia-cap"
    damage = f"rm {caps}{instance} {caps}{compute}; mknod -m 444 {caps}{compute} c 511 {compute}"
    node.run(damage)

    told = explained()
    assert told["cause"] == "mig-capability-without-node", str(told)
    assert f"nvidia-cap{instance} is missing (gpu0/mig/{name})" in str(told["checks"])
    assert f"nvidia-cap{compute} is 511:{compute} instead of" in str(told["checks"])
    # The driver makes them; where somebody else looks after it, the state mig does.
    for alone in (False, True):
        node.run(damage if alone else ":")
        drift = gpustate("drift", lab, node, folder, layout, code=2, alone=alone)
        changed = {
            state["state"]: {change["field"] for change in state["changes"]}
            for state in drift["nodes"][0]["states"]
            if state.get("changes")
        }
        assert changed == {"mig" if alone else "driver": {"device_nodes"}}
        assert f"{caps}{compute} is 511:{compute}, not " in json.dumps(drift)
        gpustate("apply", lab, node, folder, layout, alone=alone)
        assert node.run(listed).stdout == before
    assert mig_uuids(node) == devices
    assert " changed=0 " in gpustate("apply", lab, node, folder, layout)["summary"]
