#!/bin/sh
# Be the machine that runs libvirt, in mount, pid, network, IPC and UTS namespaces of its own.
# Usage: host.sh FOLDER WWW PORT
# FOLDER keeps libvirt's state, disks and logs; WWW is served on PORT, of all addresses. Prints "ready",
# and lives until it is killed, with everything that it and libvirt started.
set -eu
folder=$1 www=$2 port=$3
mount --make-rprivate /
umount -l /sys
mount -t sysfs sysfs /sys # that of this network namespace, and without control groups
mount -t tmpfs tmpfs /run
mkdir -p "$folder/lib" "$folder/log" "$folder/cache" "$folder/etc"
cp -a /etc/libvirt/. "$folder/etc/"
# The distribution's own network and pools are for the machine outside.
rm -rf "$folder/etc/qemu/networks" "$folder/etc/storage"
for pair in lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt etc:/etc/libvirt; do
    mkdir -p "${pair#*:}"
    mount --bind "$folder/${pair%%:*}" "${pair#*:}"
done
mkdir -p /run/lock /run/libvirt
ip link set lo up
python3 -m http.server --directory "$www" "$port" > "$folder/packages.log" 2>&1 &
virtlogd > "$folder/virtlogd.log" 2>&1 &
libvirtd > "$folder/libvirtd.log" 2>&1 &
libvirtd=$!
until virsh --connect qemu:///system list > /dev/null 2>&1; do
    kill -0 "$libvirtd" || { cat "$folder/libvirtd.log"; exit 1; }
    sleep 0.2
done
echo ready
# Linux shares processors out by session first: a machine is one session, its neighbours here are many.
while sleep 1; do
    for machine in $(pgrep qemu-system); do echo -12 > "/proc/$machine/autogroup"; done
done &
wait "$libvirtd"
