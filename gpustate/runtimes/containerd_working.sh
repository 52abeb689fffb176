# shellcheck shell=sh
# Defines working for a containerd, as gpustate.ops.daemons has it. Reads CONTAINERD (its program) and SOCKET.
working() { # the state of the CRI plugins; fails when containerd does not answer
  c=${CONTAINERD%/*}/ctr; [ -x "$c" ] || c=$(command -v ctr) || { [ -S "$SOCKET" ]; return; }
  a=$(timeout -k 2 5 "$c" -a "$SOCKET" plugins ls) || return 1
  printf '%s\n' "$a" | while read -r y i s; do
    case "$y $i" in 'io.containerd.grpc.v1 cri' | 'io.containerd.cri.v1 '*) s=${s% }; echo "$y $i ${s##* }" ;; esac
  done
}
