#!/bin/sh
# A machine of a cluster, in namespaces of its own: ids, processes, the agents of its schedulers, and sshd.
# Arguments: its folder, its name, sshd's configuration, names of agents.
set -eu
folder=$1 name=$2 config=$3
shift 3
mount --bind "$folder/machine-id" /etc/machine-id
mount --bind "$folder/boot-id" /proc/sys/kernel/random/boot_id
hostname "$name"
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet /var/lib/gpustate
mount --bind "$folder/state" /var/lib/gpustate
mount -t tmpfs none /run
mkdir -p /run/sshd
[ ! -d "$folder/kill" ] || { mkdir /run/gpustate-kill; mount --bind "$folder/kill" /run/gpustate-kill; }
mount --bind "$folder/programs" /usr/local/sbin
for agent; do "$folder/agents/$agent" 1000000 & done
exec /usr/sbin/sshd -D -e -f "$config"
