# shellcheck shell=sh
# Prints the time, the machine, the lock, the names in @ONCE@, and the newest run with the last line
# of its journal where that has not ended. @NOW@ is the time, asked once for all fragments that
# leave together. Expects odd.
# shellcheck disable=SC3067 # -O: every sh of Linux knows it
odd "$G/lock/info" "$G/runs/journal"
printf 'now %s\n' "@NOW@"
machine=
boot=
[ -n "${GPUSTATE_IMAGE-}" ] || [ ! -f /etc/machine-id ] || read -r machine </etc/machine-id
[ -z "$machine" ] || {
  read -r boot </proc/sys/kernel/random/boot_id
  [ -z "$boot" ] || echo "machine $boot $machine $G"
}
if [ -f $G/lock/info ]; then
  printf 'lock '
  cat $G/lock/info
  echo
fi
for f in @ONCE@/*; do [ -f "$f" ] && echo "noted ${f##*/}"; done
run=$(ls -1t $G/runs 2>/dev/null | while read -r run; do
  case $run in
    *.new) ;;
    *)
      echo "$run"
      break
      ;;
  esac
done)
if [ -n "$run" ]; then
  printf 'newest %s\n' "$run"
  last_line=$(tail -n 1 $G/runs/$run/journal)
  case $last_line in
    *'"e":"end"'*) ;;
    *)
      alive=0
      read -r pid <$G/runs/$run/pid && [ -O /proc/$pid ] &&
        grep -qa "runs/$run/" /proc/$pid/cmdline && alive=1
      printf 'program %s %s %s\n' "$run" $alive "$last_line"
      ;;
  esac
fi
:
