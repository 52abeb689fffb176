"""Kernels on Debian 12 and on nodes that answer as Ubuntu: real apt, dpkg, dkms and holds; modules, kernels and GPUs are simulated, and so is
update-grub: nodes have no boot loader. It writes the menu that grub-mkconfig 2.06 writes (util/grub.d/00_header.in,
10_linux.in: ids of entries, submenu, default, the distribution's name), and a kernel's scripts call it as Debian's do. What boots is
simulated too: a unit reads that menu at boot, and from then on uname and the simulated modules say that kernel.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from commands import Ran, gpustate
from labnodes import also_on_ubuntu

from gpustate.formats import grub
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim.ubuntu_packages import RELEASES

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"kernel": ("simulated node", "debian12", "ubuntu")}

POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.kernel import KernelPinned
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.repository import DriverRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository(), DriverInstalled(version="580.65.06"), KernelPinned(policy="{}")
)
"""
ALONE = """
from gpustate import Policy
from gpustate.states.kernel import KernelPinned

policy = Policy(KernelPinned(policy="hold"))
"""
RUNNING, DEBIANS_OTHER = os.uname().release, "5.10.0-28-lab"
#: Puts what brings new kernels on a node, without a kernel; reads name.
META = r"""
mkdir -p /tmp/meta/DEBIAN; printf 'Package: %s\nVersion: 1.1-1\nArchitecture: amd64\nMaintainer: nobody\nDescription: meta\n' "$name" >/tmp/meta/DEBIAN/control
dpkg-deb -b /tmp/meta /tmp/meta.deb && dpkg -i /tmp/meta.deb
"""
UPDATE_GRUB = r"""#!/bin/sh
GRUB_DEFAULT=0; for f in /etc/default/grub.d/*.cfg; do [ -e "$f" ] && . "$f"; done
case $(. /etc/os-release; echo $ID) in ubuntu) os=Ubuntu c=ubuntu;; *) os='Debian GNU/Linux' c=debian;; esac
ks=$(for i in /boot/vmlinuz-*; do echo "${i#/boot/vmlinuz-}"; done | sort -rV); mkdir -p /boot/grub
{
  printf 'if [ "${next_entry}" ] ; then\n   set default="${next_entry}"\nelse\n   set default="%s"\nfi\n' "$GRUB_DEFAULT"
  set -- $ks
  printf "menuentry '$os' --class $c \$menuentry_id_option 'gnulinux-simple-1f2e-3d4c' {\n\tlinux\t/boot/vmlinuz-%s root=/dev/vda1\n}\n" "$1"
  echo "submenu 'Advanced options for $os' \$menuentry_id_option 'gnulinux-advanced-1f2e-3d4c' {"
  for k in $ks; do
    printf "\tmenuentry '$os, with Linux %s' --class $c \$menuentry_id_option 'gnulinux-%s-advanced-1f2e-3d4c' {\n\t\tlinux\t/boot/vmlinuz-%s root=/dev/vda1\n\t}\n" "$k" "$k" "$k"
  done
  echo '}'
} >/boot/grub/grub.cfg
"""
#: Takes the entry of the menu that GRUB would take; the first is the newest kernel.
BOOT = r"""
d=$(sed -n 's/^ *set default="\(.*\)"$/\1/p' /boot/grub/grub.cfg | tail -n 1); k=${d##*>gnulinux-}; k=${k%-advanced-*}
[ -e "/boot/vmlinuz-$k" ] || k=$(sed -n 's,.*linux\t/boot/vmlinuz-\([^ ]*\).*,\1,p' /boot/grub/grub.cfg | head -n 1)
echo "$k" >/run/booted
"""
UNAME = r"""#!/bin/sh
case $* in -r) cat /run/booted;; *) exec /usr/bin/uname "$@";; esac
"""
BOOTS = f"""
printf '%s' {shlex.quote(BOOT)} >/usr/local/sbin/boot-menu
printf '%s' {shlex.quote(UNAME)} >/usr/local/bin/uname; chmod 0755 /usr/local/bin/uname
cat >/etc/systemd/system/boot-menu.service <<'END'
[Unit]
DefaultDependencies=no
Before=gpustate-lab-hardware.service sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh /usr/local/sbin/boot-menu
[Install]
WantedBy=sysinit.target
END
systemctl enable -q boot-menu.service; sh /usr/local/sbin/boot-menu
f=$(find /usr/lib -name labnode.py); sed -i 's,os.uname().release$,Path("/run/booted").read_text().strip(),' "$f"; grep -q /run/booted "$f"
"""


class Site:
    """One node with a menu of kernels.

    Args:
        lab, node, image: of the node.
        folder: for the policy.
    """

    def __init__(self, lab: Lab, node: Node, image: str, folder: Path) -> None:
        self.lab, self.node, self.policy = lab, node, folder / "policy.py"
        ubuntu = RELEASES.get(image)
        #: The kernel that does not run, and what brings new ones.
        self.other = ubuntu.kernels[0] if ubuntu else DEBIANS_OTHER
        self.meta = "linux-image-generic" if ubuntu else "linux-image-amd64"
        self.said(
            f"cat >/usr/sbin/update-grub <<'END'\n{UPDATE_GRUB}END\nchmod 0755 /usr/sbin/update-grub\n"
            "mkdir -p /etc/kernel/postinst.d; ln -s /usr/sbin/update-grub /etc/kernel/postinst.d/zz-update-grub; update-grub"
        )

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=240).stdout.strip()

    def apply(self, kernel: str) -> Ran:
        self.policy.write_text(POLICY.replace("{}", kernel))
        words = ("-i", self.lab.inventory, "-l", self.node.name, "-o", "json", "--yes")
        return gpustate("apply", self.policy, *words)

    def state(self, ran: Ran) -> str:
        rows = ran.node("gpu1")["states"]
        return str(next(row["outcome"] for row in rows if row["state"] == "kernel"))

    def boots(self) -> str | None:
        return grub.next_release(self.said("cat /boot/grub/grub.cfg").splitlines())

    def without(self, kernel: str) -> None:
        names = " ".join(f"linux-{part}-{kernel}" for part in ("image", "headers", "modules"))
        self.said(f"dpkg --purge {names} && update-grub")


@pytest.fixture
def site(home: Lab, node: Node, image: str, tmp_path: Path) -> Site:
    return Site(home, node, image, tmp_path)


@also_on_ubuntu("debian12")
def test_holding_leaves_every_kernel_and_the_boot_default_as_they_are(site: Site) -> None:
    site.said(f"name={site.meta}{META}")
    ran = site.apply("hold")
    assert ran.code == 0, ran.out
    held = f"apt-mark showhold | grep -c {site.meta} || :"
    assert site.said(held) == "1"
    assert site.state(site.apply("hold")) == "unchanged"
    site.said(f"apt-mark unhold {site.meta}")
    assert site.state(site.apply("hold")) == "changed"
    assert site.said(held) == "1"
    site.without(site.other)
    assert site.boots() == RUNNING
    assert site.said(f"modinfo -k {RUNNING} -F version nvidia") == "580.65.06"
    alone = site.policy.with_name("alone.py")
    alone.write_text(ALONE)
    target = ("-i", site.lab.inventory, "-l", "gpu1", "-o", "json", "--yes")
    assert site.state(gpustate("remove", alone, *target, code=0)) == "changed"
    assert site.said(held) == "0"


@pytest.mark.long
@also_on_ubuntu("debian12")
def test_a_kernel_is_booted_when_its_module_is_built_and_never_before(site: Site) -> None:
    other = site.other
    site.without(other)
    site.said(BOOTS)
    site.node.fault(f"dkms-build:{other}", on=True)
    ran = site.apply(other)
    assert ran.code == 7, ran.out
    assert site.state(ran) == "rolled back"
    reason = ran.node("gpu1")["reason"]
    assert f"DKMS build error for kernel {other}" in reason
    # gcc 12 misses an argument of it, gcc 14 names the type of the one before.
    assert re.search(r"error: .*nv_pin_user_pages", reason), reason
    assert ran.summary["reboots"] == "0"
    assert site.boots() == RUNNING
    assert other not in site.said("ls /boot; dpkg-query -f '${Package} ${Status}' -W 'linux-*'")
    site.node.reboot()
    assert site.said("uname -r") == RUNNING
    assert site.said(f"modinfo -k {RUNNING} -F version nvidia") == "580.65.06"
    assert "580.65.06" in site.said("nvidia-smi")

    site.node.fault(f"dkms-build:{other}", on=False)
    ran = site.apply(other)
    assert ran.code == 0, ran.out
    assert (site.state(ran), ran.summary["reboots"]) == ("changed", "1")
    assert site.said("uname -r") == site.boots() == other
    for kernel in (RUNNING, other):
        assert site.said(f"modinfo -k {kernel} -F version nvidia") == "580.65.06"
        assert f"vmlinuz-{kernel}" in site.said("cat /boot/grub/grub.cfg")
    assert "580.65.06" in site.said("nvidia-smi")
    assert site.apply(other).summary["changed"] == "0"
