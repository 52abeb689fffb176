# shellcheck shell=sh
# Prints what the kubelet, the device plugin, Slurm and the GPU Operator left on the node. Expects
# kernel.sh and slurm_configless.sh.
plugins=/var/lib/kubelet/device-plugins
[ -d "$plugins" ] && echo kubelet_folder=1
set --
for f in "$plugins"/*.sock; do [ -e "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || stat -c 'socket=%n|%Y' "$@"
[ -r "$plugins/kubelet_internal_checkpoint" ] &&
  {
    tr -d '\n' <"$plugins/kubelet_internal_checkpoint"
    echo
  } | sed -n 's/.*"RegisteredDevices": *\({[^}]*}\).*/registered=\1/p'
for f in /var/log/pods/*nvidia-device-plugin*; do
  [ -d "$f" ] || continue
  printf 'plugin_pod=%s\n' "${f##*/}"
  for log in "$f"/*/*.log; do
    [ -f "$log" ] && printf 'plugin_log=%s\n' "$(tail -n 1 "$log" | cut -c 1-300)"
  done
done
node=
read -r node </proc/sys/kernel/hostname
slice='slice={.attributes.type.string}|{.attributes.uuid.string}|{.name}'
for f in /etc/kubernetes/kubelet.conf /var/lib/rancher/k3s/agent/kubelet.kubeconfig \
  /var/lib/rancher/rke2/agent/kubelet.kubeconfig; do
  [ -r "$f" ] || continue
  set -- kubectl
  have k3s && set -- k3s kubectl
  [ -x /var/lib/rancher/rke2/bin/kubectl ] && set -- /var/lib/rancher/rke2/bin/kubectl
  set -- "$@" --kubeconfig="$f" --cache-dir=/dev/null --request-timeout=2s get
  answer=$(try "$@" node "$node" -o json) &&
    printf 'kube_node=%s\n' "$(printf '%s' "$answer" | tr '\n' ' ')"
  [ -d "${plugins%/*}/plugins/gpu.nvidia.com" ] &&
    try "$@" resourceslices --field-selector "spec.nodeName=$node,spec.driver=gpu.nvidia.com" \
      -o jsonpath='{range .items[*].spec.devices[*]}'"$slice"'{"\n"}{end}'
  break
done
have scontrol && try scontrol show node "${node%%.*}" -o | sed 's/^/slurm=/'
f=/etc/slurm
# As slurmd does: without the option it looks for its own file first.
{ configless slurmd.service || [ ! -e "$f/slurm.conf" ]; } &&
  [ -e /run/slurm/conf/slurm.conf ] && f=/run/slurm/conf
f=$f/gres.conf
[ -f "$f" ] &&
  sed -n -e "/^[^#]*NodeName=/{/NodeName=${node%%.*}\>/!d;}" \
    -e 's/^[^#]*\<Name=gpu\>[^#]*\<Type=\([^ #]*\).*/gres_type=\1/p' "$f" | sort -u
for f in /run/nvidia /run/nvidia/validations; do
  if [ -e "$f" ]; then
    [ -d "$f" ] || printf 'no_folder=%s|a %s\n' "$f" "$(stat -c %F "$f")"
  elif [ -L "$f" ]; then
    printf 'no_folder=%s|a link to %s, which does not exist\n' "$f" "$(readlink "$f")"
  fi
done
grep -qs '"status_files": true' "$G/validator/config.json" && echo results_wanted=1
for f in /run/nvidia/validations/*-ready; do
  [ -e "$f" ] && printf 'status_file=%s\n' "${f##*/}"
done
for f in /etc/kubernetes/node-feature-discovery/features.d/*; do
  [ -f "$f" ] && sed -n 's/^nvidia\.com\/\(gpu\.count\|mig\.strategy\)=/label=\1|/p' "$f"
done
f=/etc/nvidia-device-plugin/config.yaml
[ -f "$f" ] && {
  echo plugin_config=
  head -c 65536 "$f" | sed 's/^/plugin_config=/'
  echo
}
grep -hs -E 'systemctl.*(stop|restart).*kubelet|kubelet' /etc/nvidia-mig-manager/hooks.yaml |
  head -n 2 | sed 's/^ */mig_hook=/'
for run in "$G"/runs/*; do
  [ -e "$run/journal" ] && ! grep -qs '"e": *"end"' "$run/journal" &&
    printf 'open_run=%s\n' "${run##*/}"
done
echo complete=1
