# shellcheck shell=sh
# Prints device=ADDRESS|DRIVER|OVERRIDE|BEST|GROUP|BOOT_VGA for each device of D, member= for who
# shares a group, module=1, used=1. Expects vfio_devices.sh.
# shellcheck disable=SC2154 # pci_root and sys_root: set by vfio_devices.sh
for address in $(chosen); do
  device=$pci_root/devices/$address
  override=
  { read -r override <"$device/driver_override"; } 2>/dev/null
  group=
  [ -L "$device/iommu_group" ] && group=$(readlink "$device/iommu_group")
  driver=$(driver_of "$device")
  boot_vga=0
  { read -r boot_vga <"$device/boot_vga"; } 2>/dev/null
  printf 'device=%s|%s|%s|%s|%s|%s\n' "$address" "$driver" "$override" "$(best "$device")" \
    "${group##*/}" "$boot_vga"
  [ -z "$group" ] || for member in "$sys_root/kernel/iommu_groups/${group##*/}/devices"/*; do
    [ -e "$member" ] || [ -L "$member" ] || continue
    class=
    { read -r class <"$pci_root/devices/${member##*/}/class"; } 2>/dev/null
    case $class in
      0x0604* | 0x0600*) ;;
      *)
        printf 'member=%s|%s|%s\n' "${group##*/}" "${member##*/}" \
          "$(driver_of "$pci_root/devices/${member##*/}")"
        ;;
    esac
  done
done
driver="${KERNEL_RELEASE-$(uname -r)}"
grep -qE '/vfio[-_]pci\.ko' "/lib/modules/$driver/modules.dep" \
  "/lib/modules/$driver/modules.builtin" 2>/dev/null && echo module=1
[ -n "$(find /proc/[0-9]*/fd -lname '/dev/vfio/[0-9]*' -print -quit 2>/dev/null)" ] && echo used=1
:
