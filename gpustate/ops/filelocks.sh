# shellcheck shell=sh
# Defines named_process PID and file_lock_holder KIND FILES...: who holds a lock, as NAME (process
# N).
named_process() { # pid: NAME (process N)
  process_name=
  { read -r process_name <"/proc/$1/comm"; } 2>/dev/null
  echo "${process_name:-another program} (process $1)"
}
# file_lock_holder kind files...: who holds a lock of that kind (WRITE; empty: any) on one of the
# files
file_lock_holder() {
  lock_kind=$1
  shift
  locks=$(cat /proc/locks 2>/dev/null)
  for inode in $(stat -c %i "$@" 2>/dev/null); do
    while read -r _ _ _ lock_mode lock_pid lock_inode _; do
      case $lock_mode$lock_inode in "$lock_kind"*:"$inode")
        named_process "$lock_pid"
        return 0
        ;;
      esac
    done <<LOCKS
$locks
LOCKS
  done 2>/dev/null
  return 1
}
