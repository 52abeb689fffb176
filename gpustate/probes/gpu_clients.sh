# shellcheck shell=sh
# Prints cap= for each MIG capability, then holder=WHO|FILES for each process with files of GPUs open. Expects who.
for f in "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$f" ] || continue
  while IFS=': ' read -r k v; do [ "$k" = DeviceFileMinor ] && echo "cap=$v ${f#*/capabilities/}"; done <"$f"
done
find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h %l\n' 2>/dev/null | sort -u | {
  p=; l=
  print_holder() {
    [ -n "$p" ] || return 0
    w=$(who "$p") || return 0
    echo "holder=$w|$l"
  }
  while read -r d f; do
    d=${d%/fd}; d=${d#/proc/}
    [ "$d" = "$p" ] || { print_holder; p=$d l=; }
    l="$l $f"
  done
  print_holder
}
:
