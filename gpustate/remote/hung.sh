# shellcheck shell=sh
# Waits for the answer, which goes through gzip in the background. At SIGURG, which timeout sends to
# the group that it leads once the time is over, ends what was started and prints @NONCE@, hung and
# the names of its programs.
gzip_pid=$!
hung=
members() { # PIDS and NAMES of our descendants and of what else is in the group, but not of gzip
  PIDS=" $$ $PPID $gzip_pid "
  NAMES=
  more=1
  while [ $more ]; do
    more=
    for pid in /proc/[0-9]*; do
      pid=${pid#/proc/}
      case $PIDS in *" $pid "*) continue ;; esac
      stat=
      { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
      # shellcheck disable=SC2086 # words: state, parent, group
      set -- ${stat##*) }
      [ "$3" = $PPID ] || case $PIDS in
        *" $2 "*) [ "$2" != $PPID ] || continue ;;
        *) continue ;;
      esac
      PIDS="$PIDS$pid "
      stat=${stat#*(}
      stat=${stat%)*}
      more=1
      case " $NAMES " in
        *" $stat "*) ;;
        *) case $stat in sh | dash | bash | timeout | gzip) ;; *) NAMES="$NAMES $stat" ;; esac ;;
      esac
    done
  done
  PIDS=${PIDS#" $$ $PPID $gzip_pid "}
}
end_members() {
  trap '' URG
  members
  hung=${NAMES:- sh}
  # shellcheck disable=SC2086 # a list
  for signal in TERM KILL; do
    kill -$signal $PIDS
    sleep 1
    members
  done
}
trap end_members URG
wait $gzip_pid || wait $gzip_pid
[ -z "$hung" ] || printf '\n@NONCE@ hung%s\n' "$hung"
