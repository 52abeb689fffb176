# shellcheck shell=sh
# Prints PCI devices, device nodes, network cards, modules, packages and repositories. Expects kernel.sh.
# shellcheck disable=SC2154 # m: set by kernel.sh
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v <"$d/vendor" || continue
  [ "$v" = 0x10de ] && [ -r "$d/config" ] || continue
  case $(od -An -tx4 -N4 "$d/config") in *ffffffff) printf 'gone=%s\n' "${d##*/}" ;; esac
done
for f in "$SYS"/class/infiniband/*/device/vpd; do
  [ -r "$f" ] && grep -qa SW_MNG "$f" && { f=${f%/device/vpd}; printf 'sw_mng=%s\n' "${f##*/}"; }
done
for d in "$SYS"/class/infiniband/*; do [ -e "$d" ] && printf 'rdma=%s\n' "${d##*/}"; done
set --; for f in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do [ -d "$f" ] || [ ! -e "$f" ] || set -- "$@" "$f"; done
[ $# = 0 ] || stat -L -c 'device_mode=%n|%a|%u:%g' "$@"
grep -sE '^(DeviceFileMode|DeviceFileUID|DeviceFileGID|ModifyDeviceFiles): ' "$PROC/driver/nvidia/params" | sed 's/^\([A-Za-z]*\): */params=\1|/'
for n in ib_umad mlx5_ib ib_core nvidia_peermem nvidia_uvm; do
  [ -d "$SYS/module/$n" ] || grep -qs "^$n " "$PROC/modules" || continue
  printf 'module=%s\n' $n
done
grep -D skip -Hs -E '^[[:space:]]*nvidia' /etc/modules /etc/modules-load.d/*.conf | sed 's/^\([^:]*\):[[:space:]]*/autoload=\1|/'
[ -e /etc/nvidia-imex/nodes_config.cfg ] &&
  printf 'imex_nodes=%s\n' "$(grep -D skip -c '^[[:space:]]*[0-9a-fA-F]' /etc/nvidia-imex/nodes_config.cfg)"
l=; [ -r "$PROC/driver/nvidia/version" ] && read -r l <"$PROC/driver/nvidia/version"
if [ -n "$l" ]; then case "$l " in *" $m "*) ;; *)
  try find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' | sort -u | head -n 20 | while read -r p; do
    p=${p%/fd}; c=; read -r c <"$p/comm"; printf 'holder=%s|%s\n' "${p##*/}" "$c"
  done ;;
esac; fi
[ ! -f "$G/mig/layout" ] || sed 's/^/mig_layout=/' "$G/mig/layout"
if have dpkg-query; then
  try dpkg-query -W -f 'installed=${Package}|${Version}|${db:Status-Abbrev}\n' 'nvidia-fabricmanager*' nvlsm 'nvidia-imex*' \
    'linux-modules-nvidia-*' 'nvidia-driver*' 'nvidia-kernel-*' 'nvidia-open*' 'cuda-drivers*' 'libcuda1'
elif have rpm; then
  try rpm -qa --qf 'installed=%{NAME}|%{VERSION}|ii \n' 'nvidia-fabric*' nvlsm 'nvidia-imex*' 'kmod-nvidia*' 'nvidia-driver*' 'nvidia-open*' 'cuda-drivers*'
fi
if [ -z "$l$m" ]; then
  have apt-cache && echo searched=1 && try apt-cache search --names-only '^(nvidia-open|nvidia-driver|nvidia-kernel-open-dkms)' |
    head -n 3 | while read -r n _; do printf 'offered=%s\n' "$n"; done
  for u in $(grep -D skip -hosE 'https?://[^] "]+' /etc/apt/sources.list.d/*nvidia* /etc/apt/sources.list.d/*cuda* | sort -u | head -n 2); do
    if have curl; then try curl -sI -o /dev/null "$u"; elif have wget; then try wget -q --spider -t 1 "$u"; fi
    case $? in 4|6|7|28|124) printf 'unreachable=%s\n' "$u" ;; esac
  done
fi
