# shellcheck shell=sh
# Prints where the state's files are, GPUs that cannot be reset, minor numbers of GPUs, and resets that were tried in vain.
# Reads G, PROC, SYS; TRIED is a file.
printf 'state=%s\n' "$G"
for d in "$SYS"/bus/pci/devices/*; do
  c=; { read -r v <"$d/vendor" && read -r c <"$d/class"; } 2>/dev/null || continue
  [ "$v" = 0x10de ] && [ "${c#0x030}" != "$c" ] && [ ! -e "$d/reset" ] && echo "no_reset=${d##*/}"
done
for f in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$f" ] || continue
  a=${f%/*}
  while IFS=':' read -r k v; do case $k in 'Device Minor'*) echo "minor=${a##*/} ${v##*[!0-9]}";; esac; done <"$f"
done
[ ! -r "$TRIED" ] || while read -r b _; do echo "tried=${b%,}"; done <"$TRIED"
