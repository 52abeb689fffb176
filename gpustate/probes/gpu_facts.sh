# shellcheck shell=sh
# Prints what NVML says of the GPUs, or why it cannot be asked. @FACTS@, @PYNVML@ and @HEALTH@ are shipped files,
# @FOLDERS@ and @IMPORT@ words, @TIMEOUT@ seconds, @SMI@ sh that asks nvidia-smi: equal for all, they need
# no variables.
# shellcheck disable=SC2043 # @FOLDERS@ are several words
v=; [ -r "$PROC/driver/nvidia/version" ] && v=1
l=; for d in @FOLDERS@; do [ -e "$d/libnvidia-ml.so.1" ] && { l=$d/libnvidia-ml.so.1; break; }; done
printf 'loaded=%s\nlibrary=%s\n' "$v" "$l"
[ -n "$v" ] || { [ -n "$l" ] && echo error=9 || echo error=12; exit 0; }
t=@TIMEOUT@
# Without persistence mode the driver initialises every GPU for each query.
[ -S /run/nvidia-persistenced/socket ] || for d in "$PROC"/driver/nvidia/gpus/*; do t=$((t + 5)); done
p=$(command -v python3)
if [ -n "$p" ] && [ -r "@FACTS@" ] && [ -r "@PYNVML@" ]; then
  o=$(timeout -k 2 $((t + 10)) "$p" -I -S -c '@IMPORT@' "@FACTS@" "@PYNVML@" $t "@HEALTH@") && { printf 'nvml=%s\n' "$o"; exit 0; }
fi
if command -v nvidia-smi >/dev/null; then
@SMI@
elif [ -n "$l" ]; then echo error=127; else echo error=12; fi
