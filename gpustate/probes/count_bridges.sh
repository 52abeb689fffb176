# shellcheck shell=sh
# Sets n to how many ConnectX functions manage switches.
n=0
old=
new=
bridges=
for device in "$SYS"/bus/pci/devices/*; do
  vendor=
  device_id=
  class=
  {
    read -r vendor <"$device/vendor" && read -r device_id <"$device/device" &&
      read -r class <"$device/class"
  } 2>/dev/null ||
    continue
  case $vendor$class in
    0x10de0x0300* | 0x10de0x0302*) case $device_id in 0x29?? | 0x3???) new=1 ;; *) old=1 ;; esac ;;
    0x15b30x0207*) bridges="$bridges $device" ;;
  esac
done
if [ -n "$new" ] || [ -z "$old" ]; then
  for device in $bridges; do
    if grep -qs SW_MNG "$device/vpd"; then n=$((n + 1)); fi
  done
fi
