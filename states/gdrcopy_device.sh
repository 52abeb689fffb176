# shellcheck shell=sh
# Makes /dev/gdrdrv with the number that the loaded module has. Reads PROC.
M=
while read -r n d; do [ "$d" = gdrdrv ] && M=$n; done <"$PROC/devices"
[ -n "$M" ] || fail "gdrdrv is loaded, and /proc/devices has no number for it; see dmesg"
if [ -c /dev/gdrdrv ] && [ "$(($(printf '0x%s' "$(stat -c %t /dev/gdrdrv)")))" = "$M" ]; then
  chmod 0666 /dev/gdrdrv
else
  rm -f /dev/gdrdrv
  mknod -m 0666 /dev/gdrdrv c "$M" 0
fi
effect made
