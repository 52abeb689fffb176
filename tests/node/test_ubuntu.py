"""Ubuntu: the Operator's file on a node with NVIDIA's repository, and the driver of Ubuntu's own archive.

Real: systemd, sshd, apt, dpkg, DKMS, containerd. Simulated: that the root is Ubuntu's, its archive with the names,
pockets and relations of the real one (docs/lab.md), its signatures' key, NVIDIA's packages, and the GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import gpustate
from labnodes import LabFactory
from ubuntunodes import UbuntuNode

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "preflight": ("simulated node", "ubuntu"),
    "nouveau": ("simulated node", "ubuntu"),
    "driver-repository": ("simulated node", "ubuntu"),
    "driver": ("simulated node", "ubuntu"),
    "fabric-manager": ("simulated node", "ubuntu"),
    "persistenced": ("simulated node", "ubuntu"),
    "toolkit-repository": ("simulated node", "ubuntu"),
    "container-toolkit": ("simulated node", "ubuntu"),
    "containerd": ("simulated node", "ubuntu"),
    "cdi": ("simulated node", "ubuntu"),
    "gpu-labels": ("simulated node", "ubuntu"),
    "validator": ("simulated node", "ubuntu"),
}
POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"


@pytest.fixture(scope="module")
def ubuntu(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("ubuntu2404",), gpus=("8xH100",)))


@pytest.fixture
def node(ubuntu: Lab) -> Node:
    ubuntu.nodes[0].reset()
    return ubuntu.nodes[0]


def test_a_cluster_policy_is_applied_validated_and_found_unchanged(
    ubuntu: Lab, on: UbuntuNode
) -> None:
    gpustate("apply", POLICY, "-i", ubuntu.inventory, "--yes", code=0)
    versions = on.installed()
    assert versions["nvidia-utils-580"] == "580.65.06-0ubuntu1"
    assert versions["nvidia-fabricmanager"] == "580.65.06-1"
    assert "nvidia-dkms-580-open" in versions
    assert set(on.modules().values()) == {"580.65.06"}
    again = gpustate("apply", POLICY, "-i", ubuntu.inventory, "--yes", code=0)
    assert "changed=0" in again.out
    gpustate("validate", POLICY, "-i", ubuntu.inventory, code=0)
    gpustate("drift", POLICY, "-i", ubuntu.inventory, code=0)
    assert (
        "all checks passed" in gpustate("explain", "-i", ubuntu.inventory, on.node.name, code=0).out
    )


def seen(on: UbuntuNode) -> dict[str, Any]:
    """What a rollback has to restore of a driver, by the distribution's and NVIDIA's own tools."""
    return {
        "packages": on.installed(),
        "holds": on.said("apt-mark showhold | sort"),
        "built": on.modules(),
        "dkms": on.said("dkms status"),
        "loaded": on.said("cat /run/gpustate-lab/sys/module/nvidia/version"),
        "smi": on.said("nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"),
        "active": on.said("systemctl is-active nvidia-persistenced nvidia-fabricmanager || :"),
        "files": on.said(
            "find /etc -type f ! -name '*.cache' -exec sha256sum {} + | grep -E 'apt|nvidia'"
        ),
        "audit": on.said("dpkg --audit"),
    }


@pytest.fixture
def on(ubuntu: Lab, node: Node, tmp_path: Path) -> UbuntuNode:
    return UbuntuNode(ubuntu, node, tmp_path)


def test_signed_modules_of_the_archive_are_taken_for_every_kernel(on: UbuntuNode) -> None:
    # Open modules of the kernel's first upload, and those built again for DGX, have no objects and signatures beside them.
    for version, upload in (("580.173.02", ""), ("580.178.04", "1000")):
        on.run("apply", f"version='{version}', precompiled=True")
        on.is_whole(version, signed=True)
        built = {n: v for n, v in on.installed().items() if n.startswith("linux-")}
        assert {full.partition("+")[2] for full in built.values()} == {upload}
        assert {name.partition("-nvidia-")[0] for name in built} == {"linux-modules"}
    assert "changed=0" in on.run("apply", "branch=580, precompiled=True").out
    # The security pocket has a newer kernel; unattended-upgrades must leave the set alone.
    on.said("apt-get -q update; unattended-upgrade --debug")
    on.is_whole("580.178.04", signed=True)

    on.run("apply", "branch=580, precompiled=False")
    on.is_whole("580.178.04", signed=False)
    on.run("apply", "branch=580, precompiled=True")
    on.is_whole("580.178.04", signed=True)
    tool = on.installed()["nvidia-modprobe"]

    gpustate("apply", POLICY, "-i", on.lab.inventory, "--yes", code=0)
    assert on.installed()["nvidia-utils-580"] == "580.65.06-0ubuntu1"
    assert on.installed()["nvidia-modprobe"] != tool
    on.run("apply", "branch=580, precompiled=True")
    on.is_whole("580.178.04", signed=True)
    assert on.installed()["nvidia-modprobe"] == tool

    on.run("remove", "branch=580, precompiled=True")
    assert on.installed() == {}
    held = on.said("apt-mark showhold").split()
    assert [name for name in held if "container" not in name] == []


@pytest.mark.proof
@pytest.mark.parametrize("vendor_first", [True, False])
def test_the_packages_of_another_source_replace_those_of_the_same_version_and_come_back(
    on: UbuntuNode, vendor_first: bool
) -> None:
    wanted = "version='580.178.04', precompiled=False"
    more = ", get('fabric-manager')()"

    def is_of_its_source(vendor: bool) -> dict[str, Any]:
        there = seen(on)
        versions = there["packages"].values()
        assert any("-0ubuntu0.24.04" in one for one in versions) != vendor, versions
        assert ("nvidia-fabricmanager" in there["packages"]) == vendor
        assert ("nvidia-fabricmanager-580" in there["packages"]) != vendor
        assert set(there["built"].values()) == {there["loaded"]} == {"580.178.04"}
        assert there["audit"] == ""
        again = on.run("apply", wanted, more, vendor=vendor)
        assert "changed=0" in again.out
        return there

    on.run("apply", wanted, more, vendor=vendor_first)
    before = is_of_its_source(vendor_first)
    planned = on.run("plan", wanted, more, vendor=not vendor_first)
    assert "packages: " in planned.out, planned.out
    assert "; removed: " in planned.out, planned.out
    on.run("apply", wanted, more, vendor=not vendor_first)
    is_of_its_source(not vendor_first)
    on.rollback(vendor=vendor_first)
    assert seen(on) == before


@pytest.mark.proof
@pytest.mark.parametrize("packages", ["compute", "full"])
def test_a_rollback_restores_the_packages_for_servers_from_those_for_desktops(
    on: UbuntuNode, packages: str
) -> None:
    on.run("apply", f"branch=570, packages={packages!r}, precompiled=False")
    before = seen(on)
    assert "nvidia-utils-570-server" in before["packages"]
    assert ("nvidia-driver-570-server-open" in before["packages"]) == (packages == "full")
    # A version that NVIDIA's repository alone has, where names are those for desktops.
    wanted = f"version='580.65.06', packages={packages!r}, precompiled=False"
    on.run("apply", wanted, vendor=True)
    middle = seen(on)
    assert "nvidia-utils-580" in middle["packages"]
    assert "nvidia-utils-570-server" not in middle["packages"]
    on.rollback()
    assert seen(on) == before


@pytest.mark.proof
@pytest.mark.parametrize("precompiled", [True, False])
def test_with_nvswitches_a_driver_for_desktops_becomes_that_for_servers_and_no_kernel_comes(
    on: UbuntuNode, precompiled: bool
) -> None:
    on.said(
        "apt-get -q update; DEBIAN_FRONTEND=noninteractive apt-get install -y -q nvidia-driver-580-open; "
        "modprobe nvidia"
    )
    kernels = on.said("ls /boot/vmlinuz-*")
    wanted, more = f"precompiled={precompiled}", ", get('fabric-manager')()"
    assert "for servers replace those for desktops" in on.run("plan", wanted, more).out
    on.run("apply", wanted, more)
    on.is_whole("580.173.02", signed=precompiled)
    assert on.said("systemctl is-active nvidia-fabricmanager") == "active"
    assert on.said("ls /boot/vmlinuz-*") == kernels
    assert "changed=0" in on.run("apply", wanted, more).out
    on.rollback()
    assert "nvidia-driver-580-open" in on.installed()
    assert not [name for name in on.installed() if "-server" in name or "fabric" in name]
    assert on.said("ls /boot/vmlinuz-*") == kernels


@pytest.mark.proof
@pytest.mark.parametrize(
    ("package", "more", "precompiled"),
    [
        ("nvidia-driver-580-open", "", False),
        ("nvidia-driver-580-open", "nvidia-modprobe", True),
        ("nvidia-driver-580", "", True),
    ],
)
def test_a_rollback_restores_a_driver_that_was_installed_by_hand(
    on: UbuntuNode, package: str, more: str, precompiled: bool
) -> None:
    on.said(
        "apt-get -q update; h=; for i in /boot/vmlinuz-*; do p=linux-headers-${i#/boot/vmlinuz-}; "
        '[ -z "$(apt-cache madison $p)" ] || h="$h $p"; done; '
        f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q $h {package} {more}; "
        # One that did not run before stays off.
        f"modprobe nvidia; systemctl {'restart' if more else 'stop'} nvidia-persistenced; "
        "systemctl reset-failed nvidia-persistenced || :"
    )
    before = seen(on)
    assert f"nvidia-dkms-{package.removeprefix('nvidia-driver-')}" in before["packages"]
    assert (before["loaded"], before["smi"]) == ("580.173.02", "580.173.02")
    assert (before["holds"], before["audit"]) == ("", "")
    assert before["active"].startswith("active") == bool(more)

    on.run("apply", f"branch=580, precompiled={precompiled}")
    on.is_whole("580.178.04", signed=precompiled)
    done = on.rollback()
    assert "loaded driver: 580.178.04 open -> 580.173.02" in done.out, done.out
    assert seen(on) == before
    assert "changed=0" in on.rollback().out

    # What the first run configured is recorded now.
    on.run("apply", f"branch=580, precompiled={precompiled}")
    on.rollback()
    assert seen(on) == before
