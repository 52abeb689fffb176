# shellcheck shell=sh
# Prints the control program, strange files of the pipe folder, daemons that are not gpustate's, and
# what the daemon answers. Reads G; PIPES (pipe folder), INSIDE (paths below folders), CONTROL and
# UNIT; calls odd.
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
odd $INSIDE || exit 0
control=$CONTROL
if [ -x "$control" ]; then echo control=1; else control=; fi
for f in "$PIPES"/* "$PIPES"/.[!.]*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  case ${f##*/} in
    *control* | *lock* | *mps* | *.pid | log) ;;
    *)
      printf 'strange=%s\n' "${f##*/}"
      break
      ;;
  esac
done
[ -r "$G/mps-proof" ] && {
  read -r proof <"$G/mps-proof"
  printf 'proof=%s\n' "$proof"
}
[ -n "$control" ] && for f in /proc/[0-9]*/comm; do
  read -r command 2>/dev/null <"$f" || continue
  case $command in nvidia-cuda-mps)
    process=${f%/comm}
    command_line=$(tr '\0' ' ' <"$process/cmdline")
    case $command_line in *mps-control*)
      pid=${process#/proc/}
      own=
      while read -r line; do
        case $line in */"$UNIT"*) own=1 ;; esac
      done <"$process/cgroup"
      if [ -z "$own" ]; then
        [ -d "$process" ] || continue # it ended while it was looked at
        printf 'daemon=%s|%s\n' "$pid" "$(tr '\0' '\n' <"$process/environ" |
          sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')"
        continue
      fi
      ;;
    esac
    ;;
  esac
done
CUDA_MPS_PIPE_DIRECTORY=$PIPES
export CUDA_MPS_PIPE_DIRECTORY
if [ -n "$control" ] && [ -e "$PIPES/control" ]; then
  say() { printf '%s\n' "$@" | timeout -k 2 10 "$control" 2>/dev/null; }
  if answer=$(say get_default_active_thread_percentage get_server_list); then
    set --
    for server in $answer; do
      case $server in *[!0-9]*) ;; *) set -- "$@" "get_client_list $server" ;; esac
    done
    printf 'threads=%s\n' "${answer%%[[:space:]]*}"
    [ $# = 0 ] || for client in $(say "$@"); do printf 'client=%s\n' "$client"; done
  fi
fi
:
