# shellcheck shell=sh
# Prints NVIDIA's functions on PCI, the GPUs that the module lists, major numbers and device nodes.
# Sets caps_major, the major number of nvidia-caps. Reads SYS and PROC.
# shellcheck disable=SC2034 # caps_major: read by mig_capabilities.sh
for d in "$SYS"/bus/pci/devices/*; do
  vendor=
  read -r vendor <"$d/vendor" || continue
  [ "$vendor" = 0x10de ] || continue
  read -r device_id <"$d/device"
  read -r class <"$d/class"
  driver=
  [ -e "$d/driver" ] && {
    driver=$(cd -P "$d/driver" && pwd)
    driver=${driver##*/}
  }
  printf 'pci=%s|%s|%s|%s\n' "${d##*/}" "${device_id#0x}" "${class#0x}" "$driver"
  # Reads of a device that is gone return ones.
  case $(od -An -tx4 -N4 "$d/config") in *ffffffff) printf 'off_bus=%s\n' "${d##*/}" ;; esac
done
for d in "$PROC"/driver/nvidia/gpus/*; do
  [ -r "$d/information" ] || continue
  minor=
  uuid=
  while IFS=: read -r key value; do
    case $key in "Device Minor"*) minor=$(echo $value) ;; "GPU UUID"*) uuid=$(echo $value) ;; esac
  done <"$d/information"
  printf 'gpu=%s|%s|%s\n' "${d##*/}" "$minor" "$uuid"
done
caps_major=
while read -r key name; do
  [ "$key $name" = "Block devices:" ] && break
  case $name in nvidia*) printf 'major=%s|%s\n' "$name" "$key" ;; esac
  [ "$name" != nvidia-caps ] || caps_major=$key
done <"$PROC/devices"
set --
for f in /dev/nvidia* /dev/nvidia-caps/nvidia-cap[0-9]*; do
  # Folders belong there too, and not under these names.
  case $f in
    */nvidia[0-9]* | */nvidiactl | */nvidia-uvm* | */nvidia-cap[0-9]*) ;;
    *) [ ! -d "$f" ] || continue ;;
  esac
  [ ! -e "$f" ] || set -- "$@" "$f"
done
[ $# = 0 ] || stat -L -c 'node=%n|%F|%t|%T' "$@"
