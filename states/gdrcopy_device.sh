# shellcheck shell=sh
# Makes /dev/gdrdrv with the number that the loaded module has. Reads PROC.
major=
while read -r number name; do [ "$name" = gdrdrv ] && major=$number; done <"$PROC/devices"
[ -n "$major" ] || fail "gdrdrv is loaded, and /proc/devices has no number for it; see dmesg"
if [ -c /dev/gdrdrv ] && [ "$(($(printf '0x%s' "$(stat -c %t /dev/gdrdrv)")))" = "$major" ]; then
  chmod 0666 /dev/gdrdrv
else
  rm -f /dev/gdrdrv
  mknod -m 0666 /dev/gdrdrv c "$major" 0
fi
effect made
