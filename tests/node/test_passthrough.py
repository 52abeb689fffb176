"""VFIO and vGPU guest licensing on a real node: real systemd, sh and files.

Simulated: sysfs of PCI with its drivers and IOMMU groups; stand-ins, below: update-grub, nvidia-gridd and the
licence in nvidia-smi -q. Looked at with the node's files, not with the probes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import standins
from commands import Ran, gpustate
from gridd_standin import CONF, GRIDD, GRIDD_UNIT, SMI
from labnodes import LabFactory, also_on_ubuntu

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "kata": ("simulated node", "debian13", "ubuntu"),
    "vfio": ("simulated node", "debian13", "ubuntu"),
    "vgpu-guest": ("simulated node", "debian13", "ubuntu"),
}

POLICY = """
from gpustate import Policy, registry

policy = Policy(registry.get({name!r})(**{parameters!r}))
"""
GRUB = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n'
UPDATE_GRUB = """#!/bin/sh
# Stands for update-grub: reads the defaults and the drop-ins as Debian's does, and writes one entry.
set -e
. /etc/default/grub
for f in /etc/default/grub.d/*.cfg; do [ -e "$f" ] && . "$f"; done
mkdir -p /boot/grub
printf "menuentry 'Debian' {\\n\\tlinux\\t/boot/vmlinuz-%s root=/dev/vda1 ro %s %s\\n}\\n" "$(uname -r)" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT" >/boot/grub/grub.cfg
"""
SECRET = "eyJhbGciOiJSUzI1NiJ9.a-token-nobody-may-see.c2lnbmF0dXJl"


class Site:
    """One node, and a policy of one state."""

    def __init__(self, lab: Lab, folder: Path, name: str) -> None:
        self.lab, self.node, self.folder, self.name = lab, lab.nodes[0], folder, name
        self.said: list[str] = []

    def run(self, verb: str, code: int = 0, /, **parameters: Any) -> dict[str, Any]:
        policy = self.folder / "policy.py"
        policy.write_text(POLICY.format(name=self.name, parameters=parameters))
        words = ["--yes"] if verb in ("apply", "remove") else []
        ran: Ran = gpustate(
            verb, policy, "-i", self.lab.inventory, *words, "-o", "json", code=code, timeout=600
        )
        self.said += [ran.out, ran.err]
        row: dict[str, Any] = ran.document["nodes"][0]["states"][0]
        return row

    def tell(self, command: str) -> str:
        return self.node.run(command, timeout_s=120).stdout.strip()

    def disk(self) -> str:
        return self.tell(
            "find /etc /usr/local -type f ! -path '*/ssh/*' -printf '%p %m %U:%G ' -exec sha256sum {} \\; | sort"
        )

    def drivers(self) -> dict[str, str]:
        listing = self.tell(
            'for d in /sys/bus/pci/devices/*; do r=$(readlink $d/driver); echo "${d##*/} ${r##*/}"; done'
        )
        return {line.partition(" ")[0]: line.partition(" ")[2] for line in listing.splitlines()}


@pytest.fixture(scope="module")
def small(lab_factory: LabFactory, image: str) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=(image,), gpus=("2xH100",)))


@pytest.fixture
def fresh(small: Lab) -> Node:
    node = small.nodes[0]
    node.reset()
    return node


@also_on_ubuntu("debian13")
def test_a_gpu_is_handed_over_at_boot_and_comes_back(
    small: Lab, fresh: Node, tmp_path: Path
) -> None:
    site = Site(small, tmp_path, "vfio")
    cpu = "intel" if "GenuineIntel" in site.tell("grep -m1 vendor_id /proc/cpuinfo") else "amd"
    first, second = (a for a in site.drivers() if a.endswith(":00.0") and a != "0000:00:00.0")
    refused = site.run("apply", 5, devices=(first,))
    assert "no update-grub" in json.dumps(refused)
    standins.write(fresh, "/etc/default/grub", GRUB)
    standins.write(fresh, "/usr/sbin/update-grub", UPDATE_GRUB, 0o755)
    site.tell("update-grub")
    before, menu = site.disk(), site.tell("cat /boot/grub/grub.cfg")
    boot = fresh.boot_id()

    assert site.run("apply", devices=(first,))["outcome"] == "changed"
    assert fresh.boot_id() != boot
    assert site.drivers()[first] == "vfio-pci"
    assert site.drivers()[second] == ""
    assert f"{cpu}_iommu=on" in site.tell("cat /run/gpustate-lab/proc/cmdline")
    assert site.tell("systemctl is-enabled gpustate-vfio.service") == "enabled"
    assert site.run("apply", devices=(first,))["outcome"] == "unchanged"

    fresh.reboot()
    assert site.drivers()[first] == "vfio-pci"
    # Somebody restores it by hand, and the menu loses the arguments.
    site.tell(
        f"echo {first} >/sys/bus/pci/drivers/vfio-pci/unbind; sleep 1; sed -i 's/iommu=pt//' /boot/grub/grub.cfg"
    )
    assert site.drivers()[first] == ""
    assert site.run("apply", devices=(first,))["outcome"] == "changed"
    assert site.drivers()[first] == "vfio-pci"
    assert "iommu=pt" in site.tell("cat /boot/grub/grub.cfg")

    assert site.run("remove", devices=(first,))["outcome"] == "changed"
    assert site.drivers()[first] == ""
    assert site.disk() == before
    assert site.tell("cat /boot/grub/grub.cfg") == menu
    fresh.reboot()
    assert site.drivers()[first] == ""


@also_on_ubuntu("debian13")
def test_a_host_for_kata_gets_its_arguments_and_loses_them(
    small: Lab, fresh: Node, tmp_path: Path
) -> None:
    site = Site(small, tmp_path, "kata")
    standins.write(fresh, "/etc/default/grub", GRUB)
    standins.write(fresh, "/usr/sbin/update-grub", UPDATE_GRUB, 0o755)
    site.tell("update-grub")
    assert "/dev/kvm" in json.dumps(site.run("apply", 5, runtime="kata"))
    standins.write(fresh, "/etc/tmpfiles.d/kvm.conf", "c /dev/kvm 0660 root root - 10:232\n")
    site.tell("systemd-tmpfiles --create /etc/tmpfiles.d/kvm.conf")
    before, menu, boot = site.disk(), site.tell("cat /boot/grub/grub.cfg"), fresh.boot_id()

    assert site.run("apply", runtime="kata")["outcome"] == "changed"
    assert fresh.boot_id() != boot
    line = site.tell("cat /run/gpustate-lab/proc/cmdline")
    assert "_iommu=on modprobe.blacklist=nouveau" in line
    assert "tdx" not in line
    assert site.run("apply", runtime="kata")["outcome"] == "unchanged"

    site.tell("rm /etc/default/grub.d/gpustate-kata.cfg; update-grub")
    assert site.run("apply", runtime="kata")["outcome"] == "changed"
    assert "modprobe.blacklist=nouveau" in site.tell("cat /boot/grub/grub.cfg")

    assert site.run("remove", runtime="kata")["outcome"] == "changed"
    assert site.disk() == before
    assert site.tell("cat /boot/grub/grub.cfg") == menu


@also_on_ubuntu("debian13")
def test_a_machine_is_licensed_and_the_token_shows_nowhere(
    small: Lab, fresh: Node, tmp_path: Path
) -> None:
    site = Site(small, tmp_path, "vgpu-guest")
    token = tmp_path / "client.tok"
    token.write_text(SECRET)
    assert "nvidia-gridd is not installed" in json.dumps(
        site.run("apply", 5, token_file=str(token))
    )
    standins.write(fresh, "/usr/bin/nvidia-gridd", GRIDD, 0o755)
    standins.write(fresh, "/usr/bin/nvidia-smi", SMI, 0o755)
    standins.write(fresh, "/etc/systemd/system/nvidia-gridd.service", GRIDD_UNIT)
    standins.write(fresh, "/etc/nvidia/gridd.conf", CONF)
    site.tell("systemctl daemon-reload; systemctl enable --now nvidia-gridd")
    before = site.disk()

    wanted: dict[str, Any] = {"token_file": str(token), "server_address": "licence.example"}
    assert site.run("apply", **wanted)["outcome"] == "changed"
    conf = site.tell("cat /etc/nvidia/gridd.conf")
    assert "EnableUI=FALSE" in conf
    assert "\nFeatureType=1\n" in conf
    where = "/etc/nvidia/ClientConfigToken/client_configuration_token.tok"
    assert site.tell(f"stat -c '%a %U' {where}; cat {where}") == f"744 root\n{SECRET}"
    assert "Licensed" in site.tell("nvidia-smi -q | grep License")
    assert site.run("apply", **wanted)["outcome"] == "unchanged"

    site.tell(
        f"chmod 600 {where}; sed -i 's/^FeatureType=1/FeatureType=0/' /etc/nvidia/gridd.conf; systemctl restart nvidia-gridd"
    )
    assert site.run("apply", **wanted)["outcome"] == "changed"
    assert site.tell(f"stat -c %a {where}") == "744"
    assert site.run("drift", **wanted)["outcome"] == "unchanged"

    journals = site.tell(
        "cat /var/lib/gpustate/runs/*/journal /var/lib/gpustate/runs/*/out.* 2>/dev/null; journalctl --no-pager -o cat"
    )
    for text in (*site.said, journals):
        assert SECRET not in text

    assert site.run("remove", **wanted)["outcome"] == "changed"
    assert site.disk() == before
