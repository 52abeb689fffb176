# shellcheck shell=sh
# Defines keep_version: of a package that is there in two versions, it keeps one.
keep_version() { # name, version to keep; the newest where that is not there
  case $1 in *.i[356]86) a=${1##*.} ;; *) a='' ;; esac
  l=$(rpm -q --qf "%{VERSION}-%{RELEASE}.%{ARCH}\n" "$1" | grep "\.${a:-[^i][^.]*}\$" | sort -V)
  w=$(printf "%s\n" "$l" | grep -F -- "$2." | tail -n 1); w=${w:-$(printf "%s\n" "$l" | tail -n 1)}
  for v in $l; do [ "$v" = "$w" ] || rpm -e --nodeps "${1%".$a"}-$v"; done
}
