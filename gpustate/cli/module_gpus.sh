# shellcheck shell=sh
# Prints NVIDIA's functions on PCI, and GPUs in the module's list, to identify those that are gone
# or that NVML has lost; and the clock. Reads SYS and PROC.
for device in "$SYS"/bus/pci/devices/*; do
  vendor=
  read -r vendor <"$device/vendor" && [ "$vendor" = 0x10de ] || continue
  class=
  read -r class <"$device/class"
  printf 'pci=%s||%s|\n' "${device##*/}" "${class#0x}"
done
for device in "$PROC"/driver/nvidia/gpus/*; do
  [ -d "$device" ] && printf 'gpu=%s|-1|?\n' "${device##*/}"
done
printf 'clock=%s\n' "$(date +%s)"
