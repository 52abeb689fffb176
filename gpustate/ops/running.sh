# shellcheck shell=sh
# Defines ran_before and run_again: services that a failed installation has stopped run again.
ran_before() { # note which services run, with the unit file of each
  : >"$R/ran"; [ -d /run/systemd/system ] || return 0
  systemctl show -p Id -p ActiveState -p FragmentPath '*.service' 2>/dev/null | awk '
    function print_unit() { if (a == "active") print i, p; a = "" }
    /^Id=/ { i = substr($0, 4) } /^ActiveState=/ { a = substr($0, 13) } /^FragmentPath=/ { p = substr($0, 14) } /^$/ { print_unit() } END { print_unit() }' >"$R/ran"
}
touched_packages() { # names of packages that an installation and its way back have unpacked, removed or configured
  if command -v dpkg >/dev/null; then
    cat "$R/apt.log" "$R/back.log" 2>/dev/null | sed -nE 's/^(Unpacking|Removing|Purging configuration files for|Setting up|Preparing to unpack) ([^ :]+).*/\2/p'
  else
    comm -3 "$R/before" "$R/after" 2>/dev/null | tr -d '\t' | cut -d ' ' -f 1
  fi | sort -u
}
unit_files() { # packages...: their units, as the last part of the path
  if command -v dpkg >/dev/null; then dpkg -L "$@"; else rpm -ql "$@"; fi 2>/dev/null | sed -nE 's|.*/systemd/system/([^/]+\.service)$|\1|p'
}
which_run() { # units on standard input: which of them run
  while read -r ru; do
    if systemctl is-active -q "$ru"; then echo "running again: $ru"; else echo "still stopped: $ru"; fi
  done
}
run_again() { # services that ran before and that the installation has stopped
  [ -s "$R/ran" ] || return 0
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(touched_packages); [ $# -gt 0 ] || return 0
  mine=$({ unit_files "$@"
    # A package that is gone has taken its unit along.
    while read -r ru rp; do case $rp in /lib/*|/usr/lib/*) [ -e "$rp" ] || echo "$ru" ;; esac; done <"$R/ran"; } | sort -u)
  down=$(for ru in $mine; do echo "$ru"; systemctl list-dependencies --reverse --plain "$ru" 2>/dev/null; done |
    sed 's/^[^a-zA-Z0-9]*//' | sort -u | while read -r ru; do
      grep -q "^$ru " "$R/ran" || continue
      systemctl is-active -q "$ru" || echo "$ru"
    done)
  [ -n "$down" ] || return 0
  systemctl reset-failed $down 2>/dev/null || :
  timeout 300 systemctl start $down </dev/null >/dev/null 2>&1 || :
  printf '%s\n' $down | which_run
}
