# shellcheck shell=sh
# Removes the device nodes of quarantined GPUs from this container, so that NVML does not list them.
# Reads HOST, where the node's root is, and PROC, a proc file system with the driver's files; then
# becomes "$@". The list is what gpustate writes, one field a line; an entry whose end has passed
# has no effect.
PROC=${PROC:-/proc}
hide() {
  for gpu in "$PROC"/driver/nvidia/gpus/*; do
    [ -r "$gpu/information" ] || continue
    id='' minor=''
    while read -r one two rest; do
      case "$one $two" in
        'GPU UUID:') id=$rest ;;
        'Device Minor:') minor=$rest ;;
      esac
    done <"$gpu/information"
    [ "${gpu##*/}" = "$2" ] || { [ -n "$1" ] && [ "$id" = "$1" ]; } || continue
    [ -n "$minor" ] || continue
    rm -f "/dev/nvidia$minor"
    echo "GPU ${id:-?} (${gpu##*/}) is in quarantine: /dev/nvidia$minor is left out"
  done
}
now=$(date +%s)
uuid='' pci=''
list=$HOST/var/lib/gpustate/quarantine.json
[ ! -r "$list" ] || while read -r key value; do
  value=${value%,} value=${value#\"} value=${value%\"}
  case $key in
    '"uuid":') uuid=$value ;;
    '"pci":') pci=$value ;;
    '"until":') [ "$value" -le "$now" ] || hide "$uuid" "$pci" ;;
  esac
done <"$list"
exec "$@"
