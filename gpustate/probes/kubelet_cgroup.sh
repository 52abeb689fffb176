# shellcheck shell=sh
# Prints kubelet=1 where a kubelet runs or starts at boot. Of one that runs: kubelet_endpoint=SOCKET of its runtime, and
# kubelet_cgroup=DRIVER|WHERE where it names its cgroup driver. Expects agents.sh.
kd=; ke=; kf=; kc=; kp=
# shellcheck disable=SC2154 # kubelet_units: set by agents.sh
for kp in $kubelet_units; do
  for ks in /etc/systemd/system/*.wants/"$kp".service; do [ ! -L "$ks" ] || echo kubelet=1; done
done
# RKE2's own process starts a kubelet; that of k3s and of MicroK8s is one.
kp=$(agents | sed -n '/ slurmd$/d; / rke2$/d; s/ .*//p; q')
if [ -n "$kp" ]; then
  echo kubelet=1; kn=
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
fi
