# shellcheck shell=sh
# Prints where the state's files are, GPUs that cannot be reset, minor numbers of GPUs, and resets
# that were tried in vain. Reads G, PROC, SYS; TRIED is a file.
printf 'state=%s\n' "$G"
for d in "$SYS"/bus/pci/devices/*; do
  class=
  { read -r vendor <"$d/vendor" && read -r class <"$d/class"; } 2>/dev/null || continue
  [ "$vendor" = 0x10de ] && [ "${class#0x030}" != "$class" ] && [ ! -e "$d/reset" ] &&
    echo "no_reset=${d##*/}"
done
for f in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$f" ] || continue
  gpu_folder=${f%/*}
  while IFS=':' read -r key value; do
    case $key in 'Device Minor'*) echo "minor=${gpu_folder##*/} ${value##*[!0-9]}" ;; esac
  done <"$f"
done
[ ! -r "$TRIED" ] || while read -r bus _; do echo "tried=${bus%,}"; done <"$TRIED"
