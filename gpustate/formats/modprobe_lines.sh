# shellcheck shell=sh
# Prints modprobe=FILE:NUMBER:LINE for lines that begin with @ERE@. @FILES@ are shell patterns,
# those that win first; both are syntax, so that no variable can hold them.
set --
known_names=' '
# shellcheck disable=SC2043 # @FILES@ are several patterns
for f in @FILES@; do
  # A name found twice is read from the first folder only.
  case $known_names in *" ${f##*/} "*) continue ;; esac
  [ -e "$f" ] && {
    known_names="$known_names${f##*/} "
    set -- "$@" "$f"
  }
done
if [ $# != 0 ] && known_names=$(grep -D skip -Hns -E '^[[:space:]]*(@ERE@)' "$@"); then
  printf '%s\n' "$known_names" | sed 's/^/modprobe=/'
fi
