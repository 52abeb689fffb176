"""Kernels on Debian 12 with real apt, dpkg, dkms and holds; modules, kernels and GPUs are simulated, and so is
update-grub: nodes have no boot loader. It writes the menu that grub-mkconfig 2.06 writes (util/grub.d/00_header.in,
10_linux.in: ids of entries, submenu, default), and a kernel's scripts call it as Debian's do.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commands import Ran, gpustate
from labnodes import LabFactory

from gpustate.lab.api import Lab
from gpustate.lab.spec import LabSpec
from gpustate.text import grub

#: What these tests prove of states, how and on what: docs/states.md is made from it.
PROVES = {
    "kernel": ("simulated node", "debian12"),
}

POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.kernel import KernelKept
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.repository import DriverRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository(), DriverInstalled(version="580.65.06"), KernelKept(policy="{}")
)
"""
RUNNING, OTHER = os.uname().release, "5.10.0-28-lab"
UPDATE_GRUB = r"""#!/bin/sh
GRUB_DEFAULT=0; for f in /etc/default/grub.d/*.cfg; do [ -e "$f" ] && . "$f"; done
ks=$(for i in /boot/vmlinuz-*; do echo "${i#/boot/vmlinuz-}"; done | sort -rV); mkdir -p /boot/grub
{
  printf 'if [ "${next_entry}" ] ; then\n   set default="${next_entry}"\nelse\n   set default="%s"\nfi\n' "$GRUB_DEFAULT"
  set -- $ks
  printf "menuentry 'Debian GNU/Linux' --class debian \$menuentry_id_option 'gnulinux-simple-1f2e-3d4c' {\n\tlinux\t/boot/vmlinuz-%s root=/dev/vda1\n}\n" "$1"
  echo "submenu 'Advanced options for Debian GNU/Linux' \$menuentry_id_option 'gnulinux-advanced-1f2e-3d4c' {"
  for k in $ks; do
    printf "\tmenuentry 'Debian GNU/Linux, with Linux %s' --class debian \$menuentry_id_option 'gnulinux-%s-advanced-1f2e-3d4c' {\n\t\tlinux\t/boot/vmlinuz-%s root=/dev/vda1\n\t}\n" "$k" "$k" "$k"
  done
  echo '}'
} >/boot/grub/grub.cfg
"""


class Site:
    """One node with a menu of kernels."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.node, self.policy = lab, lab.node("gpu1"), folder / "policy.py"
        self.said(
            f"cat >/usr/sbin/update-grub <<'END'\n{UPDATE_GRUB}END\nchmod 0755 /usr/sbin/update-grub\n"
            "mkdir -p /etc/kernel/postinst.d; ln -s /usr/sbin/update-grub /etc/kernel/postinst.d/zz-update-grub; update-grub"
        )

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=240).stdout.strip()

    def apply(self, kernel: str) -> Ran:
        self.policy.write_text(POLICY.replace("{}", kernel))
        return gpustate("apply", self.policy, "-i", self.lab.inventory, "-o", "json", "--yes")

    def remove(self) -> Ran:
        return gpustate("remove", self.policy, "-i", self.lab.inventory, "-o", "json", "--yes")

    def state(self, ran: Ran) -> dict[str, str]:
        return next(row for row in ran.node("gpu1")["states"] if row["state"] == "kernel")

    def boots(self) -> str | None:
        return grub.next_release(self.said("cat /boot/grub/grub.cfg").splitlines())

    def without(self, kernel: str) -> None:
        self.said(f"apt-get -q -y purge linux-image-{kernel} linux-headers-{kernel}; update-grub")


@pytest.fixture
def site(lab_factory: LabFactory, tmp_path: Path) -> Site:
    return Site(lab_factory(LabSpec(nodes=1, images=("debian12",), gpus=("1xH100",))), tmp_path)


def test_a_kernel_is_booted_only_with_its_module_and_the_one_before_it_stays(site: Site) -> None:
    ran = site.apply("hold")
    assert ran.code == 0, ran.out
    site.without(OTHER)
    assert site.boots() == RUNNING

    site.node.fault("dkms-build", on=True)
    failed = site.apply(OTHER)
    assert failed.code in (1, 7), failed.out
    assert "too few arguments" in failed.out or "keeps booting" in failed.out
    assert site.boots() == RUNNING
    assert site.said(f"modinfo -k {RUNNING} -F version nvidia") == "580.65.06"
    site.node.fault("dkms-build", on=False)

    site.said(f"apt-get -q -y install linux-image-{OTHER} linux-headers-{OTHER}")
    site.without(RUNNING)
    assert site.boots() == OTHER
    done = site.apply(RUNNING)
    assert done.code == 0, done.out
    assert site.boots() == RUNNING
    for kernel in (RUNNING, OTHER):
        assert site.said(f"modinfo -k {kernel} -F version nvidia") == "580.65.06"
    assert site.apply(RUNNING).document["summary"].split()[2] == "changed=0"

    assert site.remove().code == 0
    assert site.said("ls /etc/default/grub.d") == ""
    assert "gpustate" not in site.said("cat /boot/grub/grub.cfg")
