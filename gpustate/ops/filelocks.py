"""The sh functions that name who holds a lock on a file; part of :mod:`gpustate.ops.library`.

Surprising: the shell reads a file byte by byte, and the kernel skips lines of /proc/locks where locks come and go
meanwhile. So it is read at once, by cat.

Sources:
    proc(5): /proc/locks, /proc/pid/comm.
"""

FILE_LOCKS = r"""
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
"""
