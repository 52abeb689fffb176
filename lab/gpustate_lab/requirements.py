"""The Debian packages that the lab needs; run as a file, it prints one per line.

``--tests`` adds those that only ``make test`` needs, and ``--proof`` those of ``make proof``. The Makefile runs this
with the system's python3 before the virtual environment exists, so it imports nothing of gpustate.
"""

from __future__ import annotations

import sys

#: Debian package of each program.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
    "unshare": "util-linux",
    "gpg": "gnupg",
    "dpkg-deb": "dpkg",
    "gcc": "gcc",
}

#: Programs that only the tests need: many lightweight nodes, a virtual machine without KVM, alert rules,
#: rpm repositories, traces of system calls.
TEST_PROGRAMS = {
    "sshd": "openssh-server",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mke2fs": "e2fsprogs",
    "promtool": "prometheus",
    "chromium": "chromium",
    "dot": "graphviz",
    "rpm": "rpm",
    "dnf": "dnf",
    "createrepo_c": "createrepo-c",
    "zstd": "zstd",
    "strace": "strace",
}

#: Programs that only ``make proof`` needs, for ``vagrant/README.md``: 22 MB to download, 101 MB on disk.
PROOF_PROGRAMS = {
    "debootstrap": "debootstrap",
    "vagrant": "vagrant",
    "libvirtd": "libvirt-daemon-system",
    "virsh": "libvirt-clients",
    "dnsmasq": "dnsmasq-base",
}
PROOF_PACKAGES = tuple(sorted({*PROOF_PROGRAMS.values(), "vagrant-libvirt"}))

#: All packages of the lab, including those without a program.
DEBIAN_PACKAGES = (
    *("ca-certificates", "debian-archive-keyring", "libc6-dev", "python3-venv"),
    *PROGRAMS.values(),
)

if __name__ == "__main__":
    tests = TEST_PROGRAMS.values() if "--tests" in sys.argv else ()
    proof = PROOF_PACKAGES if "--proof" in sys.argv else ()
    print("\n".join(sorted({*DEBIAN_PACKAGES, *tests, *proof})))
