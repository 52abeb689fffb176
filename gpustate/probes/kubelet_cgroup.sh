# shellcheck shell=sh
# Prints kubelet=1 where a kubelet runs or starts at boot. Of one that runs: kubelet_endpoint=SOCKET
# of its runtime, and kubelet_cgroup=DRIVER|WHERE where it names its cgroup driver. Expects
# agents.sh.
kubelet_driver=
kubelet_endpoint=
kubelet_config=
kubelet_config_dir=
kubelet_process=
# shellcheck disable=SC2154 # kubelet_units: set by agents.sh
for kubelet_process in $kubelet_units; do
  for kubelet_link in /etc/systemd/system/*.wants/"$kubelet_process".service; do
    [ ! -L "$kubelet_link" ] || echo kubelet=1
  done
done
# RKE2's own process starts a kubelet; that of k3s and of MicroK8s is one.
kubelet_process=$(agents | sed -n '/ slurmd$/d; / rke2$/d; s/ .*//p; q')
if [ -n "$kubelet_process" ]; then
  echo kubelet=1
  kubelet_option=
  for kubelet_word in $(tr '\0' '\n' <"$kubelet_process/cmdline"); do
    case $kubelet_option$kubelet_word in
      --cgroup-driver=* | driver:*) kubelet_driver=${kubelet_word#*=} ;;
      --config=* | config:*) kubelet_config=${kubelet_word#*=} ;;
      --config-dir=* | dir:*) kubelet_config_dir=${kubelet_word#*=} ;;
      --container-runtime-endpoint=* | endpoint:*) kubelet_endpoint=${kubelet_word#*=} ;;
    esac
    kubelet_option=
    case $kubelet_word in
      --cgroup-driver) kubelet_option=driver: ;;
      --config) kubelet_option=config: ;;
      --config-dir) kubelet_option=dir: ;;
      --container-runtime-endpoint) kubelet_option=endpoint: ;;
    esac
  done
  # A file is YAML or JSON; of the files the last that has a key has its value, and the command line
  # has the last word.
  key() {
    sed -n 's/^[[:space:]]*"\{0,1\}'"$1"'"\{0,1\}:[[:space:]]*"\{0,1\}\([^",[:space:]]*\).*/\1/p' \
      "$2" | head -n 1
  }
  [ -z "$kubelet_driver" ] || echo "kubelet_cgroup=$kubelet_driver|kubelet --cgroup-driver"
  file_driver=
  driver_file=
  file_endpoint=
  for config_file in "$kubelet_config" "${kubelet_config_dir:-/none}"/*.conf; do
    [ -r "$config_file" ] || continue
    config_value=$(key cgroupDriver "$config_file")
    [ -z "$config_value" ] || {
      file_driver=$config_value
      driver_file=$config_file
    }
    config_value=$(key containerRuntimeEndpoint "$config_file")
    [ -z "$config_value" ] || file_endpoint=$config_value
  done
  [ -n "$kubelet_driver" ] || [ -z "$file_driver" ] ||
    echo "kubelet_cgroup=$file_driver|$driver_file"
  kubelet_endpoint=${kubelet_endpoint:-$file_endpoint}
  echo "kubelet_endpoint=${kubelet_endpoint#unix://}"
fi
