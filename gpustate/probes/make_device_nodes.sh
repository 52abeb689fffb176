# shellcheck shell=sh
# Makes what the rows of @NODES@, sh that prints them, find wrong, and prints the path and numbers
# of each.
nodes() {
  @NODES@
}
owner=0 group=0 mode=438
while IFS=" :" read -r key value; do
  case $key in
    DeviceFileUID) owner=$value ;;
    DeviceFileGID) group=$value ;;
    DeviceFileMode) mode=$value ;;
  esac
done <"$PROC/driver/nvidia/params"
nodes | while read -r kind numbers _ node_mode _; do
  case $kind in node=* | cap=*) path=${kind#*=} ;; *) continue ;; esac
  # shellcheck disable=SC2046 # split into words on purpose
  set -- $(stat -L -c '%t %T %F' "$path" 2>/dev/null)
  if [ "${3-}" = character ] && [ "$((0x$1)):$((0x$2))" = "$numbers" ]; then continue; fi
  [ ! -d "$path" ] || [ -L "$path" ] || rmdir "$path"
  # Files of capabilities say their mode themselves, and no owner.
  # shellcheck disable=SC2174 # the folder above is /dev
  case $path in
    */nvidia-caps/*)
      mkdir -p -m 0755 "${path%/*}"
      node_owner=0:0
      ;;
    *) node_owner=$owner:$group node_mode=$mode ;;
  esac
  temporary=${path%/*}/.gpustate-node
  rm -f "$temporary"
  mknod "$temporary" c "${numbers%:*}" "${numbers#*:}"
  chown "$node_owner" "$temporary"
  chmod "$(printf %o "$node_mode")" "$temporary"
  mv -fT "$temporary" "$path"
  echo "$path $numbers"
done
effect made
