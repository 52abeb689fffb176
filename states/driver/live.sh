# shellcheck shell=sh
# Prints rows key=value of what is loaded and what stands in the way of changing that. Reads PROC,
# SYS; UNINSTALLER (path).
version=
{ read -r version <"$SYS/module/nvidia/version"; } 2>/dev/null && echo "loaded=$version"
first_line=
{ read -r first_line <"$PROC/driver/nvidia/version"; } 2>/dev/null && echo "nvrm=$first_line"
for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] || continue
  f=$(readlink -f "$f")
  echo "library=${f##*/}"
  break
done
[ -x "$UNINSTALLER" ] && echo installer=1
[ -e /run/nvidia/nvidia-driver.pid ] && echo operator=1
for bus_driver in "$SYS"/bus/pci/drivers/nouveau "$SYS"/bus/pci/drivers/nova-core \
  "$SYS"/bus/pci/drivers/nova_core; do
  for device in "$bus_driver"/*:*; do
    [ -e "$device" ] && echo "in_use=${bus_driver##*/} drives ${device##*/}"
  done
done
value=
{ read -r value <"$SYS/module/nvidia_drm/refcnt"; } 2>/dev/null && [ "$value" != 0 ] &&
  echo "drm=$value"
value=
{ read -r value </run/gpustate/driver-in-use; } 2>/dev/null && echo "in_use=$value"
if [ -r /var/lib/gpustate/driver.stopped ]; then
  while read -r value; do echo "stopped=$value"; done </var/lib/gpustate/driver.stopped
fi
if [ -r /var/lib/gpustate/driver.left-stopped ]; then
  while read -r value; do
    systemctl is-enabled -q "$value" 2>/dev/null || value="$value (not enabled)"
    echo "left_stopped=$value"
  done </var/lib/gpustate/driver.left-stopped
fi
for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -e "$f" ] || continue
  [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" = 1 ] || continue
  echo secure_boot=1
  for certificate in /var/lib/gpustate/secure-boot/MOK.der /var/lib/shim-signed/mok/MOK.der \
    /var/lib/dkms/mok.pub; do
    [ -e "$certificate" ] || continue
    echo "key=$certificate"
    case $(mokutil --test-key "$certificate" 2>&1) in
      *"already enrolled"* | *"already in db"* | *"built-in trusted keyring"*) echo enrolled=1 ;;
    esac
    break
  done
done
