# shellcheck shell=sh
# Prints what a bug report needs of a node: for each item a line "item NAME BASE64", its last line
# the exit status. Reads run (an id, or empty for the newest), units (words), lines (of each log),
# limit (bytes of each item) and G.
# shellcheck disable=SC2154 # the variables above are set ahead of this
item() { # name command
  encoded=$({
    timeout -k 1 10 sh -c "$2" 2>&1 </dev/null
    printf '\n%s' "$?"
  } | tail -c "$limit" | base64 | tr -d '\n')
  printf 'item %s %s\n' "$1" "$encoded"
}
file() { # path
  [ -f "$1" ] && [ -r "$1" ] || return 0
  item "files$1" "tail -c $limit '$1'"
}
item system 'cat /etc/os-release; uname -a; uptime; cat /proc/cmdline; free -m
  df -h / /boot /var /run 2>/dev/null; exit 0'
item modules 'grep -E "^(nvidia|nouveau|nova|gdrdrv|i2c_nvidia|mlx|ib_|vfio)" /proc/modules
  cat /proc/driver/nvidia/version /proc/driver/nvidia/params; dkms status; exit 0'
item pci 'lspci -nnk -d 10de:'
item nvidia-smi 'command -v nvidia-smi >/dev/null || {
  echo "nvidia-smi is not installed"; exit 127; }; nvidia-smi -q'
item kernel-log "{ dmesg -T || dmesg || journalctl -k -b --no-pager; } 2>/dev/null |
  grep -E 'NVRM|Xid|nvidia|nouveau|nova_core|NVSwitch' | tail -n $lines"
of_gpus='nvidia|cuda|nv(link|lsm)|datacenter|dcgm|containerd|docker|moby|podman|cri-o|runc|kube'
of_gpus="$of_gpus|slurm|dkms|kmod|mlnx|ofed|(linux|kernel)[^ ]*(image|headers|core|devel)"
item packages "{
  dpkg-query -W -f '\${db:Status-Abbrev} \${Package} \${Version} \${Architecture}\n' 2>/dev/null ||
    rpm -qa --qf '%{NAME} %{EVR} %{ARCH}\n'; } | grep -E '$of_gpus' | sort"
item failed-units 'systemctl --no-pager --no-legend list-units --failed'
for unit in $units; do
  # A unit that the node does not have has nothing to tell.
  systemctl cat -- "$unit" >/dev/null 2>&1 || continue
  item "units/$unit" "systemctl --no-pager --full --lines=0 status -- '$unit'
    journalctl --no-pager -n $lines -u '$unit'"
done
for f in /etc/containerd/config.toml /etc/containerd/conf.d/*.toml /etc/docker/daemon.json \
  /etc/crio/crio.conf /etc/crio/crio.conf.d/*.conf /etc/nvidia-container-runtime/config.toml \
  /etc/cdi/*.yaml /etc/cdi/*.json /run/cdi/*.yaml /run/cdi/*.json /etc/modprobe.d/*nvidia* \
  /etc/modprobe.d/*nouveau* /etc/modprobe.d/*gpustate* /etc/nvidia-mig-manager/*.yaml \
  /var/lib/rancher/k3s/agent/etc/containerd/config.toml \
  /var/lib/rancher/rke2/agent/etc/containerd/config.toml \
  /etc/k0s/containerd.toml /etc/slurm/gres.conf /run/slurm/conf/gres.conf; do
  case $f in *[!A-Za-z0-9._/-]*) continue ;; esac
  file "$f"
done
item gpustate "ls -lan '$G' '$G/runs'; cat '$G/lock/info' 2>/dev/null; exit 0"
file "$G/proof.json"
run_name=$run
if [ -z "$run_name" ]; then
  for d in "$G"/runs/*; do
    case $d in *.new | *'/*') ;; *) run_name=${d##*/} ;; esac
  done
fi
case $run_name in *[!A-Za-z0-9._-]*) run_name= ;; esac
present=0
# A run has a folder for each of its stages.
for d in "$G/runs/$run_name" "$G/runs/$run_name"-[0-9]*; do
  [ -n "$run_name" ] && [ -d "$d" ] || continue
  present=1
  prefix=run/${d##*/}
  item "$prefix/info" "cat '$d/info'"
  item "$prefix/journal" "cat '$d/journal'"
  item "$prefix/output" "cd '$d' && for log in out.*; do
    [ ! -f \"\$log\" ] || { echo \"== \$log\"; tail -n $lines \"\$log\"; }; done"
done
[ $present = 1 ] || [ -z "$run_name" ] || printf 'absent run/%s\n' "$run_name"
echo complete
