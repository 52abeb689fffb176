"""The container toolkit and CDI on a real node: real apt, dpkg and systemd, simulated packages.

Looked at with dpkg, apt-mark, systemctl and nvidia-ctk, not with the probes.
"""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import commands
import pytest
from labnodes import also_on_ubuntu

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "container-toolkit": ("simulated node", "debian12", "debian13", "ubuntu"),
    "cdi": ("simulated node", "debian12", "debian13", "ubuntu"),
}

CONFIG = "/etc/nvidia-container-runtime/config.toml"
SPEC = "/var/run/cdi/nvidia.yaml"
PACKAGES = {
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
}
MINE = """# kept by the site
disable-require   =   false  # odd spacing

[nvidia-container-cli]
root = "/run/nvidia/driver"
load-kmods = true
"""
POLICY = """
from gpustate import Policy
from gpustate.registry import get

driver = (
    get("preflight")(gpus="8xH100"),
    get("nouveau")(),
    get("driver-repository")(),
    get("driver")(branch=580),
)
toolkit = (
    get("toolkit-repository")(),
    get("container-toolkit")(version="{version}", config={{"nvidia-container-runtime.mode": "cdi"}}),
    get("cdi")(),
)
policy = Policy(*{states})
"""
HELD = """
held = get("quarantine")(gpus=[{"gpu": "@GPU@", "reason": "RMA 4711", "until": "2099-01-01"}])
policy = Policy(*driver, *toolkit, held)
"""


def gpustate(verb: str, lab: Lab, node: Node, folder: Path, version: str, code: int = 0) -> str:
    """Run a verb on one node with a policy for a toolkit version; return the summary line."""
    policy = folder / "policy.py"
    # Removed is what this file is about; the driver stays.
    states = "toolkit" if verb == "remove" else "driver, *toolkit"
    policy.write_text(POLICY.format(version=version, states=states))
    target = ["-i", lab.inventory, "-l", node.name, "-o", "json"]
    target += [] if verb == "drift" else ["--yes"]
    ran = commands.gpustate(verb, policy, *target, code=code, timeout=500)
    return str(ran.document.get("summary"))


def versions(node: Node) -> dict[str, str]:
    shape = "${Package} ${Version} ${db:Status-Status}\\n"
    # Fails where no package matches.
    rows = node.run(["dpkg-query", "-W", "-f", shape, "*nvidia-container*"], check=False)
    found = (row.split() for row in rows.stdout.splitlines())
    return {row[0]: row[1] for row in found if row[-1] == "installed"}


def held(node: Node) -> set[str]:
    return set(node.run("apt-mark showhold").stdout.split()) & PACKAGES


def devices(node: Node) -> set[str]:
    return set(node.run("nvidia-ctk cdi list 2>/dev/null").stdout.split())


def state_of(node: Node, unit: str) -> str:
    return node.run(f"systemctl is-enabled {unit} 2>/dev/null", check=False).stdout.strip()


@also_on_ubuntu("debian12")
def test_the_toolkit_and_cdi_from_nothing_through_an_upgrade_and_away_again(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    node.run(["mkdir", "-p", str(Path(CONFIG).parent)])
    node.run(["sh", "-c", f'printf %s "$1" >{CONFIG}', "-", MINE])

    # What a person has to move away is said, and keeps only what depends on it from being done.
    node.run("touch /run/cdi")
    assert " refused=1 " in gpustate("apply", home, node, tmp_path, "1.17.8", code=5)
    assert versions(node) == dict.fromkeys(PACKAGES, "1.17.8-1")
    node.run("rm /run/cdi")

    gpustate("apply", home, node, tmp_path, "1.17.8")
    assert versions(node) == dict.fromkeys(PACKAGES, "1.17.8-1")
    assert held(node) == PACKAGES
    # Values stay and comments go: the package's own script writes the whole file again.
    config = tomllib.loads(node.run(["cat", CONFIG]).stdout)
    assert config == {
        "disable-require": False,
        "nvidia-container-cli": {"load-kmods": True},
        "nvidia-container-runtime": {"mode": "cdi"},
    }
    assert {f"nvidia.com/gpu={n}" for n in (*range(8), "all")} <= devices(node)
    assert state_of(node, "gpustate-cdi-refresh.service") == "enabled"

    node.reboot()
    assert {f"nvidia.com/gpu={n}" for n in range(8)} <= devices(node), "tmpfs is empty after a boot"
    assert " changed=0 " in gpustate("apply", home, node, tmp_path, "1.17.8")

    gpustate("apply", home, node, tmp_path, "1.18.2")
    assert versions(node) == dict.fromkeys(PACKAGES, "1.18.2-1")
    assert state_of(node, "nvidia-cdi-refresh.service") == "enabled"
    assert state_of(node, "gpustate-cdi-refresh.service") in ("", "not-found")

    gpustate("remove", home, node, tmp_path, "1.18.2")
    assert versions(node) == {}
    assert node.run(["cat", CONFIG]).stdout == MINE
    assert node.run(f"ls {SPEC}", check=False).stdout == ""


@also_on_ubuntu("debian13")
def test_a_stale_specification_and_a_copy_in_etc_are_put_right(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    gpustate("apply", home, node, tmp_path, "1.18.2")
    node.run(
        f"mkdir -p /etc/cdi; cp {SPEC} /etc/cdi/nvidia.yaml; cp {SPEC} /run/good; "
        f"sed -i 's/libcuda.so.580[0-9.]*/libcuda.so.550.54.15/' {SPEC}"
    )
    stamp = "stat -c %y:%i /run/cdi/nvidia.yaml /etc/nvidia-container-runtime/config.toml"
    assert " changed=1 " in gpustate("apply", home, node, tmp_path, "1.18.2")
    assert "550.54.15" not in node.run(["cat", SPEC]).stdout
    assert node.run("ls -A /etc/cdi").stdout == ""

    before = node.run(stamp).stdout
    assert " changed=0 " in gpustate("apply", home, node, tmp_path, "1.18.2")
    assert node.run(stamp).stdout == before


@pytest.mark.long
@also_on_ubuntu("debian13")
def test_a_refresh_that_fails_with_the_former_driver_is_watched_for_afterwards(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    gpustate("apply", home, node, tmp_path, "1.18.2")
    folder = "/run/systemd/system/nvidia-cdi-refresh.service.d"
    # It reaches its limit only after the step, whether or not the machine is busy.
    slow = "[Unit]\\nStartLimitIntervalSec=900\\n[Service]\\nRestartSec=8\\nExecStartPre=/bin/false"
    node.run(
        f"mkdir -p {folder}; printf '{slow}\\n' >{folder}/fail.conf; systemctl daemon-reload; "
        f"sed -i 's/libcuda.so.580[0-9.]*/libcuda.so.550.54.15/' {SPEC}; "
        "systemctl --no-block start nvidia-cdi-refresh.service"
    )
    assert " changed=1 " in gpustate("apply", home, node, tmp_path, "1.18.2")
    time.sleep(45)
    path = "systemctl is-active nvidia-cdi-refresh.path"
    assert node.run(path, check=False).stdout.strip() == "active"
    node.run(f"rm {folder}/fail.conf; systemctl daemon-reload")
    assert " changed=0 " in gpustate("apply", home, node, tmp_path, "1.18.2")


@pytest.mark.long
@also_on_ubuntu("debian13")
def test_files_that_users_cannot_read_are_named_and_made_readable(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    gpustate("apply", home, node, tmp_path, "1.18.2")
    folder, before = SPEC.rpartition("/")[0], node.run(["cat", CONFIG]).stdout
    node.run(f"chmod 600 {CONFIG} {SPEC} /dev/nvidiactl; chmod 700 {folder}")
    found = commands.gpustate("explain", node.name, "-i", home.inventory, "-o", "json")
    warnings = str(found.node(node.name)["warnings"])
    for path in (CONFIG, SPEC, folder, "/dev/nvidiactl"):
        assert f"{path} has mode 0" in warnings
    gpustate("drift", home, node, tmp_path, "1.18.2", code=2)
    gpustate("apply", home, node, tmp_path, "1.18.2")
    modes = node.run(f"stat -L -c '%a %u:%g' {CONFIG} {SPEC} {folder}").stdout.splitlines()
    assert modes == ["644 0:0", "644 0:0", "755 0:0"]
    assert node.run(["cat", CONFIG]).stdout == before
    gpustate("drift", home, node, tmp_path, "1.18.2")


@pytest.mark.long
@also_on_ubuntu("debian13")
def test_a_toolkit_upgraded_behind_our_back_is_brought_back_into_lockstep(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    gpustate("apply", home, node, tmp_path, "1.17.8")
    node.run("apt-get install -y -q --allow-change-held-packages libnvidia-container1=1.18.2-1")
    assert len(set(versions(node).values())) == 2
    gpustate("apply", home, node, tmp_path, "1.17.8")
    assert versions(node) == dict.fromkeys(PACKAGES, "1.17.8-1")
    assert held(node) == PACKAGES


@pytest.mark.long
@also_on_ubuntu("debian13")
def test_a_gpu_in_quarantine_is_not_in_the_specification_until_its_end(
    home: Lab, node: Node, tmp_path: Path
) -> None:
    def apply(more: str) -> str:
        policy = tmp_path / "held.py"
        policy.write_text(POLICY.format(version="1.18.2", states="driver, *toolkit") + more)
        target = ["-i", home.inventory, "-l", node.name, "-o", "json", "--yes"]
        ran = commands.gpustate("apply", policy, *target, code=0, timeout=500)
        return str(ran.document["summary"])

    def missing() -> set[str]:
        return {f"nvidia.com/gpu={n}" for n in (*range(8), *uuids, "all")} - devices(node)

    apply("")
    uuids = node.run("nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.split()
    gone = {"nvidia.com/gpu=3", f"nvidia.com/gpu={uuids[3]}"}
    assert missing() == set()

    assert " changed=1 " in apply(HELD.replace("@GPU@", uuids[3]))
    assert missing() == gone
    text = node.run(["cat", SPEC]).stdout
    assert "/dev/nvidia3" not in text
    assert text.count("/dev/nvidia2") == 3, "index, UUID, all"
    assert " changed=0 " in apply(HELD.replace("@GPU@", uuids[3]))
    node.run("systemctl restart nvidia-cdi-refresh.service")
    assert missing() == gone
    node.reboot()
    assert missing() == gone
    assert " changed=0 " in apply(HELD.replace("@GPU@", uuids[3]))

    # Its end passes: the next boot counts it again, and the next apply has nothing left to write but files of ours.
    node.run('sed -i \'s/"until": [0-9]*/"until": 1000/\' /var/lib/gpustate/quarantine.json')
    node.run("systemctl restart nvidia-cdi-refresh.service")
    assert missing() == set()
    apply("")
    left = "ls -d /var/lib/gpustate/cdi /etc/systemd/system/nvidia-cdi-refresh.service.d"
    assert node.run(left, check=False).stdout == ""
    assert " changed=0 " in apply("")
