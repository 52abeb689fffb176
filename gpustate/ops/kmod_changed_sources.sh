# shellcheck shell=sh
# Defines changed_sources NAME-VERSION: a build that fails on them is the fault of neither kernel
# nor compiler.
changed_sources() {
  source_package=$(dpkg-query -S "/usr/src/$1/dkms.conf" 2>/dev/null | sed 's/:.*//;q')
  changed_file=
  if [ -n "$source_package" ]; then
    changed_file=$(dpkg -V "$source_package" 2>/dev/null) || :
  elif command -v rpm >/dev/null && source_package=$(rpm -qf "/usr/src/$1/dkms.conf"); then
    changed_file=$(rpm -V --nodeps --nomtime "$source_package") || :
  fi
  changed_file=$(printf '%s\n' "$changed_file" | sed -n 's,^[^ ]* .*\(/usr/src/.*\),\1,p;' |
    head -n 1)
  [ -z "$changed_file" ] || echo "error: $changed_file is not as package $source_package brought it"
}
