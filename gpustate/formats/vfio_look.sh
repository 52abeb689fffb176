# shellcheck shell=sh
# Prints device=ADDRESS|DRIVER|OVERRIDE|BEST|GROUP|BOOT_VGA for each device of D, member= for who shares a group,
# module=1, used=1. Expects vfio_devices.sh.
# shellcheck disable=SC2154 # B and S: set by vfio_devices.sh
for a in $(chosen); do
  d=$B/devices/$a; o=; { read -r o <"$d/driver_override"; } 2>/dev/null; g=; [ -L "$d/iommu_group" ] && g=$(readlink "$d/iommu_group")
  k=$(driver_of "$d"); v=0; { read -r v <"$d/boot_vga"; } 2>/dev/null
  printf 'device=%s|%s|%s|%s|%s|%s\n' "$a" "$k" "$o" "$(best "$d")" "${g##*/}" "$v"
  [ -z "$g" ] || for m in "$S/kernel/iommu_groups/${g##*/}/devices"/*; do
    [ -e "$m" ] || [ -L "$m" ] || continue; c=; { read -r c <"$B/devices/${m##*/}/class"; } 2>/dev/null
    case $c in 0x0604*|0x0600*) ;; *) printf 'member=%s|%s|%s\n' "${g##*/}" "${m##*/}" "$(driver_of "$B/devices/${m##*/}")";; esac
  done
done
k="${KERNEL_RELEASE-$(uname -r)}"; grep -qE '/vfio[-_]pci\.ko' "/lib/modules/$k/modules.dep" "/lib/modules/$k/modules.builtin" 2>/dev/null && echo module=1
[ -n "$(find /proc/[0-9]*/fd -lname '/dev/vfio/[0-9]*' -print -quit 2>/dev/null)" ] && echo used=1
:
