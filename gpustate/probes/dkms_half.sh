# shellcheck shell=sh
# Defines half KERNEL MODULE: DKMS was killed between the first and the last module it installs for
# a kernel.
half() { # kernel module
  case $2 in */updates/dkms/* | */extra/*) ;; *) return 1 ;; esac
  for half_folder in /var/lib/dkms/nvidia*/*/"$1"/*/module; do
    half_arch=${half_folder%/module}
    [ -d "$half_folder" ] && [ ! -L "${half_folder%/*/*/*/module}/kernel-$1-${half_arch##*/}" ] &&
      return 0
  done
  return 1
}
