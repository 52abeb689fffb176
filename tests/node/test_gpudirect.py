"""OFED, nvidia-peermem, GDRCopy, GPUDirect Storage and CUDA toolkits on a real node.

Real: apt, dpkg, DKMS, update-alternatives, depmod, modinfo and modprobe's list of symbols. Simulated: NVIDIA's
packages, the modules' code, and what the kernel says to a module that does not fit; on Ubuntu also the distribution, its
archive, and the names of NVIDIA's driver for it (nvidia-fs-dkms, gdrdrv-dkms, doca-ofed and cuda-toolkit have the same
names for Debian and Ubuntu). Looked at with the distribution's own tools and the node's files, not with the probes.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import gpustate
from labnodes import (
    LabFactory,
    also_on_ubuntu,
    family,
    first_ubuntu_only,
    vendor_revision,
    without_repositories,
)

from gpustate import ops
from gpustate.ops import owned_packages
from gpustate_lab import paths
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "ofed": ("simulated node", "debian13", "ubuntu"),
    "peermem": ("simulated node", "debian13", "ubuntu"),
    "gds": ("simulated node", "debian13", "ubuntu"),
    "gdrcopy": ("simulated node", "debian13", "ubuntu"),
    "cuda-toolkit": ("simulated node", "debian13", "ubuntu"),
}
on_both = also_on_ubuntu("debian13")

POLICY = """
from gpustate import Policy, registry

policy = Policy(*(registry.get(name)(**parameters) for name, parameters in {states!r}.items()))
"""
NIC = {
    "pci_address": "0000:05:00.0",
    "vendor": 0x15B3,
    "device_id": "1021",
    "subsystem_id": "0022",
    "pci_class": "020000",
}
DRIVER = "580.65.06"
#: The driver's packages by distribution, of NVIDIA's repository.
DRIVER_PACKAGES = {
    "debian": (
        *("nvidia-kernel-open-dkms", "nvidia-kernel-support", "firmware-nvidia-gsp"),
        "nvidia-modprobe",
    ),
    "ubuntu": (
        *("nvidia-dkms-580-open", "nvidia-kernel-source-580-open", "nvidia-kernel-common-580"),
        *("nvidia-firmware-580", "nvidia-modprobe"),
    ),
}
OFED = "doca-ofed mlnx-ofed-kernel-dkms ofed-scripts"


class Site:
    """One node with a network card and an open driver that apt installed, and policies for it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.node, self.folder, self.inventory = lab.nodes[0], folder, lab.inventory

    def run(
        self, verb: str, code: int = 0, /, **states: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        policy = self.folder / "policy.py"
        named = {name.replace("_", "-"): parameters for name, parameters in states.items()}
        policy.write_text(POLICY.format(states=named))
        words = ["--yes"] if verb in ("apply", "remove") else []
        ran = gpustate(
            verb, policy, "-i", self.inventory, *words, "-o", "json", code=code, timeout=900
        )
        return {row["state"]: row for row in ran.document["nodes"][0]["states"]}

    def outcomes(self, verb: str, code: int = 0, /, **states: dict[str, Any]) -> dict[str, str]:
        return {name: row["outcome"] for name, row in self.run(verb, code, **states).items()}

    def said(self, command: str, *, check: bool = True) -> str:
        return self.node.run(command, check=check, timeout_s=600).stdout.strip()

    def loaded(self) -> set[str]:
        return {
            line.split()[0] for line in self.said("cat /run/gpustate-lab/proc/modules").splitlines()
        }

    def packages(self) -> str:
        return self.said(
            "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n' | grep '^.i'"
        )


def install_driver(node: Node, image: str) -> None:
    """As a person does it; an initramfs has nothing to do with what is tested here."""
    run = lambda text: node.run(text, timeout_s=900)  # noqa: E731
    inventory = run("cat /etc/apt/sources.list.d/gpustate-lab-lab.list").stdout
    base = inventory.split("] ")[1].split("/lab/")[0]
    suite = inventory.split("/lab/")[1].split("/")[0]
    run("printf '#!/bin/sh\n' >/usr/sbin/update-initramfs")
    mirror = "/etc/apt/sources.list.d/mirror.list"
    # Debian's own sources are not here; those of Ubuntu are the lab's.
    only = (
        ""
        if family(image) == "ubuntu"
        else f"-o Dir::Etc::sourcelist={mirror} -o Dir::Etc::sourceparts=-"
    )
    run(f"echo 'deb [trusted=yes] {base}/mirror/{suite}/ /' >{mirror}; apt-get -q update {only}")
    names = DRIVER_PACKAGES[family(image)]
    run(
        "DEBIAN_FRONTEND=noninteractive apt-get -y -q install --no-install-recommends "
        + " ".join(f"{name}={DRIVER}{vendor_revision(image)}" for name in names)
    )
    add_card(node)


def add_card(node: Node) -> None:
    """Give the node a network card, which is there after a reboot."""
    path = node.root / "etc/gpustate-lab/hardware.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "nics": [NIC]}))
    node.reboot()


@pytest.fixture(scope="module")
def prepared(lab_factory: LabFactory, image: str) -> Lab:
    lab = lab_factory(LabSpec(nodes=1, images=(image,), gpus=("2xH100",)))
    install_driver(lab.nodes[0], image)
    return lab


@pytest.fixture
def site(prepared: Lab, tmp_path: Path) -> Site:
    return Site(prepared, tmp_path)


def swap_ofed(site: Site, version: str) -> None:
    """Install an OFED and let it be the one that runs, as a reboot would."""
    site.said(
        "for m in nvidia_peermem mlx5_core ib_core mlx_compat; do rmmod $m 2>/dev/null; done; :"
    )
    site.said(
        f"DEBIAN_FRONTEND=noninteractive apt-get -y -q install doca-ofed={version}-1 "
        f"mlnx-ofed-kernel-dkms={version}-1 ofed-scripts={version}-1"
    )
    site.said("modprobe mlx5_core")


@on_both
def test_peermem_follows_the_ofed_that_runs(site: Site) -> None:
    by_rule = site.run("plan", peermem={})["peermem"]
    assert "DMA-BUF" in json.dumps(by_rule)
    assert site.outcomes("apply", 5, peermem={"method": "peermem"})["peermem"] == "refused"

    swap_ofed(site, "24.10.1.1.4")
    assert "Invalid argument" in site.node.run("modprobe nvidia-peermem", check=False).stderr
    assert site.outcomes("apply", peermem={"method": "peermem"}) == {"peermem": "changed"}
    assert "nvidia_peermem" in site.loaded()
    symbols = "modprobe --dump-modversions $(modinfo -n nvidia-peermem)"
    assert "0x1a2b3c4d\tib_register_peer_memory_client" in site.said(symbols)
    assert site.outcomes("apply", peermem={"method": "peermem"}) == {"peermem": "unchanged"}

    swap_ofed(site, "25.04.0.6.0")
    drifted = site.run("drift", 2, peermem={"method": "peermem"})["peermem"]
    assert "against another one" in json.dumps(drifted)
    assert site.outcomes("apply", peermem={"method": "peermem"}) == {"peermem": "changed"}
    assert "0x0badf00d\tib_register" in site.said(symbols)
    site.node.reboot()
    site.said("modprobe mlx5_core; modprobe nvidia-peermem")
    assert site.outcomes("apply", peermem={"method": "peermem"}) == {"peermem": "unchanged"}

    assert site.outcomes("remove", peermem={"method": "peermem"}) == {"peermem": "changed"}
    assert "nvidia_peermem" not in site.loaded()
    assert site.said("find /etc -name '*gpustate-peermem*'") == ""


@on_both
def test_gdrcopy_and_gds_are_built_loaded_mended_and_taken_away(site: Site) -> None:
    before = site.packages()
    states: dict[str, Any] = {"gdrcopy": {}, "gds": {"version": "2.26.6"}}
    assert site.outcomes("apply", **states) == {"gdrcopy": "changed", "gds": "changed"}
    assert {"gdrdrv", "nvidia_fs"} <= site.loaded()
    assert site.said("cat /proc/driver/nvidia-fs/version") == "version: 2.26"
    assert site.said("stat -c '%F %a' /dev/gdrdrv") == "character special file 666"
    assert set(site.outcomes("apply", **states).values()) == {"unchanged"}

    site.said("rmmod gdrdrv nvidia_fs; rm -f $(modinfo -n nvidia-fs) $(modinfo -n gdrdrv); depmod")
    assert site.outcomes("apply", **states) == {"gdrcopy": "changed", "gds": "changed"}
    assert site.said("cat /proc/driver/nvidia-fs/version") == "version: 2.26"

    assert site.outcomes("remove", **states) == {"gdrcopy": "changed", "gds": "changed"}
    assert site.packages() == before
    assert not {"gdrdrv", "nvidia_fs"} & site.loaded()
    assert (
        site.said(
            "find /etc /var/lib/gpustate/brought -name '*g[d]*' 2>/dev/null | grep -E 'gdrdrv|nvidia-fs|gdrcopy' || :"
        )
        == ""
    )


@on_both
def test_toolkits_lie_beside_each_other_and_bring_no_driver(site: Site) -> None:
    before = site.packages()
    site.said("DEBIAN_FRONTEND=noninteractive apt-get -y -q install cuda-toolkit-12-4")
    with_one, link = site.packages(), site.said("cat /var/lib/dpkg/alternatives/cuda")
    states: dict[str, Any] = {"cuda_toolkit": {"versions": ("12.9", "13.0")}}
    assert site.outcomes("apply", **states) == {"cuda-toolkit": "changed"}
    assert site.said("readlink -f /usr/local/cuda") == "/usr/local/cuda-12.4"
    assert "V13.0" in site.said("/usr/local/cuda-13.0/bin/nvcc --version")
    assert site.outcomes("apply", **states) == {"cuda-toolkit": "unchanged"}

    site.said("rm /usr/local/cuda-12.9/bin/nvcc; update-alternatives --auto cuda")
    assert site.said("readlink -f /usr/local/cuda") == "/usr/local/cuda-13.0"
    assert site.outcomes("apply", **states) == {"cuda-toolkit": "changed"}
    assert "V12.9" in site.said("/usr/local/cuda-12.9/bin/nvcc --version")
    assert site.said("readlink -f /usr/local/cuda") == "/usr/local/cuda-12.4"
    asked: dict[str, Any] = {"cuda_toolkit": {"versions": ("12.9", "13.0"), "default": "13.0"}}
    assert site.outcomes("apply", **asked) == {"cuda-toolkit": "changed"}
    assert site.said("readlink -f /usr/local/cuda") == "/usr/local/cuda-13.0"

    assert site.outcomes("remove", **states) == {"cuda-toolkit": "changed"}
    assert site.packages() == with_one
    assert site.said("cat /var/lib/dpkg/alternatives/cuda") == link
    site.said("apt-get -y -q autoremove --purge cuda-toolkit-12-4")
    assert site.packages() == before


@on_both
def test_an_ofed_is_brought_mended_and_taken_away(site: Site) -> None:
    site.said(f"apt-get -y -q purge {OFED}")  # what another test has left
    before = site.packages()
    states: dict[str, Any] = {"ofed": {"package": "doca-ofed", "version": "25.04.0.6.0-1"}}
    assert site.outcomes("apply", **states) == {"ofed": "changed"}
    assert "doca-ofed 25.04.0.6.0-1" in site.packages()
    assert site.outcomes("apply", **states) == {"ofed": "unchanged"}
    site.said("apt-get -y -q --allow-change-held-packages remove doca-ofed")
    assert site.outcomes("drift", 2, **states) == {"ofed": "would change"}
    assert site.outcomes("apply", **states) == {"ofed": "changed"}
    # Not the newest of the repository: all of it comes at that version, and stays.
    older: dict[str, Any] = {"ofed": {"package": "doca-ofed", "version": "24.10.1.1.4-1"}}
    assert site.outcomes("apply", **older) == {"ofed": "changed"}
    assert {f"hi  {name} 24.10.1.1.4-1" for name in OFED.split()} <= set(
        site.packages().splitlines()
    )
    assert site.outcomes("apply", **older) == {"ofed": "unchanged"}
    assert site.outcomes("remove", **states) == {"ofed": "changed"}
    assert site.packages() == before


@on_both
def test_a_package_that_would_move_the_driver_is_stopped_before_it_starts(site: Site) -> None:
    before = site.packages()
    script = owned_packages.bring("trial", (("cuda-12-9", ""),)).script()
    prelude = "G=/var/lib/gpustate R=$(mktemp -d) LOCK=x PROC=/proc SYS=/sys\n"
    done = site.node.run(f"{prelude}{ops.LIBRARY}\nset -e\n{script}", check=False, timeout_s=300)
    assert done.returncode != 0
    # The solver of an older apt finds no way to move the driver, and refuses by itself.
    refusals = ("would install or move the driver", "E: Error, pkgProblemResolver::Resolve")
    assert any(refusal in done.stdout + done.stderr for refusal in refusals)
    assert site.packages() == before


#: linux-nvidia, and Ubuntu's kernels before 6.8: their own ib_core has what nvidia-peermem registers with.
OWN_STACK = """
k=$(uname -r); d=/lib/modules/$k/kernel/drivers/infiniband/core; mkdir -p $d
cat >/tmp/ib_core.c <<'END'
#include <linux/module.h>
MODULE_NAME("ib_core"); MODULE_LICENSE("Dual BSD/GPL"); MODULE_DEPENDS("");
MODULE_INFO(lab_peer_memory_crc, "0x00c0ffee");
EXPORT_SYMBOL(ib_register_peer_memory_client);
END
gcc -I/lib/modules/$k/build/include -c -o /tmp/ib_core.o /tmp/ib_core.c; ld -r -o $d/ib_core.ko /tmp/ib_core.o
printf '0x00c0ffee\tib_register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\n' \
  >/lib/modules/$k/build/Module.symvers
depmod; modprobe ib_core
"""
NO_OWN_STACK = """
k=$(uname -r); rmmod ib_core
rm /lib/modules/$k/build/Module.symvers /lib/modules/$k/kernel/drivers/infiniband/core/ib_core.ko; depmod
"""
on_ubuntu = first_ubuntu_only()


@on_ubuntu
def test_a_kernel_with_its_own_peer_memory_needs_no_ofed(site: Site) -> None:
    site.said(
        f"for m in nvidia_peermem mlx5_core ib_core mlx_compat; do rmmod $m 2>/dev/null; done; apt-get -y -q purge {OFED}"
    )
    states: dict[str, Any] = {"peermem": {"method": "peermem"}}
    # What the OFED of another test has left behind does not count.
    assert "needs OFED" in str(site.run("apply", 5, **states))
    site.said("rm -rf /usr/src/ofa_kernel")
    site.said(OWN_STACK)
    assert "Invalid argument" in site.node.run("modprobe nvidia-peermem", check=False).stderr
    assert site.outcomes("apply", **states) == {"peermem": "changed"}
    assert "nvidia_peermem" in site.loaded()
    assert site.outcomes("apply", **states) == {"peermem": "unchanged"}
    site.said("rmmod nvidia_peermem; rm /etc/modules-load.d/gpustate-peermem.conf")
    assert site.outcomes("drift", 2, **states) == {"peermem": "would change"}
    assert site.outcomes("apply", **states) == {"peermem": "changed"}
    assert site.outcomes("remove", **states) == {"peermem": "changed"}
    assert "nvidia_peermem" not in site.loaded()
    site.said(NO_OWN_STACK)


#: What Ubuntu's archive has not, or not at this version.
PUBLISHED = {*OFED.split(), "gdrdrv-dkms", "libgdrapi", "gdrcopy-tests", "nvidia-fs-dkms"}


def publish(node: Node, suite: str) -> None:
    """A repository of the site's own beside Ubuntu's archive."""
    source, target = paths.repository_dir() / f"mirror/{suite}", node.root / "srv/site"
    target.mkdir()
    stanzas = [
        stanza
        for stanza in (source / "Packages").read_text().split("\n\n")
        if stanza.partition("\n")[0].removeprefix("Package: ") in PUBLISHED
    ]
    for name in re.findall(r"^Filename: \./(.*)$", "\n".join(stanzas), re.MULTILINE):
        shutil.copy(source / name, target)
    (target / "Packages").write_text("\n\n".join(stanzas))
    node.run(
        "echo 'deb [trusted=yes] file:/srv/site ./' >/etc/apt/sources.list.d/site.list; apt-get -q update",
        timeout_s=120,
    )


@on_ubuntu
def test_modules_are_built_beside_the_driver_of_ubuntus_archive(
    lab_factory: LabFactory, image: str, tmp_path: Path
) -> None:
    lab = lab_factory(LabSpec(nodes=1, images=(image,), gpus=("2xH100",)))
    site = Site(lab, tmp_path)
    site.inventory = without_repositories(lab, tmp_path)
    site.said("printf '#!/bin/sh\n' >/usr/sbin/update-initramfs")
    add_card(site.node)
    publish(site.node, image)
    driver = {"nouveau": {}, "driver_repository": {"origin": "distribution"}}

    def states(precompiled: bool, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {**driver, "driver": {"branch": 580, "precompiled": precompiled}, **more}

    signed = "modinfo -F signer nvidia; modinfo -n nvidia-peermem"
    site.run("apply", **states(True))
    assert "/kernel/nvidia-580srv-open/" in site.said(signed)

    # The archive's own nvidia-fs is older; the sources they are built against are named nvidia-srv.
    modules: dict[str, Any] = {"gdrcopy": {}, "gds": {}}
    assert site.outcomes("apply", **modules) == {"gdrcopy": "changed", "gds": "changed"}
    assert site.said("cat /proc/driver/nvidia-fs/version") == "version: 2.28"
    assert site.outcomes("apply", **modules) == {"gdrcopy": "unchanged", "gds": "unchanged"}
    site.said("rmmod gdrdrv nvidia_fs; rm -f $(modinfo -n nvidia-fs) $(modinfo -n gdrdrv); depmod")
    assert set(site.outcomes("drift", 2, **modules).values()) == {"would change"}
    assert site.outcomes("apply", **modules) == {"gdrcopy": "changed", "gds": "changed"}
    assert {"gdrdrv", "nvidia_fs"} <= site.loaded()

    # OFED wants an nvidia-peermem of its own, and signed modules are not replaced for it.
    swap_ofed(site, "25.04.0.6.0")
    peermem: dict[str, Any] = {"peermem": {"method": "peermem"}}
    assert "precompiled=False" in str(site.run("apply", 5, **peermem))
    assert "/kernel/nvidia-580srv-open/" in site.said(signed)
    assert site.outcomes("remove", **modules) == {"gdrcopy": "changed", "gds": "changed"}

    site.run("apply", **states(False))
    assert "/updates/dkms/" in site.said(signed)
    both = {**modules, **peermem}
    assert set(site.outcomes("apply", **states(False), **both).values()) <= {"changed", "unchanged"}
    assert {"gdrdrv", "nvidia_fs", "nvidia_peermem"} <= site.loaded()
    symbols = "modprobe --dump-modversions $(modinfo -n nvidia-peermem)"
    assert "0x0badf00d\tib_register_peer_memory_client" in site.said(symbols)
    assert set(site.outcomes("apply", **states(False), **both).values()) == {"unchanged"}
    assert set(site.outcomes("remove", **both).values()) == {"changed"}
    assert not {"gdrdrv", "nvidia_fs", "nvidia_peermem"} & site.loaded()
