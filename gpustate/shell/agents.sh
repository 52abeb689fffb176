# shellcheck shell=sh
# Defines agents, which prints folder in /proc and name of each of root's processes that take work
# from a scheduler, without those in pods; and kubelet_units, the units that run a kubelet.
# shellcheck disable=SC2034 # kubelet_units: read by what follows
kubelet_units='kubelet k3s k3s-agent rke2-server rke2-agent'
agents() {
  for agent_process in /proc/[0-9]*; do
    agent_name=
    { read -r agent_name <"$agent_process/comm"; } 2>/dev/null || continue
    case $agent_name in
      kubelet | kubelite | slurmd | k3s | k3s-server | k3s-agent | rke2) ;;
      *) continue ;;
    esac
    agent_cgroup=
    { read -r agent_cgroup <"$agent_process/cgroup"; } 2>/dev/null
    # One in a pod is the pod's, and a user may give any name to a process.
    case $agent_cgroup in *kubepods*) continue ;; esac
    [ "$(stat -c %u "$agent_process" 2>/dev/null)" = 0 ] || continue
    printf '%s %s\n' "$agent_process" "${agent_name%%-*}"
  done
}
