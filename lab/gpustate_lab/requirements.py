"""The Debian packages that a machine needs to run a lab and the tests, one a line when run as a file.

With ``--proof``, also those that only ``make proof`` needs. The Makefile runs this with the system's python3, before there is a virtual environment: it imports
nothing of gpustate.
"""

from __future__ import annotations

import sys

#: Program, and the Debian package that brings it.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
    "unshare": "util-linux",
    "gpg": "gnupg",
    "dpkg-deb": "dpkg",
    "gcc": "gcc",
}

#: What the project's own tests need beside a lab: many light nodes, a virtual machine without KVM, a
#: reader of alert rules, rpm repositories.
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
}

#: What only ``make proof`` needs: the commands of ``vagrant/README.md``. 22 MB to download, 101 MB on disk.
PROOF_PROGRAMS = {
    "vagrant": "vagrant",
    "libvirtd": "libvirt-daemon-system",
    "virsh": "libvirt-clients",
    "dnsmasq": "dnsmasq-base",
}
PROOF_PACKAGES = tuple(sorted({*PROOF_PROGRAMS.values(), "vagrant-libvirt"}))

#: What every test needs, and what comes without a program to look for.
DEBIAN_PACKAGES = tuple(
    sorted(
        {
            *PROGRAMS.values(),
            *TEST_PROGRAMS.values(),
            "ca-certificates",
            "debian-archive-keyring",
            "libc6-dev",
            "python3-venv",
        }
    )
)

if __name__ == "__main__":
    proof = PROOF_PACKAGES if "--proof" in sys.argv else ()
    print("\n".join(sorted({*DEBIAN_PACKAGES, *proof})))
