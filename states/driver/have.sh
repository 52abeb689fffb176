# shellcheck shell=sh
# Defines sound, and have KERNEL, which prints version and type of a kernel's nvidia module. Calls half and whole.
sound() { [ -s "$1" ] && [ -n "$(modinfo -F license "$1" 2>/dev/null)" ]; }
have() { # kernel: version and type of its nvidia module
  p=$(grep -m1 -oE '^[^:]*/nvidia(-current[^/:]*|-tesla[^/:]*)?\.ko(\.[a-z0-9]+)?:' "/lib/modules/$1/modules.dep" 2>/dev/null) || return 0
  p=${p%:}; case $p in /*) ;; *) p=/lib/modules/$1/$p;; esac; ! half "$1" "$p" && whole "$1" "$p" || return 0
  # shellcheck disable=SC2154 # whole sets them
  p=$wd/$wb$we
  case $(modinfo -F license "$p") in *GPL*) t=open;; *) t=proprietary;; esac
  printf '%s %s' "$(modinfo -F version "$p")" "$t"
}
