# shellcheck shell=sh
# Defines working for a containerd, as gpustate.ops.daemons has it. Reads CONTAINERD (its program)
# and SOCKET.
working() { # the state of the CRI plugins; fails when containerd does not answer
  client=${CONTAINERD%/*}/ctr
  [ -x "$client" ] || client=$(command -v ctr) || {
    [ -S "$SOCKET" ]
    return
  }
  plugins=$(timeout -k 2 5 "$client" -a "$SOCKET" plugins ls) || return 1
  printf '%s\n' "$plugins" | while read -r plugin_type plugin plugin_state; do
    case "$plugin_type $plugin" in 'io.containerd.grpc.v1 cri' | 'io.containerd.cri.v1 '*)
      plugin_state=${plugin_state% }
      echo "$plugin_type $plugin ${plugin_state##* }"
      ;;
    esac
  done
}
