# shellcheck shell=sh
# Prints what every probe learns of a node, as key=value. @FAMILY@ is sh that sets pm, the package
# manager. Expects agents.sh.
if [ -r /etc/os-release ]; then . /etc/os-release; fi
printf 'os_id=%s\nos_version=%s\nos_codename=%s\nos_like=%s\n' "${ID-}" "${VERSION_ID-}" \
  "${VERSION_CODENAME-}" "${ID_LIKE-}"
printf 'machine=%s\n' "$(uname -m)"
if [ -n "${GPUSTATE_IMAGE-}" ]; then
  printf 'image=1\nimage_gpus=%s\n' "${GPUSTATE_IMAGE_GPUS-}"
else
  printf 'kernel=%s\n' "${KERNEL_RELEASE-$(uname -r)}"
  value=
  read -r value </proc/sys/kernel/random/boot_id && printf 'boot_id=%s\n' "$value"
  {
    value=
    read -r value </proc/sys/kernel/hostname && printf 'hostname=%s\n' "$value"
    value=
    read -r value </etc/machine-id && printf 'machine_id=%s\n' "$value"
    value=
    read -r value <"$SYS/class/dmi/id/product_uuid" && printf 'system_uuid=%s\n' "$value"
  } 2>/dev/null
  if [ -d /var/lib/kubelet ] || [ -d /var/lib/rancher ] || [ -d /var/lib/k0s ] ||
    [ -d /var/snap/microk8s ] || [ -d /etc/slurm ] || command -v slurmd >/dev/null; then
    agents | sed 's/.* /agent=/'
    # One that is stopped: what it started still runs.
    # shellcheck disable=SC2154 # kubelet_units: set by agents.sh
    for value in $kubelet_units slurmd; do
      [ -L /etc/systemd/system/multi-user.target.wants/$value.service ] || continue
      [ $value != kubelet ] || [ -e /etc/kubernetes/kubelet.conf ] ||
        [ -e /var/lib/kubelet/kubeconfig ] || continue
      printf 'joined=%s\n' "${value%%-*}"
    done
    for value in /etc/systemd/system/*.wants/*device-plugin.service \
      /sys/fs/cgroup/system.slice/*device-plugin.service; do
      [ ! -e "$value" ] || echo device_plugin=1
    done
    # Slurm knows a node by its address, too.
    ! command -v slurmd >/dev/null || printf 'addresses=%s\n' "$(hostname -I 2>/dev/null)"
  fi
  if [ -e "$G/firstboot/program" ]; then
    value=pending
    [ -e "$G/firstboot/result" ] && read -r value <"$G/firstboot/result"
    printf 'first_boot=%s\n' "$value"
  fi
fi
[ -d /run/systemd/system ] && echo systemd=1
[ -e /run/systemd/container ] && echo container=1
program=$(command -v python3) && printf 'python3=%s\n' "$program"
for runtime in containerd crio dockerd k3s podman; do
  command -v $runtime >/dev/null && printf 'runtime=%s\n' "$runtime"
done
# shellcheck disable=SC2154 # pm: set by @FAMILY@
(
  @FAMILY@
  program=$pm
  [ "$pm" != apt ] || program=apt-get
  # dnf 5 has other commands, answers and locks than dnf 4.
  [ "$pm" != dnf ] || case $(readlink -f "$(command -v dnf)") in *5) pm=dnf5 ;; esac
  [ -n "$program" ] && command -v $program >/dev/null && printf 'package_manager=%s\n' "$pm"
)
for device in "$SYS"/bus/pci/devices/*; do
  vendor=
  read -r vendor 2>/dev/null <"$device/vendor" || continue
  [ "$vendor" = 0x10de ] || continue
  read -r device_id <"$device/device"
  read -r class <"$device/class"
  driver=-
  [ ! -e "$device/driver" ] || { cd -P "$device/driver" && driver=${PWD##*/}; }
  printf 'pci=%s %s %s %s\n' "${device##*/}" "$device_id" "$class" "$driver"
done
:
