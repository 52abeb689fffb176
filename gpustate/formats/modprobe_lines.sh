# shellcheck shell=sh
# Prints modprobe=FILE:NUMBER:LINE for lines that begin with @ERE@. @FILES@ are shell patterns, those that win first;
# both are syntax, so that no variable can hold them.
set --; b=' '
# shellcheck disable=SC2043 # @FILES@ are several patterns
for f in @FILES@; do
  # A name found twice is read from the first folder only.
  case $b in *" ${f##*/} "*) continue ;; esac
  [ -e "$f" ] && { b="$b${f##*/} "; set -- "$@" "$f"; }
done
if [ $# != 0 ] && b=$(grep -D skip -Hns -E '^[[:space:]]*(@ERE@)' "$@"); then printf '%s\n' "$b" | sed 's/^/modprobe=/'; fi
