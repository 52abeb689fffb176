# shellcheck shell=sh
# Prints host=, cpu=, near= and cap=, and the topology of nvidia-smi where @WANTED@, a command
# followed by && or nothing, succeeds.
host=
{ read -r host </proc/sys/kernel/hostname; } 2>/dev/null
printf 'host=%s\n' "${host:-$(uname -n)}"
for d in "$SYS"/devices/system/cpu/cpu[0-9]*; do
  [ -r "$d/topology/core_id" ] || continue
  read -r package <"$d/topology/physical_package_id"
  read -r core <"$d/topology/core_id"
  numa_node=0
  for node_link in "$d"/node[0-9]*; do [ -e "$node_link" ] && numa_node=${node_link##*/node}; done
  printf 'cpu=%s %s %s %s\n' "${d##*/cpu}" "$package" "$core" "$numa_node"
done
for d in "$SYS"/bus/pci/devices/*; do
  vendor=
  read -r vendor 2>/dev/null <"$d/vendor" || continue
  [ "$vendor" = 0x10de ] || continue
  cpus=
  [ -r "$d/local_cpulist" ] && read -r cpus <"$d/local_cpulist"
  printf 'near=%s %s\n' "${d##*/}" "$cpus"
done
for f in "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access \
  "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$f" ] || continue
  while read -r key vendor; do
    [ "$key" = DeviceFileMinor: ] &&
      printf 'cap=%s %s\n' "${f#"$PROC"/driver/nvidia/capabilities/}" "$vendor"
  done <"$f"
done
if [ -r "$PROC/driver/nvidia/version" ] && @WANTED@command -v nvidia-smi >/dev/null; then
  topology=$(timeout -k 2 20 nvidia-smi topo -m 2>/dev/null) && printf 'topo\n%s\n' "$topology"
fi
:
