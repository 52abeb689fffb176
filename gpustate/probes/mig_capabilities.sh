# shellcheck shell=sh
# Prints cap=PATH NUMBERS 1 MODE NAME for each capability of an instance. Reads c, the major number of nvidia-caps.
[ -z "$c" ] || for g in "$PROC"/driver/nvidia/capabilities/mig/config "$PROC"/driver/nvidia/capabilities/mig/monitor \
  "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$g" ] || continue
  m=; w=292; u=1; while IFS=': ' read -r n x; do
    case $n in DeviceFileMinor) m=$x ;; DeviceFileMode) w=$x ;; DeviceFileModify) u=$x ;; esac
  done <"$g"
  [ -n "$m" ] && [ "$u" != 0 ] || continue
  case $g in */access) ;; *) [ -e "/dev/nvidia-caps/nvidia-cap$m" ] || continue ;; esac
  g=${g#*/capabilities/}; echo "cap=/dev/nvidia-caps/nvidia-cap$m $c:$m 1 $w ${g%/access}"
done
