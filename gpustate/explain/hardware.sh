# shellcheck shell=sh
# Prints modes of device nodes, network cards, modules, packages and repositories. Expects
# kernel.sh.
# shellcheck disable=SC2154 # version_on_disk: set by kernel.sh
for f in "$SYS"/class/infiniband/*/device/vpd; do
  [ -r "$f" ] && grep -qa SW_MNG "$f" && {
    f=${f%/device/vpd}
    printf 'sw_mng=%s\n' "${f##*/}"
  }
done
for device in "$SYS"/class/infiniband/*; do
  [ -e "$device" ] && printf 'rdma=%s\n' "${device##*/}"
done
set --
for f in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do
  [ -d "$f" ] || [ ! -e "$f" ] || set -- "$@" "$f"
done
[ $# = 0 ] || stat -L -c 'device_mode=%n|%a|%u:%g' "$@"
grep -sE '^(DeviceFileMode|DeviceFileUID|DeviceFileGID|ModifyDeviceFiles): ' \
  "$PROC/driver/nvidia/params" | sed 's/^\([A-Za-z]*\): */params=\1|/'
for name in ib_umad mlx5_ib ib_core nvidia_peermem nvidia_uvm; do
  [ -d "$SYS/module/$name" ] || grep -qs "^$name " "$PROC/modules" || continue
  printf 'module=%s\n' $name
done
grep -D skip -Hs -E '^[[:space:]]*nvidia' /etc/modules /etc/modules-load.d/*.conf |
  sed 's/^\([^:]*\):[[:space:]]*/autoload=\1|/'
[ -e /etc/nvidia-imex/nodes_config.cfg ] &&
  printf 'imex_nodes=%s\n' \
    "$(grep -D skip -c '^[[:space:]]*[0-9a-fA-F]' /etc/nvidia-imex/nodes_config.cfg)"
loaded=
[ -r "$PROC/driver/nvidia/version" ] && read -r loaded <"$PROC/driver/nvidia/version"
if [ -n "$loaded" ]; then
  case "$loaded " in
    *" $version_on_disk "*) ;;
    *)
      try find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' | sort -u | head -n 20 |
        while read -r process; do
          process=${process%/fd}
          command=
          read -r command <"$process/comm"
          printf 'holder=%s|%s\n' "${process##*/}" "$command"
        done
      ;;
  esac
fi
[ ! -f "$G/mig/layout" ] || sed 's/^/mig_layout=/' "$G/mig/layout"
if have dpkg-query; then
  try dpkg-query -W -f 'installed=${Package}|${Version}|${db:Status-Abbrev}\n' \
    'nvidia-fabricmanager*' nvlsm 'nvidia-imex*' \
    'linux-modules-nvidia-*' 'nvidia-driver*' 'nvidia-kernel-*' 'nvidia-open*' 'cuda-drivers*' \
    'libcuda1'
elif have rpm; then
  try rpm -qa --qf 'installed=%{NAME}|%{VERSION}|ii \n' 'nvidia-fabric*' nvlsm 'nvidia-imex*' \
    'kmod-nvidia*' 'nvidia-driver*' 'nvidia-open*' 'cuda-drivers*'
fi
if [ -z "$loaded$version_on_disk" ]; then
  have apt-cache && echo searched=1 &&
    try apt-cache search --names-only '^(nvidia-open|nvidia-driver|nvidia-kernel-open-dkms)' |
    head -n 3 | while read -r name _; do printf 'offered=%s\n' "$name"; done
  for url in $(grep -D skip -hosE 'https?://[^] "]+' /etc/apt/sources.list.d/*nvidia* \
    /etc/apt/sources.list.d/*cuda* | sort -u | head -n 2); do
    if have curl; then
      try curl -sI -o /dev/null "$url"
    elif have wget; then
      try wget -q --spider -t 1 "$url"
    fi
    case $? in 4 | 6 | 7 | 28 | 124) printf 'unreachable=%s\n' "$url" ;; esac
  done
fi
