"""A board of the B200 generation and a tray of a rack, as booted nodes: applied, damaged, repaired, removed.

Simulated: the boards, NVML, the kernel modules, and NVIDIA's Fabric Manager, nvlsm and IMEX (on Ubuntu with the names and
revisions of NVIDIA's repository for it: its archive has no nvlsm). Real: systemd, ssh, apt, dpkg, and everything
gpustate does. Boards with NVSwitches on PCI are in the tests of the driver's stack.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from labnodes import also_on_ubuntu, family, install_extra_modules

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "fabric-manager": ("simulated node", "debian12", "ubuntu"),
    "nvlsm": ("simulated node", "debian12", "ubuntu"),
    "imex": ("simulated node", "debian12", "ubuntu"),
}

UNIT = "nvidia-fabricmanager"
FABRIC = ("nvlsm", "fabric-manager", "imex")
POLICY = """
from gpustate import Policy
from gpustate.registry import get

fabric = (
    get("nvlsm")(),
    get("fabric-manager")(config={{"LOG_LEVEL": 3}}, timeout_s=60),
    get("imex")(nodes={nodes!r}, timeout_s=30),
)
base = (get("nouveau")(), get("driver-repository")(), get("driver")(version="580.65.06"))
policy = Policy({base} *fabric)
"""
BOARD = "nvidia-fabricmanager=580.65.06-1 nvlsm=2025.10.11-1"


@pytest.fixture(scope="module")
def lab(lab_factory: Callable[[LabSpec], Lab], image: str) -> Lab:
    return lab_factory(LabSpec.parse(nodes=2, image=image, gpus="8xB200,4xGB200"))


def gpustate(verb: str, lab: Lab, folder: Path, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run a verb on both nodes; state by name of each, by node."""
    nodes = ["10.99.0.9", lab.node("gpu2").address]
    policy = folder / "policy.py"
    base = "" if verb == "remove" else "*base,"
    policy.write_text(POLICY.format(nodes=nodes, base=base))
    words = [verb, policy, "-i", lab.inventory, "-o", "json"]
    words += [] if verb == "drift" else ["--yes"]
    return {
        node["name"]: {state["state"]: state for state in node["states"]}
        for node in commands.gpustate(*words, code=code, timeout=600).document["nodes"]
    }


def outcomes(found: dict[str, dict[str, Any]], node: str) -> dict[str, str]:
    return {name: found[node][name]["outcome"] for name in FABRIC}


def said(node: Node, command: str) -> str:
    return node.run(command, check=False).stdout.strip()


def installed(node: Node) -> set[str]:
    names = "nvlsm nvidia-fabricmanager nvidia-imex"
    shown = said(
        node, f"dpkg-query -W -f '${{Package}}=${{Version}} ${{db:Status-Abbrev}}\\n' {names}"
    )
    return {line.split()[0] for line in shown.splitlines() if line.split()[1][1] == "i"}


def started(node: Node, unit: str) -> str:
    return said(node, f"systemctl show -P ActiveEnterTimestampMonotonic {unit}")


def fabric_of(node: Node) -> set[str]:
    query = "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader"
    return set(said(node, query).splitlines())


@also_on_ubuntu("debian12")
def test_each_gets_what_it_needs_keeps_it_and_gives_it_back(
    lab: Lab, image: str, tmp_path: Path
) -> None:
    board, tray = lab.node("gpu1"), lab.node("gpu2")
    ubuntu = family(image) == "ubuntu"
    listing = "find /etc /usr/share/nvidia /opt -newer /etc/machine-id -type f 2>/dev/null | sort"
    found = gpustate("apply", lab, tmp_path, 5 if ubuntu else 0)
    if ubuntu:
        assert "on Ubuntu linux-modules-extra of this kernel" in str(found["gpu1"]["nvlsm"])
        install_extra_modules(board)
        found["gpu1"] = gpustate("apply", lab, tmp_path)["gpu1"]
    changed, same = "changed", "unchanged"
    assert outcomes(found, "gpu1") == {"nvlsm": changed, "fabric-manager": changed, "imex": same}
    assert outcomes(found, "gpu2") == {"nvlsm": same, "fabric-manager": same, "imex": changed}
    assert installed(board) == set(BOARD.split())
    assert installed(tray) == {"nvidia-imex=580.65.06-1"}
    assert fabric_of(board) == fabric_of(tray) == {"Completed, Success"}
    # The subnet manager has a port that takes one, and came first.
    pids = said(board, f"cat /run/{UNIT}/nvlsm.pid /run/{UNIT}/nv-fabricmanager.pid").split()
    assert int(pids[0]) < int(pids[1])
    assert "-g 0xcc40f3030027f62f" in said(board, f"tr '\\0' ' ' </proc/{pids[0]}/cmdline")
    config = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
    assert said(board, f"grep -c . {config}; grep LOG_LEVEL {config}") == "23\nLOG_LEVEL=3"
    assert said(tray, "nvidia-imex-ctl -q; cat /etc/nvidia-imex/nodes_config.cfg").split() == [
        *("READY", "10.99.0.9", tray.address)
    ]

    before = started(board, UNIT), started(tray, "nvidia-imex"), said(board, listing)
    again = gpustate("apply", lab, tmp_path)
    assert {state["outcome"] for node in again.values() for state in node.values()} == {same}
    assert (started(board, UNIT), started(tray, "nvidia-imex"), said(board, listing)) == before

    board.run(f"kill -9 $(cat /run/{UNIT}/nvlsm.pid); rmmod ib_umad; rm /etc/modules-load.d/gpustate-nvlsm.conf")  # fmt: skip
    tray.run("echo 10.99.0.1 >/etc/nvidia-imex/nodes_config.cfg; systemctl disable --now nvidia-imex; apt-mark unhold nvidia-imex")  # fmt: skip
    assert fabric_of(board) == {"In Progress, [N/A]"}
    drifted = gpustate("drift", lab, tmp_path, 2)
    told = outcomes(drifted, "gpu1")
    assert (told["nvlsm"], told["fabric-manager"]) == ("would change", "known after")
    gpustate("apply", lab, tmp_path)
    assert fabric_of(board) == {"Completed, Success"}
    assert said(tray, "nvidia-imex-ctl -q; systemctl is-enabled nvidia-imex") == "READY\nenabled"

    gpustate("remove", lab, tmp_path)
    assert installed(board) == installed(tray) == set()
    left = said(board, "ls /etc/modules-load.d/gpustate-nvlsm.conf /usr/share/nvidia /opt/nvidia")
    assert left == ""
    assert said(tray, "ls -A /etc/nvidia-imex") == ""
    assert said(board, "systemctl is-enabled nvidia-fabricmanager") in ("not-found", "")
