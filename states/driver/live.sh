# shellcheck shell=sh
# Prints rows key=value of what is loaded and what stands in the way of changing that. Reads PROC, SYS; UNINSTALLER (path).
v=; { read -r v <"$SYS/module/nvidia/version"; } 2>/dev/null && echo "loaded=$v"
t=; { read -r t <"$PROC/driver/nvidia/version"; } 2>/dev/null && echo "nvrm=$t"
for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] || continue; f=$(readlink -f "$f"); echo "library=${f##*/}"; break
done
[ -x "$UNINSTALLER" ] && echo installer=1
[ -e /run/nvidia/nvidia-driver.pid ] && echo operator=1
for b in "$SYS"/bus/pci/drivers/nouveau "$SYS"/bus/pci/drivers/nova-core "$SYS"/bus/pci/drivers/nova_core; do
  for d in "$b"/*:*; do [ -e "$d" ] && echo "in_use=${b##*/} drives ${d##*/}"; done
done
n=; { read -r n <"$SYS/module/nvidia_drm/refcnt"; } 2>/dev/null && [ "$n" != 0 ] && echo "drm=$n"
n=; { read -r n </run/gpustate/driver-in-use; } 2>/dev/null && echo "in_use=$n"
if [ -r /var/lib/gpustate/driver.stopped ]; then while read -r n; do echo "stopped=$n"; done </var/lib/gpustate/driver.stopped; fi
if [ -r /var/lib/gpustate/driver.left-stopped ]; then
  while read -r n; do
    systemctl is-enabled -q "$n" 2>/dev/null || n="$n (not enabled)"
    echo "left_stopped=$n"
  done </var/lib/gpustate/driver.left-stopped
fi
for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -e "$f" ] || continue
  [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" = 1 ] || continue
  echo secure_boot=1
  for k in /var/lib/gpustate/secure-boot/MOK.der /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub; do
    [ -e "$k" ] || continue; echo "key=$k"
    case $(mokutil --test-key "$k" 2>&1) in *"already enrolled"*|*"already in db"*|*"built-in trusted keyring"*) echo enrolled=1;; esac; break
  done
done
