"""What the harness puts on a node before a run is recorded: its ``sync``, and the files of others."""

from __future__ import annotations

from collections.abc import Mapping

WRAPPER = """#!/bin/sh
# The tests' own: counts what the node program forces to disk, and waits where it is told to. Nothing is forced
# to disk: who dies here are processes, and what they wrote stays.
k=/run/gpustate-kill
case ${R-}:${LOCK-} in /var/lib/gpustate/runs/*:?*) ;; *) exec /usr/bin/sync "$@";; esac
for f in "$@"; do [ -e "$f" ] || exec /usr/bin/sync "$@"; done
[ -d $k ] || exit 0
read -r n <$k/count; n=$((n + 1)); echo $n >$k/count
read -r at <$k/at
case $at in
  every|$n) w=; for f in "$@"; do case $f in */journal) w=entry;; esac; done
    echo "$n ${R##*/} $w" >$k/reached; read -r go <$k/go;;
esac
:
"""

#: Files of others: nothing that gpustate does may change a byte, an owner, a mode or a time of them.
FOREIGN: Mapping[str, tuple[str, int]] = {
    "etc/modprobe.d/zz-site.conf": (
        "# the site's own\noptions nvme poll_queues=4\nblacklist pcspkr\n",
        0o640,
    ),
    "etc/modules-load.d/site.conf": ("# nothing yet\n", 0o644),
    # Nobody is there to be asked, and asking costs a second a run.
    "etc/apt/apt.conf.d/99site": ('Acquire::Retries "3";\n#clear DPkg::Pre-Install-Pkgs;\n', 0o644),
    "etc/apt/preferences.d/site": (
        "Package: nosuchpackage\nPin: release *\nPin-Priority: -1\n",
        0o600,
    ),
    "etc/containerd/certs.d/registry.example/hosts.toml": (
        'server = "https://registry.example"\n',
        0o644,
    ),
    "etc/systemd/system/containerd.service.d/site.conf": (
        "[Service]\nLimitMEMLOCK=infinity\n",
        0o644,
    ),
    "etc/initramfs-tools/conf.d/site": ("# COMPRESS=zstd\nCOMPRESSLEVEL=1\n", 0o644),
    "etc/nvidia/site-notes.txt": ("ask Kim before touching these nodes\n", 0o604),
    "etc/default/grub.d/site.cfg": ('GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n', 0o644),
    "srv/data/weights.bin": ("\0\1\2 not text \x7f\n" * 500, 0o400),
}
#: A file that gpustate edits and people write in: their lines stay as they are.
CONTAINERD = """# kept by hand -- talk to the storage people first
version = 2
root = "/var/lib/containerd"   # on the big disk

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    # pinned on purpose
    sandbox_image = "registry.example/pause:3.9"
"""
LONG_AGO = 1_600_000_000

#: What an initramfs holds; the archive itself tells the times at which it was packed.
INITRAMFS = (
    "d=$(mktemp -d); unmkinitramfs /{0} $d; cd $d; "
    "{{ find . -type f -exec sha256sum {{}} +; find . -type l -printf '%p %l\\n'; }} "
    "| LC_ALL=C sort | sha256sum | cut -c1-16; rm -rf $d"
)
