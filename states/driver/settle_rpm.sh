# shellcheck shell=sh
# Defines keep_version: of a package that is there in two versions, it keeps one.
keep_version() { # name, version to keep; the newest where that is not there
  l=$(rpm -q --qf "%{VERSION}-%{RELEASE}\n" "$1" | sort -V)
  w=$2; printf "%s\n" "$l" | grep -qxF -- "$w" || w=$(printf "%s\n" "$l" | tail -n 1)
  for v in $l; do [ "$v" = "$w" ] || rpm -e --nodeps "$1-$v"; done
}
