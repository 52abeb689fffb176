# shellcheck shell=sh
# Defines ko KERNEL PATTERN... and about PATH FORMAT: see module_files.py. Reads KO and KO_ABOUT.
ko() {
  ko_kernel=$1
  shift
  set -f
  ko_ifs=$IFS
  IFS='
'
  module_file=
  for ko_row in $KO; do
    case $ko_row in "/lib/modules/$ko_kernel/modules.dep:"*) ;; *) continue ;; esac
    # shellcheck disable=SC2254 # the names are patterns
    for ko_name; do
      case ${ko_row##*/} in $ko_name.ko: | $ko_name.ko.*:)
        module_file=${ko_row#*:}
        module_file=${module_file%:}
        break 2
        ;;
      esac
    done
  done
  IFS=$ko_ifs
  set +f
  case $module_file in '' | /*) ;; *) module_file=/lib/modules/$ko_kernel/$module_file ;; esac
  [ -n "$module_file" ]
}
about() {
  set -f
  ko_ifs=$IFS
  IFS='
'
  ko_name=
  for ko_kernel in $KO_ABOUT; do
    case $ko_kernel in
      filename:*" $1") ko_name=1 ;;
      filename:*) ko_name= ;;
      *) [ -z "$ko_name" ] || printf "$2" "$ko_kernel" ;;
    esac
  done
  IFS=$ko_ifs
  set +f
}
