# shellcheck shell=sh
# Prints listener=ADDRESS|WHO for each process that listens on a port but for the process m. @PORT@ is four
# hexadecimal digits, or a variable that has them; @LISTENING@ the rows of sockets. Expects who.
while read -r _ a _ w _ _ _ _ _ i _; do
  case "$a $w" in *:"@PORT@ 0A") ;; *) continue ;; esac
  s="socket:\[$i\]"
  case ${m:-0} in 0) ;; *) [ -z "$(find "/proc/$m/fd" -lname "$s" 2>/dev/null)" ] || continue;; esac
  q=$(find /proc/[0-9]*/fd -lname "$s" -printf '%h\n' 2>/dev/null | sort -u)
  [ -n "$q" ] || echo "listener=$a"
  for f in $q; do f=${f%/fd}; w=$(who "${f#/proc/}") && echo "listener=$a|$w"; done
done <<END
@LISTENING@
END
