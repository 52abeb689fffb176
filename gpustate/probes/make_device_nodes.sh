# shellcheck shell=sh
# Makes what the rows of @NODES@, sh that prints them, find wrong, and prints the path and numbers of each.
nodes() {
@NODES@
}
o=0 g=0 w=438; while IFS=" :" read -r n x; do case $n in DeviceFileUID) o=$x ;; DeviceFileGID) g=$x ;; DeviceFileMode) w=$x ;; esac
done <"$PROC/driver/nvidia/params"
nodes | while read -r k d _ m _; do
  case $k in node=*|cap=*) p=${k#*=} ;; *) continue ;; esac
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(stat -L -c '%t %T %F' "$p" 2>/dev/null)
  if [ "${3-}" = character ] && [ "$((0x$1)):$((0x$2))" = "$d" ]; then continue; fi
  [ ! -d "$p" ] || [ -L "$p" ] || rmdir "$p"
  # Files of capabilities say their mode themselves, and no owner.
  # shellcheck disable=SC2174 # the folder above is /dev
  case $p in */nvidia-caps/*) mkdir -p -m 0755 "${p%/*}"; i=0:0 ;; *) i=$o:$g m=$w ;; esac
  t=${p%/*}/.gpustate-node; rm -f "$t"; mknod "$t" c "${d%:*}" "${d#*:}"
  chown "$i" "$t"; chmod "$(printf %o "$m")" "$t"; mv -fT "$t" "$p"; echo "$p $d"
done
effect made
