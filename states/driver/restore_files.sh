# shellcheck shell=sh
# Recreates links of the driver. Where that is not enough, has apt unpack the packages again at
# their own versions. Arguments: missing files. Calls checked, which prints what is damaged.
for f; do [ -f "$f" ] || [ -d "$f" ] || rm -f "$f"; done
ldconfig
damage=$(checked)
[ -n "$damage" ] || {
  effect linked
  exit 0
}
set --
for package in $(printf '%s\n' "$damage" | sed 's/: .*//' | sort -u); do
  set -- "$@" "$(dpkg-query -W -f '${binary:Package}=${Version}' "$package")"
done
apt_ready && apt_fetch --reinstall "$@" && apt_swap --reinstall "$@" || exit 1
ldconfig
damage=$(checked)
[ -z "$damage" ] ||
  fail "$damage; the repositories did not bring back" "$@" "(apt-cache policy says what they offer)"
effect reinstalled
