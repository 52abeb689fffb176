# shellcheck shell=sh
# Defines keep_version: of a package that is there in two versions, it keeps one.
keep_version() { # name, version to keep; the newest where that is not there
  case $1 in *.i[356]86) arch=${1##*.} ;; *) arch='' ;; esac
  versions=$(rpm -q --qf "%{VERSION}-%{RELEASE}.%{ARCH}\n" "$1" | grep "\.${arch:-[^i][^.]*}\$" |
    sort -V)
  kept_version=$(printf "%s\n" "$versions" | grep -F -- "$2." | tail -n 1)
  kept_version=${kept_version:-$(printf "%s\n" "$versions" | tail -n 1)}
  for version in $versions; do
    [ "$version" = "$kept_version" ] || rpm -e --nodeps "${1%".$arch"}-$version"
  done
}
