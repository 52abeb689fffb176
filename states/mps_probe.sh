# shellcheck shell=sh
# Prints the control program, strange files of the pipe folder, daemons that are not gpustate's, and what the daemon answers.
# Reads G; PIPES (pipe folder), INSIDE (paths below folders), CONTROL and UNIT; calls odd.
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
odd $INSIDE || exit 0
c=$CONTROL; [ -x "$c" ] && echo control=1 || c=
for f in "$PIPES"/* "$PIPES"/.[!.]*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  case ${f##*/} in *control*|*lock*|*mps*|*.pid|log) ;; *) printf 'strange=%s\n' "${f##*/}"; break ;; esac
done
[ -r "$G/mps-proof" ] && { read -r p <"$G/mps-proof"; printf 'proof=%s\n' "$p"; }
[ -n "$c" ] && for f in /proc/[0-9]*/comm; do
  read -r n 2>/dev/null <"$f" || continue
  case $n in nvidia-cuda-mps) q=${f%/comm}; a=$(tr '\0' ' ' <"$q/cmdline"); case $a in *mps-control*)
    m=${q#/proc/}; own=; while read -r g; do case $g in */"$UNIT"*) own=1 ;; esac; done <"$q/cgroup"
    if [ -z "$own" ]; then
      [ -d "$q" ] || continue # it ended while it was looked at
      printf 'daemon=%s|%s\n' "$m" "$(tr '\0' '\n' <"$q/environ" | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')"
      continue
    fi
    ;; esac;; esac
done
CUDA_MPS_PIPE_DIRECTORY=$PIPES; export CUDA_MPS_PIPE_DIRECTORY
if [ -n "$c" ] && [ -e "$PIPES/control" ]; then
  say() { printf '%s\n' "$@" | timeout -k 2 10 "$c" 2>/dev/null; }
  if t=$(say get_default_active_thread_percentage get_server_list); then
    set --; for v in $t; do case $v in *[!0-9]*) ;; *) set -- "$@" "get_client_list $v" ;; esac; done
    printf 'threads=%s\n' "${t%%[[:space:]]*}"
    [ $# = 0 ] || for k in $(say "$@"); do printf 'client=%s\n' "$k"; done
  fi
fi
:
