# shellcheck shell=sh
# Defines who PID: prints pid|command|uid|user|hostname|cgroup, and fails where it has ended.
who() {
  c=; { read -r c <"/proc/$1/comm"; } 2>/dev/null || return 1
  g=; while read -r x; do g=$x; done <"/proc/$1/cgroup"
  u=$(stat -c '%u|%U' "/proc/$1"); h=
  case $g in *pod*) { read -r h <"/proc/$1/root/etc/hostname"; } 2>/dev/null;; esac
  printf '%s' "$1|$c|$u|$h|$g"
}
