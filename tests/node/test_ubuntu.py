"""Ubuntu: the Operator's file on a node with NVIDIA's repository, and the driver of Ubuntu's own archive.

Real: systemd, sshd, apt, dpkg, DKMS, containerd. Simulated: that the root is Ubuntu's, its archive with the names,
pockets and relations of the real one (docs/lab.md), its signatures' key, NVIDIA's packages, and the GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import Ran, gpustate
from labnodes import LabFactory, without_repositories

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: docs/states.md is made from it.
PROVES = {
    "preflight": ("simulated node", "ubuntu"),
    "nouveau": ("simulated node", "ubuntu"),
    "driver-repository": ("simulated node", "ubuntu"),
    "driver": ("simulated node", "ubuntu"),
    "fabric-manager": ("simulated node", "ubuntu"),
    "persistenced": ("simulated node", "ubuntu"),
    "dev-char": ("simulated node", "ubuntu"),
    "toolkit-repository": ("simulated node", "ubuntu"),
    "container-toolkit": ("simulated node", "ubuntu"),
    "containerd": ("simulated node", "ubuntu"),
    "cdi": ("simulated node", "ubuntu"),
    "gpu-labels": ("simulated node", "ubuntu"),
    "validator": ("simulated node", "ubuntu"),
}
POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
ARCHIVE = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.repository import DriverRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository(origin="distribution"), DriverInstalled({}), PersistenceModeEnabled()
)
"""
SIGNER = "Canonical Ltd. Kernel Module Signing"


@pytest.fixture(scope="module")
def ubuntu(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("ubuntu2404",), gpus=("8xH100",)))


@pytest.fixture
def node(ubuntu: Lab) -> Node:
    ubuntu.nodes[0].reset()
    return ubuntu.nodes[0]


def said(node: Node, command: str) -> str:
    return node.run(command, timeout_s=120).stdout.strip()


def installed(node: Node) -> dict[str, str]:
    """Version of every package of the driver, as dpkg has it."""
    listing = said(
        node,
        "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nvidia*' 2>/dev/null || :",
    )
    rows = [line.split() for line in listing.splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and "container" not in row[1]}


def module(node: Node, field: str) -> dict[str, str]:
    """What modinfo says of nvidia for each kernel in /boot."""
    script = (
        "for i in /boot/vmlinuz-*; do k=${i#/boot/vmlinuz-}; "
        f'echo "$k=$(modinfo -k $k -F {field} nvidia 2>/dev/null)"; done'
    )
    return dict(line.split("=", 1) for line in said(node, script).splitlines())


def test_a_cluster_policy_is_applied_validated_and_found_unchanged(ubuntu: Lab, node: Node) -> None:
    gpustate("apply", POLICY, "-i", ubuntu.inventory, "--yes", code=0)
    versions = installed(node)
    assert versions["nvidia-utils-580"] == "580.65.06-0ubuntu1"
    assert versions["nvidia-fabricmanager"] == "580.65.06-1"
    assert "nvidia-dkms-580-open" in versions
    assert set(module(node, "version").values()) == {"580.65.06"}
    again = gpustate("apply", POLICY, "-i", ubuntu.inventory, "--yes", code=0)
    assert "changed=0" in again.out
    gpustate("validate", POLICY, "-i", ubuntu.inventory, code=0)
    gpustate("drift", POLICY, "-i", ubuntu.inventory, code=0)
    assert "all checks passed" in gpustate("explain", "-i", ubuntu.inventory, node.name, code=0).out


class Archive:
    """The node with the driver of Ubuntu's archive."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.inventory = without_repositories(lab, folder)

    def run(self, verb: str, parameters: str, code: int = 0) -> Ran:
        path = self.folder / "policy.py"
        path.write_text(ARCHIVE.replace("{}", parameters))
        yes = ("--yes",) if verb in ("apply", "remove") else ()
        return gpustate(verb, path, "-i", self.inventory, *yes, code=code)

    def is_whole(self, version: str, *, signed: bool) -> None:
        """One matched set, held, loaded, with the modules that are wanted."""
        versions = {
            name: one for name, one in installed(self.node).items() if not name.startswith("linux-")
        }
        versions.pop("nvidia-modprobe")
        assert set(versions.values()) == {f"{version}-0ubuntu0.24.04.1"}, versions
        held = set(said(self.node, "apt-mark showhold").split())
        assert {"nvidia-utils-580-server", "nvidia-headless-no-dkms-580-server-open"} <= held
        assert set(module(self.node, "version").values()) == {version}
        assert (set(module(self.node, "signer").values()) == {SIGNER}) == signed
        assert ("nvidia-dkms-580-server-open" in versions) == (not signed)
        assert said(self.node, "cat /run/gpustate-lab/sys/module/nvidia/version") == version
        assert said(self.node, "dpkg --audit") == ""


def seen(node: Node) -> dict[str, Any]:
    """What a rollback has to restore of a driver, by the distribution's and NVIDIA's own tools."""
    return {
        "packages": installed(node),
        "holds": said(node, "apt-mark showhold | sort"),
        "built": module(node, "version"),
        "dkms": said(node, "dkms status"),
        "loaded": said(node, "cat /run/gpustate-lab/sys/module/nvidia/version"),
        "smi": said(node, "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"),
        "active": said(node, "systemctl is-active nvidia-persistenced || :"),
        "files": said(
            node,
            "find /etc -type f ! -name '*.cache' -exec sha256sum {} + | grep -E 'apt|nvidia'",
        ),
        "audit": said(node, "dpkg --audit"),
    }


@pytest.fixture
def archive(ubuntu: Lab, node: Node, tmp_path: Path) -> Archive:
    return Archive(ubuntu, node, tmp_path)


def test_signed_modules_of_the_archive_are_taken_for_every_kernel(
    ubuntu: Lab, archive: Archive
) -> None:
    archive.run("apply", "branch=580, precompiled=True")
    archive.is_whole("580.178.04", signed=True)
    assert "changed=0" in archive.run("apply", "branch=580, precompiled=True").out
    # The security pocket has a newer kernel; unattended-upgrades must leave the set alone.
    said(archive.node, "apt-get -q update; unattended-upgrade --debug")
    archive.is_whole("580.178.04", signed=True)

    archive.run("apply", "branch=580, precompiled=False")
    archive.is_whole("580.178.04", signed=False)
    archive.run("apply", "branch=580, precompiled=True")
    archive.is_whole("580.178.04", signed=True)

    gpustate("apply", POLICY, "-i", ubuntu.inventory, "--yes", code=0)
    assert installed(archive.node)["nvidia-utils-580"] == "580.65.06-0ubuntu1"
    archive.run("apply", "branch=580, precompiled=True")
    archive.is_whole("580.178.04", signed=True)

    archive.run("remove", "branch=580, precompiled=True")
    assert installed(archive.node) == {}
    held = said(archive.node, "apt-mark showhold").split()
    assert [name for name in held if "container" not in name] == []


@pytest.mark.proof
def test_the_archive_s_packages_replace_those_of_the_same_version(
    archive: Archive, ubuntu: Lab
) -> None:
    node, wanted = archive.node, "branch=580, precompiled=False"
    # A pin tells repositories apart by their hosts.
    said(
        node,
        "f=/etc/apt/sources.list.d/ubuntu.sources; h=$(sed -n 's,^URIs: http://\\([^:/]*\\).*,\\1,p' $f | head -n 1); "
        'echo "$h archive.test" >>/etc/hosts; sed -i "s,//$h,//archive.test," $f',
    )
    vendor = archive.folder / "vendor.py"
    text = ARCHIVE.replace("{}", "version='580.178.04'")
    vendor.write_text(text.replace('origin="distribution"', ""))

    gpustate("apply", vendor, "-i", ubuntu.inventory, "--yes", code=0, timeout=500)
    versions = installed(node)
    assert versions["nvidia-utils-580"].startswith("580.178.04-")
    assert not any("-0ubuntu0.24.04" in one for one in versions.values())
    archive.run("apply", wanted)
    archive.is_whole("580.178.04", signed=False)
    assert "changed=0" in archive.run("apply", wanted).out


@pytest.mark.proof
@pytest.mark.parametrize("packages", ["compute", "full"])
def test_a_rollback_restores_the_packages_for_servers_from_those_for_desktops(
    archive: Archive, ubuntu: Lab, packages: str
) -> None:
    node = archive.node
    text = ARCHIVE.replace("{}", f"branch=570, packages={packages!r}, precompiled=False")
    old, new = archive.folder / "old.py", archive.folder / "new.py"
    old.write_text(text)
    # A version that NVIDIA's repository alone has, where names are those for desktops.
    vendor = text.replace("branch=570", "version='580.65.06'")
    new.write_text(vendor.replace('origin="distribution"', ""))
    gpustate("apply", old, "-i", archive.inventory, "--yes", code=0, timeout=500)

    before = seen(node)
    assert "nvidia-utils-570-server" in before["packages"]
    assert ("nvidia-driver-570-server-open" in before["packages"]) == (packages == "full")
    # The lab's own inventory names its repository of NVIDIA's packages.
    gpustate("apply", new, "-i", ubuntu.inventory, "--yes", code=0, timeout=500)
    middle = seen(node)
    assert "nvidia-utils-580" in middle["packages"]
    assert "nvidia-utils-570-server" not in middle["packages"]
    gpustate("rollback", "-i", archive.inventory, "--yes", code=0, timeout=500)
    assert seen(node) == before


@pytest.mark.proof
@pytest.mark.parametrize(
    ("package", "more", "precompiled"),
    [
        ("nvidia-driver-580-open", "", False),
        # The simulated nvidia-persistenced needs it.
        ("nvidia-driver-580-open", "nvidia-modprobe", True),
        ("nvidia-driver-580", "", True),
    ],
)
def test_a_rollback_restores_a_driver_that_was_installed_by_hand(
    archive: Archive, package: str, more: str, precompiled: bool
) -> None:
    node = archive.node
    said(
        node,
        "apt-get -q update; h=; for i in /boot/vmlinuz-*; do p=linux-headers-${i#/boot/vmlinuz-}; "
        '[ -z "$(apt-cache madison $p)" ] || h="$h $p"; done; '
        f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q $h {package} {more}; "
        "modprobe nvidia; systemctl restart nvidia-persistenced || :",
    )
    before = seen(node)
    assert f"nvidia-dkms-{package.removeprefix('nvidia-driver-')}" in before["packages"]
    assert (before["loaded"], before["smi"]) == ("580.173.02", "580.173.02")
    assert (before["holds"], before["audit"]) == ("", "")
    assert (before["active"] == "active") == bool(more)

    archive.run("apply", f"branch=580, precompiled={precompiled}")
    archive.is_whole("580.178.04", signed=precompiled)
    done = gpustate("rollback", "-i", archive.inventory, "--yes", code=0, timeout=500)
    assert "loaded: 580.178.04 open -> 580.173.02" in done.out
    assert seen(node) == before
    again = gpustate("rollback", "-i", archive.inventory, "--yes", code=0, timeout=500)
    assert "changed=0" in again.out
