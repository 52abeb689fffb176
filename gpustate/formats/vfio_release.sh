# shellcheck shell=sh
# Restores the devices of D to their own drivers. Expects vfio_devices.sh.
# shellcheck disable=SC2154 # pci_root: set by vfio_devices.sh
for address in $(chosen); do
  device=$pci_root/devices/$address
  override=
  { read -r override <"$device/driver_override"; } 2>/dev/null
  case $override in *vfio*) ;; *) continue ;; esac
  printf '\n' >"$device/driver_override"
  case $(driver_of "$device") in *vfio*)
    printf '%s\n' "$address" >"$device/driver/unbind"
    printf '%s\n' "$address" >"$pci_root/drivers_probe"
    ;;
  esac
done
