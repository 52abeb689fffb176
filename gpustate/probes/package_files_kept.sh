# shellcheck shell=sh
# Prints what all prints, kept under @KEPT@ for as long as boot, files and packages are the same: a
# power loss leaves empty files deep in folders. @FOUND@ are patterns of files. Expects all and
# kept.
set --
for f in @FOUND@ /var/lib/dpkg/status /var/lib/rpm/rpmdb.sqlite /usr/lib/sysimage/rpm/rpmdb.sqlite \
  /var/lib/rpm/Packages \
  /usr/lib/sysimage/rpm/Packages.db /var/lib/dpkg/diversions /var/lib/dpkg/statoverride; do
  { [ -e "$f" ] || [ -L "$f" ]; } && set -- "$@" "$f"
done
files_key=
[ $# = 0 ] || read -r files_key </proc/sys/kernel/random/boot_id
[ $# = 0 ] || files_key=$files_key$(stat --printf='%i:%s:%.9Z ' "$@")
kept package-files-@KEPT@ "$files_key" all 2>/dev/null
:
