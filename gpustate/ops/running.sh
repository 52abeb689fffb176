# shellcheck shell=sh
# Defines ran_before and run_again: services that a failed installation has stopped run again.
ran_before() { # note which services run, with the unit file of each
  : >"$R/ran"
  [ -d /run/systemd/system ] || return 0
  systemctl show -p Id -p ActiveState -p FragmentPath '*.service' 2>/dev/null | awk '
    function print_unit() { if (state == "active") print id, path; state = "" }
    /^Id=/ { id = substr($0, 4) } /^ActiveState=/ { state = substr($0, 13) }
    /^FragmentPath=/ { path = substr($0, 14) } /^$/ { print_unit() } END { print_unit() }' >"$R/ran"
}
# touched_packages: names of packages that an installation and its way back have unpacked, removed
# or configured
touched_packages() {
  if command -v dpkg >/dev/null; then
    words='Unpacking|Removing|Purging configuration files for|Setting up|Preparing to unpack'
    cat "$R/apt.log" "$R/back.log" 2>/dev/null | sed -nE "s/^($words) ([^ :]+).*/\\2/p"
  else
    comm -3 "$R/before" "$R/after" 2>/dev/null | tr -d '\t' | cut -d ' ' -f 1
  fi | sort -u
}
unit_files() { # packages...: their units, as the last part of the path
  if command -v dpkg >/dev/null; then dpkg -L "$@"; else rpm -ql "$@"; fi 2>/dev/null |
    sed -nE 's|.*/systemd/system/([^/]+\.service)$|\1|p'
}
which_run() { # units on standard input: which of them run
  while read -r running_unit; do
    if systemctl is-active -q "$running_unit"; then
      echo "running again: $running_unit"
    else
      echo "still stopped: $running_unit"
    fi
  done
}
run_again() { # services that ran before and that the installation has stopped
  [ -s "$R/ran" ] || return 0
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(touched_packages)
  [ $# -gt 0 ] || return 0
  their_units=$({
    unit_files "$@"
    # A package that is gone has taken its unit along.
    while read -r running_unit unit_path; do
      case $unit_path in /lib/* | /usr/lib/*) [ -e "$unit_path" ] || echo "$running_unit" ;; esac
    done <"$R/ran"
  } | sort -u)
  stopped_units=$(for running_unit in $their_units; do
    echo "$running_unit"
    systemctl list-dependencies --reverse --plain "$running_unit" 2>/dev/null
  done |
    sed 's/^[^a-zA-Z0-9]*//' | sort -u | while read -r running_unit; do
    grep -q "^$running_unit " "$R/ran" || continue
    systemctl is-active -q "$running_unit" || echo "$running_unit"
  done)
  [ -n "$stopped_units" ] || return 0
  systemctl reset-failed $stopped_units 2>/dev/null || :
  timeout 300 systemctl start $stopped_units </dev/null >/dev/null 2>&1 || :
  printf '%s\n' $stopped_units | which_run
}
