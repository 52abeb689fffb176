# shellcheck shell=sh
# Prints node=PATH NUMBERS OPENED for each device node there should be but those of capabilities.
# Reads gpu_major and uvm_major.
# shellcheck disable=SC2154 # the two: set by device_nodes.sh
any_uuid=
for information in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$information" ] || continue
  minor=
  opened=
  while IFS=: read -r key value; do
    case $key in
      'Device Minor') minor=${value##*[!0-9]} ;;
      'GPU UUID') opened=${value##*[!A-Za-z0-9?-]} ;;
    esac
  done <"$information"
  case $opened in '' | *'?'*) opened= ;; *) opened=1 any_uuid=1 ;; esac
  [ -z "$minor" ] || echo "node=/dev/nvidia$minor $gpu_major:$minor $opened"
done
echo "node=/dev/nvidiactl $gpu_major:255 $any_uuid"
if [ -n "$uvm_major" ]; then
  opened=
  if [ -e /dev/nvidia-uvm-tools ]; then opened=1; fi
  echo "node=/dev/nvidia-uvm $uvm_major:0 $opened"
fi
