# shellcheck shell=sh
# Defines half KERNEL MODULE: DKMS was killed between the first and the last module it installs for a kernel.
half() { # kernel module
  case $2 in */updates/dkms/*|*/extra/*) ;; *) return 1;; esac
  for d in /var/lib/dkms/nvidia*/*/"$1"/*/module; do
    a=${d%/module}; [ -d "$d" ] && [ ! -L "${d%/*/*/*/module}/kernel-$1-${a##*/}" ] && return 0
  done
  return 1
}
