# shellcheck shell=sh
# Prints key=value lines: masked, library, address, channels, status. The daemon is queried only if
# its tool exists.
unit=/etc/systemd/system/nvidia-imex.service
[ ! -L "$unit" ] || [ "$(readlink "$unit" 2>/dev/null)" != /dev/null ] || echo masked=1
for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] && {
    f=$(readlink -f "$f")
    echo "library=${f##*.so.}"
    break
  }
done
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
ip -o addr show 2>/dev/null | while read -r _ _ _ address _; do
  address=${address%/*}
  case $address in 127.* | ::1 | fe80:*) ;; *) echo "address=$address" ;; esac
done
host=
{ read -r host </proc/sys/kernel/hostname; } 2>/dev/null || host=$(uname -n)
echo "address=$host"
[ "${host%%.*}" = "$host" ] || echo "address=${host%%.*}"
channels=0
for d in /dev/nvidia-caps-imex-channels/channel*; do [ -e "$d" ] && channels=$((channels + 1)); done
echo "channels=$channels"
if command -v nvidia-imex-ctl >/dev/null; then
  status=$(timeout -k 1 10 nvidia-imex-ctl -q 2>&1 | tail -n 1)
  echo "status=${status:-no answer}"
fi
:
