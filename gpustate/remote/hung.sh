# shellcheck shell=sh
# Waits for the answer, which goes through gzip in the background. At SIGURG, which timeout sends to the group that it
# leads once the time is over, ends what was started and prints @NONCE@, hung and the names of its programs.
p=$!; h=
members() { # PIDS and NAMES of our descendants and of what else is in the group, but not of gzip
  PIDS=" $$ $PPID $p "; NAMES=; m=1
  while [ $m ]; do
    m=
    for d in /proc/[0-9]*; do
      d=${d#/proc/}; case $PIDS in *" $d "*) continue ;; esac
      l=; { read -r l <"/proc/$d/stat"; } 2>/dev/null || continue
      # shellcheck disable=SC2086 # words: state, parent, group
      set -- ${l##*) }
      [ "$3" = $PPID ] || case $PIDS in *" $2 "*) [ "$2" != $PPID ] || continue ;; *) continue ;; esac
      PIDS="$PIDS$d "; l=${l#*(}; l=${l%)*}; m=1
      case " $NAMES " in *" $l "*) ;; *) case $l in sh|dash|bash|timeout|gzip) ;; *) NAMES="$NAMES $l" ;; esac ;; esac
    done
  done
  PIDS=${PIDS#" $$ $PPID $p "}
}
end_members() {
  trap '' URG
  members; h=${NAMES:- sh}
  # shellcheck disable=SC2086 # a list
  for d in TERM KILL; do kill -$d $PIDS; sleep 1; members; done
}
trap end_members URG
wait $p || wait $p
[ -z "$h" ] || printf '\n@NONCE@ hung%s\n' "$h"
