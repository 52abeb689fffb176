# shellcheck shell=sh
# Prints key=value lines: masked, library, address, channels, status. The daemon is queried only if its tool exists.
u=/etc/systemd/system/nvidia-imex.service
[ ! -L "$u" ] || [ "$(readlink "$u" 2>/dev/null)" != /dev/null ] || echo masked=1
for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] && { f=$(readlink -f "$f"); echo "library=${f##*.so.}"; break; }
done
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
ip -o addr show 2>/dev/null | while read -r _ _ _ a _; do a=${a%/*}; case $a in 127.*|::1|fe80:*) ;; *) echo "address=$a";; esac; done
h=; { read -r h </proc/sys/kernel/hostname; } 2>/dev/null || h=$(uname -n); echo "address=$h"; [ "${h%%.*}" = "$h" ] || echo "address=${h%%.*}"
n=0; for d in /dev/nvidia-caps-imex-channels/channel*; do [ -e "$d" ] && n=$((n + 1)); done; echo "channels=$n"
if command -v nvidia-imex-ctl >/dev/null; then
  s=$(timeout -k 1 10 nvidia-imex-ctl -q 2>&1 | tail -n 1); echo "status=${s:-no answer}"
fi
:
