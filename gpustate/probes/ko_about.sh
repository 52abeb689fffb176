# shellcheck shell=sh
# Prints what modinfo says of the files in KO, kept for as long as those are the same: it reads a
# compressed module as a whole, up to a second for 100 MiB. Expects kept.
set -f
IFS='
'
set --
for ko_row in $KO; do
  ko_path=${ko_row#*:}
  ko_path=${ko_path%:}
  case $ko_path in /*) ;; *) ko_path=${ko_row%%modules.dep:*}$ko_path ;; esac
  [ ! -f "$ko_path" ] || set -- "$@" "$ko_path"
done
modinfo_rows() {
  modinfo "$@" 2>/dev/null |
    grep -E '^(filename|version|license|signer|sig_key|description|srcversion):' || :
}
[ $# = 0 ] || kept modules "$(stat -L --printf='%n %s %Y %i;' "$@")" modinfo_rows "$@"
