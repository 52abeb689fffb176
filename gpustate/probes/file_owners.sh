# shellcheck shell=sh
# Defines owners PATH...: prints PACKAGE: PATH of each that a package brings.
owners() {
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(for owned_path; do
    case $owned_path in
      /dev/* | /run/* | /var/run/* | /tmp/*) ;;
      /usr/*) echo "$owned_path" "${owned_path#/usr}" ;;
      *) echo "$owned_path" "/usr$owned_path" ;;
    esac
  done)
  [ $# != 0 ] || return 0
  if command -v dpkg-query >/dev/null; then
    timeout -k 1 10 dpkg-query -S "$@" 2>/dev/null
  else
    for owned_path; do
      owner_package=$(timeout -k 1 10 rpm -qf --qf '%{NAME}\n' "$owned_path" 2>/dev/null) &&
        printf '%s: %s\n' "${owner_package%%[!A-Za-z0-9._+-]*}" "$owned_path"
    done
  fi
  :
}
