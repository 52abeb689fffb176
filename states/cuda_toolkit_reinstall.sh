# shellcheck shell=sh
# Installs the packages that are the arguments again. One that is gone altogether can be installed,
# and not reinstalled. Reads PM, the package manager.
# shellcheck disable=SC2034 # rpm_open reads it
GO=
gone=
there=
for package; do
  if rpm -q "$package" >/dev/null; then there="$there $package"; else gone="$gone $package"; fi
done
rpm_open "$@"
# shellcheck disable=SC2034 # rpm_fetch and rpm_swap read AGAIN, NAMES and WANT
fix() {
  AGAIN=$1
  shift
  [ $# -gt 0 ] || return 0
  NAMES=$*
  WANT=$*
  rpm_fetch && rpm_swap
}
fix '' $gone && fix 1 $there
