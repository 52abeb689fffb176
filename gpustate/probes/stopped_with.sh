# shellcheck shell=sh
# Defines stopped_with UNITS...: prints the active units that systemd stops along with these, for they require them.
stopped_with() {
  sw_s=" $* "
  while [ $# -gt 0 ]; do
    for sw_u in $(systemctl show -p RequiredBy -p RequisiteOf -p BoundBy -p ConsistsOf --value "$1" 2>/dev/null); do
      case $sw_s in *" $sw_u "*) continue ;; esac
      sw_s="$sw_s$sw_u "; set -- "$@" "$sw_u"
      # Starting a target would start all that belongs to it.
      case $sw_u in *.target) continue ;; esac
      if systemctl is-active -q "$sw_u"; then echo "$sw_u"; fi
    done
    shift
  done
}
