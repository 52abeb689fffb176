# shellcheck shell=sh
# Prints cap= for each MIG capability, then holder=WHO|FILES for each process with files of GPUs
# open. Expects who.
for f in "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access \
  "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$f" ] || continue
  while IFS=': ' read -r key value; do
    [ "$key" = DeviceFileMinor ] && echo "cap=$value ${f#*/capabilities/}"
  done <"$f"
done
find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h %l\n' 2>/dev/null | sort -u | {
  pid=
  open_files=
  print_holder() {
    [ -n "$pid" ] || return 0
    holder=$(who "$pid") || return 0
    echo "holder=$holder|$open_files"
  }
  while read -r d f; do
    d=${d%/fd}
    d=${d#/proc/}
    [ "$d" = "$pid" ] || {
      print_holder
      pid=$d open_files=
    }
    open_files="$open_files $f"
  done
  print_holder
}
:
