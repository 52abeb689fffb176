"""The sh function that finds the containers which a ``systemctl daemon-reload`` would rob of their GPUs.

With the systemd cgroup driver a container is a scope, and systemd owns its list of devices. A hook that
injects GPUs behind runc's back writes to the cgroup itself; systemd writes its own list again at every
daemon-reload, and the GPUs are gone: NVML answers "Unknown Error" until the container is recreated. It is
the same where runc was told of the devices and /dev/char had no links for them, for it then leaves them out.

So a scope is judged by what systemd holds of it: processes that have /dev/nvidiactl in their root, and a
list of devices that names no GPU. Scopes are transient units, which have their files in one folder.

Sources:
    NVIDIA/nvidia-container-toolkit#48, discussion #1133; systemd.resource-control(5), DeviceAllow;
    systemd.unit(5), transient units.
"""

GPU_SCOPES = r"""
gpu_scopes() { # containers that lose their GPUs at a daemon-reload, one a line
  [ -d /run/systemd/system ] || return 0
  for gs in docker cri-containerd crio libpod nerdctl; do for gs in /run/systemd/transient/$gs-*.scope; do
    [ -e "$gs" ] || continue
    gs=${gs##*/} gg=; gd=; ga=
    while IFS= read -r gl; do
      case $gl in ControlGroup=*) gg=${gl#*=} ;; DeviceAllow=*) gd="$gd${gl#*=} " ;; DevicePolicy=*) ga=${gl#*=} ;; esac
    done <<END
$(timeout -k 2 10 systemctl show -p ControlGroup -p DeviceAllow -p DevicePolicy "$gs")
END
    [ "$ga" = auto ] && [ -z "${gd% }" ] && continue
    case $gd in *char-nvidia*|*/dev/nvidia*|*/dev/char/195:*|*'char-*'*) continue ;; esac
    for gf in "/sys/fs/cgroup$gg" "/sys/fs/cgroup/systemd$gg" "/sys/fs/cgroup/devices$gg"; do
      gp=; [ -r "$gf/cgroup.procs" ] && read -r gp <"$gf/cgroup.procs"
      [ -n "$gp" ] && [ -e "/proc/$gp/root/dev/nvidiactl" ] && { echo "$gs"; break; }
    done
  done; done
}
"""
