# shellcheck shell=sh
# Prints listener=ADDRESS|WHO for each process that listens on a port but for the process m. @PORT@
# is four hexadecimal digits, or a variable that has them; @LISTENING@ the rows of sockets. Expects
# who.
while read -r _ address _ state _ _ _ _ _ inode _; do
  case "$address $state" in *:"@PORT@ 0A") ;; *) continue ;; esac
  socket="socket:\[$inode\]"
  case ${m:-0} in
    0) ;;
    *) [ -z "$(find "/proc/$m/fd" -lname "$socket" 2>/dev/null)" ] || continue ;;
  esac
  open_folders=$(find /proc/[0-9]*/fd -lname "$socket" -printf '%h\n' 2>/dev/null | sort -u)
  [ -n "$open_folders" ] || echo "listener=$address"
  for f in $open_folders; do
    f=${f%/fd}
    state=$(who "${f#/proc/}") && echo "listener=$address|$state"
  done
done <<END
@LISTENING@
END
