# shellcheck shell=sh
# Prepares what the kubelet expects of a machine, for a node that is a container.
set -eu
setting() {
    file=/run/gpustate-lab-kubelet/$(echo "$1" | tr / .)
    echo "$2" > "$file"
    mountpoint -q "/proc/sys/$1" || mount --bind "$file" "/proc/sys/$1"
}
mkdir -p /run/gpustate-lab-kubelet
setting vm/overcommit_memory 1
setting vm/panic_on_oom 0
setting kernel/panic 10
setting kernel/panic_on_oops 1
setting kernel/keys/root_maxkeys 1000000
setting kernel/keys/root_maxbytes 25000000
# A pipe without a writer, as this may be otherwise, blocks the kubelet for ever.
ln -sf /dev/console /dev/kmsg
