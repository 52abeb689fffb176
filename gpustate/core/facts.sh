# shellcheck shell=sh
# Prints what every probe learns of a node, as key=value. @FAMILY@ is sh that sets pm, the package manager. Expects agents.sh.
if [ -r /etc/os-release ]; then . /etc/os-release; fi
printf 'os_id=%s\nos_version=%s\nos_codename=%s\nos_like=%s\n' "${ID-}" "${VERSION_ID-}" "${VERSION_CODENAME-}" "${ID_LIKE-}"
printf 'machine=%s\n' "$(uname -m)"
if [ -n "${GPUSTATE_IMAGE-}" ]; then printf 'image=1\nimage_gpus=%s\n' "${GPUSTATE_IMAGE_GPUS-}"
else
  printf 'kernel=%s\n' "${KERNEL_RELEASE-$(uname -r)}"
  b=; read -r b </proc/sys/kernel/random/boot_id && printf 'boot_id=%s\n' "$b"
  { b=; read -r b </proc/sys/kernel/hostname && printf 'hostname=%s\n' "$b"
    b=; read -r b </etc/machine-id && printf 'machine_id=%s\n' "$b"
    b=; read -r b <"$SYS/class/dmi/id/product_uuid" && printf 'system_uuid=%s\n' "$b"
  } 2>/dev/null
  if [ -d /var/lib/kubelet ] || [ -d /var/lib/rancher ] || [ -d /var/lib/k0s ] || [ -d /var/snap/microk8s ] || [ -d /etc/slurm ] || command -v slurmd >/dev/null; then
    agents | sed 's/.* /agent=/'
    # One that is stopped: what it started still runs.
    # shellcheck disable=SC2154 # kubelet_units: set by agents.sh
    for b in $kubelet_units slurmd; do
      [ -L /etc/systemd/system/multi-user.target.wants/$b.service ] || continue
      [ $b != kubelet ] || [ -e /etc/kubernetes/kubelet.conf ] || [ -e /var/lib/kubelet/kubeconfig ] || continue
      printf 'joined=%s\n' "${b%%-*}"
    done
    # Slurm knows a node by its address, too.
    ! command -v slurmd >/dev/null || printf 'addresses=%s\n' "$(hostname -I 2>/dev/null)"
  fi
  if [ -e "$G/firstboot/program" ]; then
    b=pending; [ -e "$G/firstboot/result" ] && read -r b <"$G/firstboot/result"; printf 'first_boot=%s\n' "$b"
  fi
fi
[ -d /run/systemd/system ] && echo systemd=1
[ -e /run/systemd/container ] && echo container=1
p=$(command -v python3) && printf 'python3=%s\n' "$p"
for r in containerd crio dockerd k3s podman; do command -v $r >/dev/null && printf 'runtime=%s\n' "$r"; done
# shellcheck disable=SC2154 # pm: set by @FAMILY@
(@FAMILY@; p=$pm; [ "$pm" != apt ] || p=apt-get; [ -n "$p" ] && command -v $p >/dev/null && printf 'package_manager=%s\n' "$pm")
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v 2>/dev/null <"$d/vendor" || continue
  [ "$v" = 0x10de ] || continue
  read -r i <"$d/device"; read -r c <"$d/class"; k=-
  [ ! -e "$d/driver" ] || { cd -P "$d/driver" && k=${PWD##*/}; }
  printf 'pci=%s %s %s %s\n' "${d##*/}" "$i" "$c" "$k"
done
:
