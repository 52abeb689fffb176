# shellcheck shell=sh
# Defines agents, which prints folder in /proc and name of each of root's processes that take work from a scheduler,
# without those in pods; and kubelet_units, the units that run a kubelet.
# shellcheck disable=SC2034 # kubelet_units: read by what follows
kubelet_units='kubelet k3s k3s-agent rke2-server rke2-agent'
agents() {
  for ap in /proc/[0-9]*; do
    an=; { read -r an <"$ap/comm"; } 2>/dev/null || continue
    case $an in kubelet|kubelite|slurmd|k3s|k3s-server|k3s-agent|rke2) ;; *) continue ;; esac
    ac=; { read -r ac <"$ap/cgroup"; } 2>/dev/null
    # One in a pod is the pod's, and a user may give any name to a process.
    case $ac in *kubepods*) continue ;; esac
    [ "$(stat -c %u "$ap" 2>/dev/null)" = 0 ] || continue
    printf '%s %s\n' "$ap" "${an%%-*}"
  done
}
