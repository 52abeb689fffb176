# shellcheck shell=sh
# Defines sound, and have KERNEL, which prints version and type of a kernel's nvidia module. Calls
# half and whole.
sound() { [ -s "$1" ] && [ -n "$(modinfo -F license "$1" 2>/dev/null)" ]; }
have() { # kernel: version and type of its nvidia module
  module_file=$(grep -m1 -oE '^[^:]*/nvidia(-current[^/:]*|-tesla[^/:]*)?\.ko(\.[a-z0-9]+)?:' \
    "/lib/modules/$1/modules.dep" 2>/dev/null) || return 0
  module_file=${module_file%:}
  case $module_file in /*) ;; *) module_file=/lib/modules/$1/$module_file ;; esac
  ! half "$1" "$module_file" && whole "$1" "$module_file" || return 0
  # shellcheck disable=SC2154 # whole sets them
  module_file=$module_folder/$module_base$module_suffix
  case $(modinfo -F license "$module_file") in
    *GPL*) module_type=open ;;
    *) module_type=proprietary ;;
  esac
  printf '%s %s' "$(modinfo -F version "$module_file")" "$module_type"
}
