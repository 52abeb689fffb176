# shellcheck shell=sh
# Unpacks sources that are missing or empty, of the packages that are the arguments. Reads R; MUST
# is 1 where it is an error that they cannot be had; calls checked, which prints what is damaged.
(
  rm -rf "$R/sources"
  mkdir "$R/sources"
  cd "$R/sources" || exit 1
  dpkg-query -L "$@" | while read -r f; do
    case $f in /usr/src/*) [ -s "$f" ] || [ ! -f "$f" ] || rm -f "$f" ;; esac
  done
  for package; do
    shift
    set -- "$@" "$(dpkg-query -W -f '${Package}=${Version}' "$package")"
  done
  apt_wait && apt_patience && apt-get -q -o DPkg::Lock::Timeout="$APT_WAIT_S" download "$@" ||
    exit 1
  for f in ./*.deb; do
    dpkg-deb --fsys-tarfile "$f" >sources.tar &&
      tar -x -C / -f sources.tar --skip-old-files --keep-directory-symlink --wildcards \
        './usr/src/*' || exit 1
  done
) || :
rm -rf "$R/sources"
damage=$(checked | grep -F ": /usr/src/") || damage=
[ -z "$damage" ] || [ "$MUST" != 1 ] ||
  fail "$damage; the repositories did not restore it (check: apt-cache policy)"
[ -z "$damage" ] || {
  echo "$damage"
  effect same
  exit 0
}
effect unpacked
