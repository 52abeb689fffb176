# shellcheck shell=sh
# Starts the unit UNIT where the machine that boots the image has switches. Reads SYS, and n:
# bridges that were counted.
for device in "$SYS"/bus/pci/devices/*; do
  vendor=
  class=
  { read -r vendor <"$device/vendor" && read -r class <"$device/class"; } 2>/dev/null || continue
  case $vendor$class in 0x10de0x0680*)
    n=1
    break
    ;;
  esac
done
[ "$n" != 0 ] || {
  echo "no NVSwitch on PCI: nothing to start"
  effect same
  exit 0
}
systemctl cat "$UNIT" >/dev/null 2>&1 ||
  fail "NVSwitches are there, and the image has no $UNIT: bake it without --gpu, or for these GPUs"
systemctl --no-reload enable "$UNIT"
systemctl start "$UNIT" || {
  journalctl -u "$UNIT" -n 15 --no-pager -o cat
  fail "$UNIT does not start"
}
