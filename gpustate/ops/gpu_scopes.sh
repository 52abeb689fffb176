# shellcheck shell=sh
# Defines gpu_scopes: prints the containers that lose their GPUs at a daemon-reload, one a line.
gpu_scopes() { # containers that lose their GPUs at a daemon-reload, one a line
  [ -d /run/systemd/system ] || return 0
  # shellcheck disable=SC2165 # the words are expanded before the inner loop
  # shellcheck disable=SC2167 # the words are expanded before the inner loop
  for scope in docker cri-containerd crio libpod nerdctl; do
    for scope in /run/systemd/transient/$scope-*.scope; do
      [ -e "$scope" ] || continue
      scope=${scope##*/} scope_group=
      scope_devices=
      scope_policy=
      while IFS= read -r scope_line; do
        case $scope_line in
          ControlGroup=*) scope_group=${scope_line#*=} ;;
          DeviceAllow=*) scope_devices="$scope_devices${scope_line#*=} " ;;
          DevicePolicy=*) scope_policy=${scope_line#*=} ;;
        esac
      done <<END
$(timeout -k 2 10 systemctl show -p ControlGroup -p DeviceAllow -p DevicePolicy "$scope")
END
      [ "$scope_policy" = auto ] && [ -z "${scope_devices% }" ] && continue
      case $scope_devices in *char-nvidia* | *'char-* rw'*) continue ;; esac
      # The hierarchies of cgroup v2, of systemd's own on v1, and of devices.
      scope_pid=$(sed -n 1p "/sys/fs/cgroup$scope_group/cgroup.procs" \
        "/sys/fs/cgroup/systemd$scope_group/cgroup.procs" \
        "/sys/fs/cgroup/devices$scope_group/cgroup.procs" 2>/dev/null) || :
      [ -n "$scope_pid" ] && [ -e "/proc/$scope_pid/root/dev/nvidiactl" ] || continue
      for scope_node in "/proc/$scope_pid/root/dev"/nvidia*; do
        [ ! -d "$scope_node" ] || continue
        # shellcheck disable=SC2046 # stat prints two numbers
        # shellcheck disable=SC2183 # stat prints two numbers
        scope_number=$(printf %d:%d $(stat -c '0x%t 0x%T' "$scope_node"))
        case " $scope_devices" in
          *" /dev/char/$scope_number "* | *" /dev/${scope_node##*/} "*) ;;
          *)
            echo "$scope"
            break
            ;;
        esac
      done
    done
  done
}
