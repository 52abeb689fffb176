# shellcheck shell=sh
# Prints odd= for what is there instead of one of the files @PATHS@, words; then what @CONTENTS@,
# sh, prints of those that are there: their paths are in k, a line each. Reads PROC and SYS. Expects
# odd.
# shellcheck disable=SC2034 # k: read by @CONTENTS@
set --
k=
# shellcheck disable=SC2043 # @PATHS@ are several words
for f in @PATHS@; do
  rooted=$f
  case $f in /proc/*) rooted=$PROC/${f#/proc/} ;; /sys/*) rooted=$SYS/${f#/sys/} ;; esac
  if [ -f "$rooted" ]; then
    set -- "$@" "$rooted"
    k="$k$f
"
    continue
  fi
  # A link that leads nowhere is replaced; some are meant to, such as those of alternatives.
  case $f in
    /proc/* | /sys/*) ;;
    *) [ -L "$f" ] && [ ! -e "$f" ] || odd "$f" ;;
  esac
done
@CONTENTS@
