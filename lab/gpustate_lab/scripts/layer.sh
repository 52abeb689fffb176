#!/bin/sh
# Add a layer to a root: run a script in a chroot on an overlay whose upper folder is kept.
# Usage, in mount and pid namespaces of its own: layer.sh UPPER WORK LOWER[:LOWER...] DOWNLOADS SCRIPT [BOUND]
# BOUND, a folder, is seen inside as /run/gpustate-lab-repository.
set -eu
upper=$1 work=$2 lower=$3 downloads=$4 script=$5 bound=${6-}

merged=$work/merged
mkdir -p "$upper" "$work/work" "$merged" "$downloads/partial"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work/work" "$merged"
mount -t proc proc "$merged/proc"
# What is only needed now lies on file systems that go away with this namespace.
mount -t tmpfs tmpfs "$merged/run"
mount -t tmpfs tmpfs "$merged/tmp"
mount -t tmpfs tmpfs "$merged/var/lib/apt/lists"
mount --bind "$downloads" "$merged/var/cache/apt/archives"
if [ -n "$bound" ]; then
    mkdir "$merged/run/gpustate-lab-repository"
    mount --bind -o ro "$bound" "$merged/run/gpustate-lab-repository"
fi
printf '#!/bin/sh\nexit 101\n' > "$merged/usr/sbin/policy-rc.d"
chmod 755 "$merged/usr/sbin/policy-rc.d"
echo force-unsafe-io > "$merged/etc/dpkg/dpkg.cfg.d/gpustate-lab-build"
echo 'Acquire::Languages "none";' > "$merged/etc/apt/apt.conf.d/gpustate-lab-build"
cp /etc/resolv.conf "$merged/etc/resolv.conf"
DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root chroot "$merged" sh -eu < "$script"
rm -f "$merged/etc/resolv.conf" "$merged/usr/sbin/policy-rc.d"
rm -f "$merged/etc/dpkg/dpkg.cfg.d/gpustate-lab-build" "$merged/etc/apt/apt.conf.d/gpustate-lab-build"
rm -f "$merged"/var/cache/apt/*.bin
