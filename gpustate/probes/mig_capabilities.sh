# shellcheck shell=sh
# Prints cap=PATH NUMBERS 1 MODE NAME for each capability of an instance. Reads caps_major,
# the number of nvidia-caps.
[ -z "$caps_major" ] ||
  for capability in "$PROC"/driver/nvidia/capabilities/mig/config \
    "$PROC"/driver/nvidia/capabilities/mig/monitor \
    "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access \
    "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
    [ -r "$capability" ] || continue
    minor=
    mode=292
    modify=1
    while IFS=': ' read -r key value; do
      case $key in
        DeviceFileMinor) minor=$value ;;
        DeviceFileMode) mode=$value ;;
        DeviceFileModify) modify=$value ;;
      esac
    done <"$capability"
    [ -n "$minor" ] && [ "$modify" != 0 ] || continue
    case $capability in
      */access) ;;
      *) [ -e "/dev/nvidia-caps/nvidia-cap$minor" ] || continue ;;
    esac
    capability=${capability#*/capabilities/}
    echo "cap=/dev/nvidia-caps/nvidia-cap$minor $caps_major:$minor 1 $mode ${capability%/access}"
  done
