# shellcheck shell=sh
# Prints kubelet=1 where a kubelet runs or starts at boot. Of one that runs: kubelet_endpoint=SOCKET of its runtime, and
# kubelet_cgroup=DRIVER|WHERE where it names its cgroup driver.
kd=; ke=; kf=; kc=; kp=
for kp in /etc/systemd/system/*.wants/kubelet.service; do [ ! -L "$kp" ] || echo kubelet=1; done
for kp in /proc/[0-9]*/comm; do
  ks=; { read -r ks <"$kp"; } 2>/dev/null || :
  [ "$ks" = kubelet ] && [ "$(stat -c %u "$kp" 2>/dev/null)" = 0 ] || continue
  echo kubelet=1; kp=${kp%/comm}; kn=
  for kw in $(tr '\0' '\n' <"$kp/cmdline"); do
    case $kn$kw in
      --cgroup-driver=*|driver:*) kd=${kw#*=} ;; --config=*|config:*) kf=${kw#*=} ;; --config-dir=*|dir:*) kc=${kw#*=} ;;
      --container-runtime-endpoint=*|endpoint:*) ke=${kw#*=} ;;
    esac
    kn=; case $kw in --cgroup-driver) kn=driver: ;; --config) kn=config: ;; --config-dir) kn=dir: ;; --container-runtime-endpoint) kn=endpoint: ;; esac
  done
  # A file is YAML or JSON; of the files the last that has a key has its value, and the command line has the last word.
  key() { sed -n 's/^[[:space:]]*"\{0,1\}'"$1"'"\{0,1\}:[[:space:]]*"\{0,1\}\([^",[:space:]]*\).*/\1/p' "$2" | head -n 1; }
  [ -z "$kd" ] || echo "kubelet_cgroup=$kd|kubelet --cgroup-driver"
  kv=; kw=; ks=
  for kn in "$kf" "${kc:-/none}"/*.conf; do
    [ -r "$kn" ] || continue
    ku=$(key cgroupDriver "$kn"); [ -z "$ku" ] || { kv=$ku; kw=$kn; }
    ku=$(key containerRuntimeEndpoint "$kn"); [ -z "$ku" ] || ks=$ku
  done
  [ -n "$kd" ] || [ -z "$kv" ] || echo "kubelet_cgroup=$kv|$kw"
  ke=${ke:-$ks}; echo "kubelet_endpoint=${ke#unix://}"
  break
done
