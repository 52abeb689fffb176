# shellcheck shell=sh
# Defines who PID: prints pid|command|uid|user|hostname|cgroup, and fails where it has ended.
who() {
  who_command=
  { read -r who_command <"/proc/$1/comm"; } 2>/dev/null || return 1
  who_cgroup=
  while read -r who_line; do who_cgroup=$who_line; done <"/proc/$1/cgroup"
  who_user=$(stat -c '%u|%U' "/proc/$1")
  who_host=
  case $who_cgroup in *pod*) { read -r who_host <"/proc/$1/root/etc/hostname"; } 2>/dev/null ;; esac
  printf '%s' "$1|$who_command|$who_user|$who_host|$who_cgroup"
}
