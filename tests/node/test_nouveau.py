"""nouveau on real nodes: a real initramfs, a real boot, a simulated module.

Looked at with the distribution's own tools (lsinitramfs, lsmod's file, stat), not with the probe.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import commands

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"nouveau": ("simulated node", "debian12", "debian13")}

FILES = ("/etc/modprobe.d/gpustate-nouveau.conf", "/etc/initramfs-tools/hooks/gpustate-nouveau")
POLICY = """
from gpustate import Policy
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.preflight import PreflightPassed

policy = Policy(PreflightPassed(gpus="8xH100"), NouveauBlacklisted())
"""


def gpustate(verb: str, policy: Path, lab: Lab, node: Node, *more: str) -> dict[str, Any]:
    """Run a verb on one node and return its JSON document; a failure is the test's."""
    target = ["-i", lab.inventory, "-l", node.name, "-o", "json", *more]
    ran = commands.gpustate(verb, policy, *target)
    assert ran.code in (0, 5), ran.out + ran.err
    return ran.document


def images_with_nouveau(node: Node) -> int:
    listing = node.run("for i in /boot/initrd.img-*; do lsinitramfs $i; done").stdout
    return sum("/nouveau.ko" in line for line in listing.splitlines())


def loaded(node: Node) -> bool:
    return "nouveau " in node.run("cat /run/gpustate-lab/proc/modules").stdout


def asked_for_in_initramfs(node: Node) -> None:
    """Nouveau is named for the initramfs, built into every image, and loaded by the boot."""
    node.run("echo nouveau >>/etc/initramfs-tools/modules && update-initramfs -u -k all")
    node.fault("nouveau-initramfs", on=True)
    node.reboot()
    assert images_with_nouveau(node) == 2
    assert loaded(node)


def test_nouveau_leaves_every_initramfs_and_does_not_come_back(
    lab: Lab, node12: Node, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY)
    asked_for_in_initramfs(node12)
    boot = node12.boot_id()

    gpustate("apply", policy, lab, node12, "--yes")
    assert images_with_nouveau(node12) == 0
    assert not loaded(node12)
    assert node12.boot_id() == boot, "a module that nothing uses needs no reboot"

    before = node12.run("stat -c '%n %y' /boot/* " + " ".join(FILES)).stdout
    again = gpustate("apply", policy, lab, node12, "--yes")
    assert " changed=0 " in again["summary"]
    assert node12.run("stat -c '%n %y' /boot/* " + " ".join(FILES)).stdout == before

    node12.reboot()
    assert not loaded(node12)

    gpustate("remove", policy, lab, node12, "--yes")
    assert images_with_nouveau(node12) == 2
    assert node12.run(f"ls {' '.join(FILES)}", check=False).stdout == ""
    assert node12.run("find /etc -name '*gpustate-nouveau*'").stdout == ""


def test_nouveau_in_use_is_gone_after_a_reboot(lab: Lab, node13: Node, tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY)
    node13.fault("nouveau-stuck", on=True)
    node13.reboot()
    assert loaded(node13)
    boot = node13.boot_id()

    held_back = gpustate("apply", policy, lab, node13, "--yes", "--max-disruption", "drain")
    assert " refused=1 " in held_back["summary"]
    assert node13.boot_id() == boot
    assert loaded(node13)

    gpustate("apply", policy, lab, node13, "--yes")
    assert node13.boot_id() != boot
    assert not loaded(node13)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    lab: Lab, node12: Node, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY.replace("8xH100", "4xA100"))
    document = gpustate("apply", policy, lab, node12, "--yes")
    assert "8xH100" in json.dumps(document)
    assert node12.run("find /etc -name '*gpustate-nouveau*'").stdout == ""
