# shellcheck shell=sh
# Defines rebuild_module SOURCES VERSION KERNEL MODULE and sign_made. @CAUSE@ is a regular
# expression. Expects library.sh, modsign_built.sh and unlinked.
sign_made() { # kernel, folder of what DKMS made, the module that goes last
  made_kernel=$1
  set -- "$2"/*/module/*.ko* "$3"
  for made_module; do
    shift
    made_module=${made_module##*/}
    made_module=$(modinfo -k "$made_kernel" -n "${made_module%%.ko*}" 2>/dev/null) &&
      set -- "$@" "$made_module"
  done
  [ $# = 0 ] || sign_built "$made_kernel" "$@"
}
built() { # module kernel
  grep -qE "/$(printf %s "$1" |
    sed 's/[-_]/[-_]/g')\.ko(\.[a-z0-9]+)?:" "/lib/modules/$2/modules.dep"
}
complain() { # make.log of a source and version
  changed_sources "$1-$2"
  build_log=/var/lib/dkms/$1/$2/build/make.log
  [ -f "$build_log" ] || return 0
  build_cause=$(grep -m 1 -E '@CAUSE@' "$build_log") || return 0
  echo "DKMS build error for kernel $3: ${build_cause##*/build/} (whole log: $build_log)"
}
rebuild_module() { # pattern of the source's name, version, kernel, module
  source_name=
  for source in /usr/src/$1-"$2"; do
    [ -e "$source/dkms.conf" ] && source_name=${source##*/} && source_name=${source_name%-"$2"} &&
      break
  done
  [ -n "$source_name" ] ||
    fail "no DKMS source of $4 $2 below /usr/src: install the package that brings it"
  dkms remove "$source_name/$2" -k "$3" >"$R/dkms.log" 2>&1 || :
  rm -rf "/var/lib/dkms/$source_name/$2/$3"
  unlinked "/var/lib/dkms/$source_name" "$3"
  dkms install --force "$source_name/$2" -k "$3" >>"$R/dkms.log" 2>&1 || {
    complain "$source_name" "$2" "$3"
    tail -c 2000 "$R/dkms.log"
    exit 1
  }
  depmod "$3"
  built "$4" "$3" || fail "DKMS built $source_name $2 for $3, and there is no $4 in it"
  sign_made "$3" "/var/lib/dkms/$source_name/$2/$3" "$4"
}
