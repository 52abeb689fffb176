"""The lab itself: nodes that behave like machines, and nothing left when they are gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labtraces import traces

from gpustate.errors import LabError
from gpustate_lab import api
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long


def ssh(node: Node, command: str, user: str = "root") -> str:
    return subprocess.run(
        [*node.ssh_args(user), command], capture_output=True, text=True, check=True, timeout=30
    ).stdout


def test_each_user_logs_in_over_ssh_with_the_host_key_checked(lab: Lab) -> None:
    for node in lab.nodes:
        assert ssh(node, "hostname; id -un").split() == [node.name, "root"]
        assert ssh(node, "sudo -n id -un", "op").strip() == "root"
        assert ssh(node, "sudo -n true || echo refused", "oppw").strip() == "refused"
        with_password = "echo gpustate-lab | sudo -S -p '' id -un"
        assert ssh(node, with_password, "oppw").strip() == "root"


def test_each_node_runs_its_own_distribution_with_nothing_failed(fresh_lab: Lab) -> None:
    versions = {
        node.name: ssh(
            node,
            ". /etc/os-release; echo $VERSION_ID; timeout 60 systemctl is-system-running --wait",
        )
        for node in fresh_lab.nodes
    }
    assert versions == {"gpu1": "12\nrunning\n", "gpu2": "13\nrunning\n"}


def test_a_reboot_brings_a_new_boot_id_and_keeps_address_and_disk(node13: Node) -> None:
    before = ssh(node13, "cat /proc/sys/kernel/random/boot_id; echo kept > /root/kept; > /run/lost")
    node13.reboot()
    after = ssh(node13, "cat /proc/sys/kernel/random/boot_id; cat /root/kept; ls /run/lost || true")
    assert before.strip() != after.split()[0]
    assert after.split()[1:] == ["kept"]


def test_power_loss_ends_every_process_and_boot_brings_the_node_back(node12: Node) -> None:
    leader = node12.leader()
    before = node12.boot_id()
    assert node12.kill()
    assert not Path(f"/proc/{leader}").exists() or "Z" in Path(f"/proc/{leader}/stat").read_text()
    with pytest.raises(LabError, match="gpu1: the node is off"):
        node12.run("true")
    node12.boot()
    assert node12.boot_id() != before
    assert ssh(node12, "echo back").strip() == "back"


def test_a_node_that_powers_itself_off_stays_off(node12: Node) -> None:
    node12.run("systemctl poweroff", check=False)
    deadline = time.monotonic() + 30
    while node12.running:
        assert time.monotonic() < deadline, node12.logs()[-2000:]
        time.sleep(0.05)
    node12.boot()
    assert node12.running


def test_a_reset_brings_back_the_first_disk_and_clears_faults(node12: Node) -> None:
    listing = "find /etc -xdev -type f ! -name machine-id | sort | xargs sha256sum"
    first = node12.run(listing).stdout
    node12.run("rm /etc/hostname; echo x > /etc/new; echo y >> /etc/fstab")
    node12.fault("cuda-802", on=True)
    assert node12.run(listing).stdout != first
    node12.reset()
    assert node12.run(listing).stdout == first
    assert node12.faults == ()


def test_nodes_reach_the_lab_and_nothing_else(lab: Lab) -> None:
    for node in lab.nodes:
        routes = node.run("ip -4 route").stdout.splitlines()
        assert [line.split()[0] for line in routes] == [str(lab.network.subnet)]
        listed = node.run("cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true")
        lines = [line for line in listed.stdout.splitlines() if line.startswith("deb")]
        assert all(lab.repository_url in line for line in lines)


def test_apt_update_works_against_the_lab_alone(node12: Node, node13: Node) -> None:
    for node in (node12, node13):
        node.run("apt-get -q -o APT::Update::Error-Mode=any update")


def test_up_again_says_so_and_changes_nothing(lab: Lab) -> None:
    boots = [node.boot_id() for node in lab.nodes]
    said: list[str] = []
    again = api.up(lab.spec, said.append)
    assert [line for line in said if "is already running" in line]
    assert [node.boot_id() for node in again.nodes] == boots


def test_up_with_other_nodes_under_the_same_name_is_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"exists with other options .*; gpustate lab down "):
        api.up(LabSpec(name=lab.name, nodes=3))


def test_list_names_the_inventory_that_ansible_and_gpustate_read(lab: Lab) -> None:
    listed = subprocess.run(
        [
            Path(sys.executable).with_name("gpustate"),
            "lab",
            "list",
            "--name",
            lab.name,
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(listed.stdout)
    assert document["format"] == "gpustate.lab/1"
    assert document["inventory"] == document["labs"][0]["inventory"] == str(lab.inventory)

    from gpustate import inventory

    nodes = inventory.load(str(lab.inventory)).nodes
    assert [(node.name, node.connection.host) for node in nodes] == [
        (node.name, node.address) for node in lab.nodes
    ]


def test_down_leaves_nothing(lab_factory: Callable[[LabSpec], Lab], lab: Lab) -> None:
    other = lab_factory(LabSpec(nodes=1, gpus=("1xT4",)))
    assert other.network.subnet != lab.network.subnet
    assert traces(other)
    removed = api.down(other.name)
    assert traces(other) == []
    assert f"bridge {other.network.bridge}" in removed
    assert api.down(other.name) == []
    assert lab.running


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 0.7])
def test_down_leaves_nothing_of_an_up_that_was_killed(lab: Lab, delay_s: float) -> None:
    name = f"pytest-killed-{os.getpid()}"
    program = (
        "from gpustate_lab import api; from gpustate_lab.spec import LabSpec;"
        f"api.up(LabSpec(name={name!r}, nodes=2, images=('debian12',), gpus=('none',)))"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    record = lab.directory.with_name(name) / "lab.json"
    deadline = time.monotonic() + 30
    while not record.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    half_made = api.find(name)
    api.down(name)
    assert traces(half_made) == []


def test_up_comes_back_with_the_same_disks_when_only_files_are_left(
    lab_factory: Callable[[LabSpec], Lab],
) -> None:
    made = lab_factory(LabSpec(nodes=1, gpus=("none",)))
    node = made.nodes[0]
    node.run("echo kept > /root/kept; sync")
    # As after a reboot of the controller: no process, mount, namespace or bridge.
    node.kill()
    subprocess.run(["umount", node.root], check=True)
    subprocess.run(["ip", "netns", "delete", made.network.namespace(node.name)], check=True)
    subprocess.run(["ip", "link", "delete", made.network.bridge], check=True)
    again = api.up(made.spec)
    assert again.nodes[0].run("cat /root/kept").stdout == "kept\n"
    assert ssh(again.nodes[0], "echo here").strip() == "here"


def test_a_fault_reaches_the_running_node_and_can_be_taken_back(node13: Node) -> None:
    path = "/etc/gpustate-lab/hardware.json"
    whole = node13.run(["cat", path]).stdout
    node13.fault("gpu-off-bus:3", on=True)
    assert node13.faults == ("gpu-off-bus:3",)
    assert node13.run(["cat", path]).stdout != whole
    node13.fault("gpu-off-bus:3", on=False)
    assert node13.run(["cat", path]).stdout == whole
    with pytest.raises(LabError, match="gpu-off-bus:8"):
        node13.fault("gpu-off-bus:8", on=True)
    assert node13.faults == ()


def test_the_simulated_gpus_stand_where_the_inventory_says(node12: Node) -> None:
    count = "grep -lx 0x10de /run/gpustate-lab/sys/bus/pci/devices/*/vendor | wc -l"
    gpus = "grep -l '^0x0302' /run/gpustate-lab/sys/bus/pci/devices/*/class | wc -l"
    assert int(ssh(node12, gpus)) == 8
    assert int(ssh(node12, count)) > 8  # the NVSwitches of the board
