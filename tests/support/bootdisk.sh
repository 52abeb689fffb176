#!/bin/sh
# Pack a Debian root into a disk that boots by itself, as grub-install leaves one.
# Usage: bootdisk.sh ROOT OUT SIZE_GIB INODES
# OUT has boot.img and core.img of GRUB, which are removed, and gets disk.raw.
set -eu
root=$1 out=$2 size_gib=$3 inodes=$4
disk=$out/disk.raw
# boot.img in front, core.img behind it, one partition from 1 MiB (sector 2048) to the end.
first=2048
sectors=$((size_gib * 2097152 - first))
little_endian() { # number: its four bytes, for printf
    for shift in 0 8 16 24; do printf '\\%03o' $(($1 >> shift & 255)); done
}
truncate -s "${size_gib}G" "$disk"
mke2fs -q -F -t ext4 -L root -N "$inodes" -E offset=$((first * 512)),assume_storage_prezeroed=1 -d "$root" "$disk" $((sectors / 2))k
dd if="$out/boot.img" of="$disk" bs=1 count=440 conv=notrunc 2> /dev/null
dd if="$out/core.img" of="$disk" bs=512 seek=1 conv=notrunc 2> /dev/null
# Active, type 83; then the mark of a boot sector.
# shellcheck disable=SC2059
printf "\\200\\376\\377\\377\\203\\376\\377\\377$(little_endian $first)$(little_endian $sectors)" | dd of="$disk" bs=1 seek=446 conv=notrunc 2> /dev/null
printf '\125\252' | dd of="$disk" bs=1 seek=510 conv=notrunc 2> /dev/null
rm -f "$out/boot.img" "$out/core.img"
