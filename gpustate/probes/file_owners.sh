# shellcheck shell=sh
# Defines owners PATH...: prints PACKAGE: PATH of each that a package brings.
owners() {
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(for ow_f do case $ow_f in /dev/*|/run/*|/var/run/*|/tmp/*) ;; /usr/*) echo "$ow_f" "${ow_f#/usr}" ;; *) echo "$ow_f" "/usr$ow_f" ;; esac; done)
  [ $# != 0 ] || return 0
  if command -v dpkg-query >/dev/null; then timeout -k 1 10 dpkg-query -S "$@" 2>/dev/null
  else for ow_f do ow_p=$(timeout -k 1 10 rpm -qf --qf '%{NAME}\n' "$ow_f" 2>/dev/null) && printf '%s: %s\n' "${ow_p%%[!A-Za-z0-9._+-]*}" "$ow_f"; done; fi
  :
}
