# shellcheck shell=sh
# Binds the devices of D to their vfio drivers, and fails where one is not bound. Expects vfio_devices.sh.
# shellcheck disable=SC2154 # B: set by vfio_devices.sh
bad=
for a in $(chosen); do
  d=$B/devices/$a; t=$(best "$d"); modprobe -q "$t" || :
  printf '%s\n' "$t" >"$d/driver_override"
  w=$(driver_of "$d" | tr _ -); [ "$w" != "$(echo "$t" | tr _ -)" ] || continue
  [ -z "$w" ] || printf '%s\n' "$a" >"$d/driver/unbind"
  printf '%s\n' "$a" >"$B/drivers_probe"
  n=0; while [ "$(driver_of "$d" | tr _ -)" != "$(echo "$t" | tr _ -)" ] && [ $n -lt 25 ]; do n=$((n + 1)); sleep 0.2; done
  [ $n -lt 25 ] || bad="$bad $a"
done
[ -z "$bad" ] || { echo "not bound to a vfio driver:$bad (is the IOMMU on? see dmesg)" >&2; exit 1; }
