# shellcheck shell=sh
# Defines gpu_scopes: prints the containers that lose their GPUs at a daemon-reload, one a line.
gpu_scopes() { # containers that lose their GPUs at a daemon-reload, one a line
  [ -d /run/systemd/system ] || return 0
  # shellcheck disable=SC2165 # the words are expanded before the inner loop
  # shellcheck disable=SC2167 # the words are expanded before the inner loop
  for gs in docker cri-containerd crio libpod nerdctl; do for gs in /run/systemd/transient/$gs-*.scope; do
    [ -e "$gs" ] || continue
    gs=${gs##*/} gg=; gd=; ga=
    while IFS= read -r gl; do
      case $gl in ControlGroup=*) gg=${gl#*=} ;; DeviceAllow=*) gd="$gd${gl#*=} " ;; DevicePolicy=*) ga=${gl#*=} ;; esac
    done <<END
$(timeout -k 2 10 systemctl show -p ControlGroup -p DeviceAllow -p DevicePolicy "$gs")
END
    [ "$ga" = auto ] && [ -z "${gd% }" ] && continue
    case $gd in *char-nvidia*|*/dev/nvidia*|*/dev/char/195:*|*'char-* rw'*) continue ;; esac
    for gf in "/sys/fs/cgroup$gg" "/sys/fs/cgroup/systemd$gg" "/sys/fs/cgroup/devices$gg"; do
      gp=; [ -r "$gf/cgroup.procs" ] && read -r gp <"$gf/cgroup.procs"
      [ -n "$gp" ] && [ -e "/proc/$gp/root/dev/nvidiactl" ] && { echo "$gs"; break; }
    done
  done; done
}
