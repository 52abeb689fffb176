# shellcheck shell=sh
# Prints host=, cpu=, near= and cap=, and the topology of nvidia-smi where @WANTED@, a command followed by && or
# nothing, succeeds.
h=; { read -r h </proc/sys/kernel/hostname; } 2>/dev/null; printf 'host=%s\n' "${h:-$(uname -n)}"
for d in "$SYS"/devices/system/cpu/cpu[0-9]*; do
  [ -r "$d/topology/core_id" ] || continue
  read -r p <"$d/topology/physical_package_id"; read -r c <"$d/topology/core_id"; n=0
  for m in "$d"/node[0-9]*; do [ -e "$m" ] && n=${m##*/node}; done
  printf 'cpu=%s %s %s %s\n' "${d##*/cpu}" "$p" "$c" "$n"
done
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v 2>/dev/null <"$d/vendor" || continue
  [ "$v" = 0x10de ] || continue
  l=; [ -r "$d/local_cpulist" ] && read -r l <"$d/local_cpulist"
  printf 'near=%s %s\n' "${d##*/}" "$l"
done
for f in "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$f" ] || continue
  while read -r k v; do [ "$k" = DeviceFileMinor: ] && printf 'cap=%s %s\n' "${f#"$PROC"/driver/nvidia/capabilities/}" "$v"; done <"$f"
done
if [ -r "$PROC/driver/nvidia/version" ] && @WANTED@command -v nvidia-smi >/dev/null; then
  t=$(timeout -k 2 20 nvidia-smi topo -m 2>/dev/null) && printf 'topo\n%s\n' "$t"
fi
:
