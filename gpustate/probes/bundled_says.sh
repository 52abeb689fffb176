# shellcheck shell=sh
# Prints the rows of cri_says of the kubelet's own socket or the first of @SOCKETS@, words, that
# somebody listens at, each with bundled_ ahead; not of the containerd in PATH, CRI-O and docker,
# which are queried elsewhere. Expects kubelet_cgroup.sh and cri_says.
# shellcheck disable=SC2154 # kubelet_endpoint: set by kubelet_cgroup.sh
for bundled_socket in "${kubelet_endpoint#unix://}" @SOCKETS@; do
  case $bundled_socket in
    '' | */crio.sock | *dockerd*) continue ;;
    */run/containerd/containerd.sock) ! command -v containerd >/dev/null || continue ;;
  esac
  grep -qs " $bundled_socket\$" /proc/net/unix || continue
  cri_says "$bundled_socket" | sed 's/^/bundled_/'
  break
done
