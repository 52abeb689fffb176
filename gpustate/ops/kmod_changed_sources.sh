# shellcheck shell=sh
# Defines changed_sources NAME-VERSION: a build that fails on them is the fault of neither kernel nor compiler.
changed_sources() {
  p=$(dpkg-query -S "/usr/src/$1/dkms.conf" 2>/dev/null | sed 's/:.*//;q'); c=
  if [ -n "$p" ]; then c=$(dpkg -V "$p" 2>/dev/null) || :; elif command -v rpm >/dev/null && p=$(rpm -qf "/usr/src/$1/dkms.conf"); then c=$(rpm -V --nodeps --nomtime "$p") || :; fi
  c=$(printf '%s\n' "$c" | sed -n 's,^[^ ]* .*\(/usr/src/.*\),\1,p;' | head -n 1)
  [ -z "$c" ] || echo "error: $c is not as package $p brought it"
}
