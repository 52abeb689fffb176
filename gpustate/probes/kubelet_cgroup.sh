# shellcheck shell=sh
# Prints kubelet_cgroup=DRIVER|WHERE where a kubelet runs and names its cgroup driver.
for kp in /proc/[0-9]*/comm; do
  ks=; { read -r ks <"$kp"; } 2>/dev/null || :
  [ "$ks" = kubelet ] || continue
  kp=${kp%/comm}; kd=; kf=; kn=
  for kw in $(tr '\0' '\n' <"$kp/cmdline"); do
    case $kn$kw in
      --cgroup-driver=*) kd=${kw#*=} ;; --config=*) kf=${kw#*=} ;;
      driver:*) kd=$kw ;; config:*) kf=$kw ;;
    esac
    kn=; case $kw in --cgroup-driver) kn=driver: ;; --config) kn=config: ;; esac
  done
  # A file is YAML or JSON; what the command line says has the last word.
  if [ -n "$kd" ]; then echo "kubelet_cgroup=$kd|kubelet --cgroup-driver"
  elif [ -r "$kf" ]; then
    kd=$(sed -n 's/^[[:space:]]*"\{0,1\}cgroupDriver"\{0,1\}:[[:space:]]*"\{0,1\}\([a-z]*\).*/\1/p' "$kf" | head -n 1)
    [ -z "$kd" ] || echo "kubelet_cgroup=$kd|$kf"
  fi
  break
done
