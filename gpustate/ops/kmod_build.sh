# shellcheck shell=sh
# Defines rebuild_module SOURCES VERSION KERNEL MODULE and sign_made. @CAUSE@ is a regular
# expression. Expects library.sh, modsign_built.sh and unlinked.
sign_made() { # kernel, folder of what DKMS made, the module that goes last
  k=$1
  set -- "$2"/*/module/*.ko* "$3"
  for f; do
    shift
    f=${f##*/}
    f=$(modinfo -k "$k" -n "${f%%.ko*}" 2>/dev/null) && set -- "$@" "$f"
  done
  [ $# = 0 ] || sign_built "$k" "$@"
}
built() { # module kernel
  grep -qE "/$(printf %s "$1" |
    sed 's/[-_]/[-_]/g')\.ko(\.[a-z0-9]+)?:" "/lib/modules/$2/modules.dep"
}
complain() { # make.log of a source and version
  changed_sources "$1-$2"
  l=/var/lib/dkms/$1/$2/build/make.log
  [ -f "$l" ] || return 0
  c=$(grep -m 1 -E '@CAUSE@' "$l") || return 0
  echo "DKMS build error for kernel $3: ${c##*/build/} (whole log: $l)"
}
rebuild_module() { # pattern of the source's name, version, kernel, module
  n=
  for d in /usr/src/$1-"$2"; do [ -e "$d/dkms.conf" ] && n=${d##*/} && n=${n%-"$2"} && break; done
  [ -n "$n" ] || fail "no DKMS source of $4 $2 below /usr/src: install the package that brings it"
  dkms remove "$n/$2" -k "$3" >"$R/dkms.log" 2>&1 || :
  rm -rf "/var/lib/dkms/$n/$2/$3"
  unlinked "/var/lib/dkms/$n" "$3"
  dkms install --force "$n/$2" -k "$3" >>"$R/dkms.log" 2>&1 || {
    complain "$n" "$2" "$3"
    tail -c 2000 "$R/dkms.log"
    exit 1
  }
  depmod "$3"
  built "$4" "$3" || fail "DKMS built $n $2 for $3, and there is no $4 in it"
  sign_made "$3" "/var/lib/dkms/$n/$2/$3" "$4"
}
