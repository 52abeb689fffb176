# shellcheck shell=sh
# Prints what a validation is made for: boot, driver, its files, digests of runtimes and their
# configuration.
boot_id=
read -r boot_id </proc/sys/kernel/random/boot_id
printf 'boot_id=%s\n' "$boot_id"
version=
[ -r "$PROC/driver/nvidia/version" ] && read -r version <"$PROC/driver/nvidia/version"
printf 'version=%s\n' "$version"
set --
for f in /etc/containerd/config.toml /etc/containerd/conf.d/*.toml \
  /etc/nvidia-container-runtime/config.toml /etc/docker/daemon.json /etc/crio/crio.conf \
  /etc/crio/crio.conf.d/* /etc/cdi/nvidia* /var/run/cdi/nvidia*; do
  [ -f "$f" ] && set -- "$@" "$f"
done
# What decides whether a boot starts them.
for unit in containerd docker crio nvidia-cdi-refresh; do
  for f in /etc/systemd/system/$unit.service /etc/systemd/system/$unit.service.d/*.conf \
    /usr/lib/systemd/system/$unit.service; do
    [ -f "$f" ] && set -- "$@" "$f"
  done
done
digest=none
[ $# = 0 ] || {
  digest=$(sha256sum "$@" | sha256sum)
  digest=${digest%% *}
}
set --
for f in containerd containerd-shim-runc-v2 dockerd crio podman runc crun nvidia-container-runtime \
  nvidia-cdi-hook nvidia-container-runtime-hook; do
  for program in /usr/bin/$f /usr/sbin/$f /usr/local/bin/$f; do
    [ -e "$program" ] && set -- "$@" "$program"
  done
done
[ $# = 0 ] || {
  digest=$({
    echo "$digest"
    stat -L -c '%n %s %a %Y %i' "$@"
  } | sha256sum)
  digest=${digest%% *}
}
printf 'runtime_digest=%s\n' "$digest"
kernel=
{ read -r kernel </proc/sys/kernel/osrelease; } 2>/dev/null
set --
for d in /usr/lib/*-linux-gnu /usr/lib/*-linux-gnu/nvidia/current /usr/lib64; do
  for f in "$d"/libcuda.so.* "$d"/libnvidia-ml.so.* "$d"/libnvidia-ptxjitcompiler.so.*; do
    [ -e "$f" ] && set -- "$@" "$f"
  done
done
for f in /lib/modules/"$kernel"/updates/dkms/nvidia*.ko* /lib/modules/"$kernel"/extra/nvidia*.ko* \
  /lib/modules/"$kernel"/kernel/nvidia*/nvidia*.ko* \
  /lib/modules/"$kernel"/kernel/drivers/video/nvidia*.ko*; do
  # GPUDirect Storage's module is not part of the driver, and comes without it.
  case ${f##*/} in nvidia-fs.*) ;; *) [ -f "$f" ] && set -- "$@" "$f" ;; esac
done
[ $# = 0 ] || stat -c 'driver_file=%n %s %.9Y %.9Z %i' "$@"
f=/run/nvidia-fabricmanager/nv-fabricmanager.pid
manager_pid=
[ -r "$f" ] && read -r manager_pid <"$f"
case $manager_pid in '' | *[!0-9]*) ;; *) [ ! -d "/proc/$manager_pid" ] || echo manager=1 ;; esac
