# shellcheck shell=sh
# Prints the time, the machine, the lock, the names in @ONCE@, and the newest run with the last line of its journal
# where that has not ended. @NOW@ is the time, asked once for all fragments that leave together. Expects odd.
# shellcheck disable=SC3067 # -O: every sh of Linux knows it
odd "$G/lock/info" "$G/runs/journal"
printf 'now %s\n' "@NOW@"
m=; b=; [ -n "${GPUSTATE_IMAGE-}" ] || [ ! -f /etc/machine-id ] || read -r m </etc/machine-id
[ -z "$m" ] || { read -r b </proc/sys/kernel/random/boot_id; [ -z "$b" ] || echo "machine $b $m $G"; }
if [ -f $G/lock/info ]; then printf 'lock '; cat $G/lock/info; echo; fi
for f in @ONCE@/*; do [ -f "$f" ] && echo "noted ${f##*/}"; done
r=$(ls -1t $G/runs 2>/dev/null | while read -r r; do case $r in *.new) ;; *) echo "$r"; break ;; esac; done)
if [ -n "$r" ]; then
  printf 'newest %s\n' "$r"
  l=$(tail -n 1 $G/runs/$r/journal)
  case $l in *'"e":"end"'*) ;; *)
    a=0; read -r p <$G/runs/$r/pid && [ -O /proc/$p ] && grep -qa "runs/$r/" /proc/$p/cmdline && a=1
    printf 'program %s %s %s\n' "$r" $a "$l";;
  esac
fi
:
