# shellcheck shell=sh
# Restores the devices of D to their own drivers. Expects vfio_devices.sh.
# shellcheck disable=SC2154 # B: set by vfio_devices.sh
for a in $(chosen); do
  d=$B/devices/$a; o=; { read -r o <"$d/driver_override"; } 2>/dev/null
  case $o in *vfio*) ;; *) continue;; esac
  printf '\n' >"$d/driver_override"
  case $(driver_of "$d") in *vfio*) printf '%s\n' "$a" >"$d/driver/unbind"; printf '%s\n' "$a" >"$B/drivers_probe" ;; esac
done
