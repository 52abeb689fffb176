# shellcheck shell=sh
# Binds the devices of D to their vfio drivers, and fails where one is not bound. Expects
# vfio_devices.sh.
# shellcheck disable=SC2154 # pci_root: set by vfio_devices.sh
bad=
for address in $(chosen); do
  device=$pci_root/devices/$address
  target=$(best "$device")
  modprobe -q "$target" || :
  printf '%s\n' "$target" >"$device/driver_override"
  bound=$(driver_of "$device" | tr _ -)
  [ "$bound" != "$(echo "$target" | tr _ -)" ] || continue
  [ -z "$bound" ] || printf '%s\n' "$address" >"$device/driver/unbind"
  printf '%s\n' "$address" >"$pci_root/drivers_probe"
  polls=0
  while [ "$(driver_of "$device" | tr _ -)" != "$(echo "$target" | tr _ -)" ] &&
    [ $polls -lt 25 ]; do
    polls=$((polls + 1))
    sleep 0.2
  done
  [ $polls -lt 25 ] || bad="$bad $address"
done
[ -z "$bad" ] || {
  echo "not bound to a vfio driver:$bad (is the IOMMU on? see dmesg)" >&2
  exit 1
}
