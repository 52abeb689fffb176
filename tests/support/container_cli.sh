#!/bin/sh
# shellcheck shell=sh
# Does what libnvidia-container does behind runc's back: device nodes, libraries, rules of the device cgroup.
for a; do case $a in --pid=*) pid=${a#*=} ;; esac; root=$a; done
case " $* " in *" configure "*) ;; *) exit 0 ;; esac
g=$(sed -n 's/^[0-9]*:devices://p' /proc/"$pid"/cgroup)
for d in /dev/nvidia*; do
  [ -c "$d" ] && echo "c $((0x$(stat -c %t "$d"))):$((0x$(stat -c %T "$d"))) rwm" >/sys/fs/cgroup/devices"$g"/devices.allow
done
# shellcheck disable=SC2016 # the inner sh expands
nsenter -m -t "$pid" sh -c '
  for f in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm* /dev/nvidia-modeset /usr/lib/x86_64-linux-gnu/libcuda.so.* /usr/lib/x86_64-linux-gnu/libnvidia-*.so.*; do
    mkdir -p "$1${f%/*}"; touch "$1$f"; mount --bind "$f" "$1$f"
  done
  for f in /run/gpustate-lab /etc/gpustate-lab; do mkdir -p "$1$f"; mount --rbind "$f" "$1$f"; done
  mount --rbind /run/gpustate-lab/proc/driver "$1/proc/driver"; mount --bind /run/gpustate-lab/proc/devices "$1/proc/devices"
' sh "$root"
