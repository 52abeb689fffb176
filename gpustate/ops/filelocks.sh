# shellcheck shell=sh
# Defines named_process PID and file_lock_holder KIND FILES...: who holds a lock, as NAME (process N).
named_process() { # pid: NAME (process N)
  c=; { read -r c <"/proc/$1/comm"; } 2>/dev/null; echo "${c:-another program} (process $1)"
}
file_lock_holder() { # kind files...: who holds a lock of that kind (WRITE; empty: any) on one of the files
  lw=$1; shift; lk=$(cat /proc/locks 2>/dev/null)
  for i in $(stat -c %i "$@" 2>/dev/null); do
    while read -r _ _ _ w p n _; do
      case $w$n in "$lw"*:"$i") named_process "$p"; return 0 ;; esac
    done <<LOCKS
$lk
LOCKS
  done 2>/dev/null
  return 1
}
