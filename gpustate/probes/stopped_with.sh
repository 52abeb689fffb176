# shellcheck shell=sh
# Defines stopped_with UNITS...: prints the active units that systemd stops along with these, for
# they require them.
stopped_with() {
  stopped_seen=" $* "
  while [ $# -gt 0 ]; do
    for stopped_unit in $(systemctl show -p RequiredBy -p RequisiteOf -p BoundBy -p ConsistsOf \
      --value \
      "$1" 2>/dev/null); do
      case $stopped_seen in *" $stopped_unit "*) continue ;; esac
      stopped_seen="$stopped_seen$stopped_unit "
      set -- "$@" "$stopped_unit"
      # Starting a target would start all that belongs to it.
      case $stopped_unit in *.target) continue ;; esac
      if systemctl is-active -q "$stopped_unit"; then echo "$stopped_unit"; fi
    done
    shift
  done
}
