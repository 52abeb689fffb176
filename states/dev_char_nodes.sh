# shellcheck shell=sh
# Defines nodes: it prints device nodes that containers may get. NVIDIA's tool links none of those
# of GDS, NVSwitch and NVLink, and so they would have no link again after the next boot.
nodes() {
  for node in /dev/nvidia* /dev/nvidia-caps/* /dev/nvidia-caps-imex-channels/*; do
    case ${node##*/} in nvidia-fs* | nvidia-nvswitch* | nvidia-nvlink*) continue ;; esac
    [ -c "$node" ] && printf '%s\n' "$node"
  done
}
