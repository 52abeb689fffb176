# shellcheck shell=sh
# Prints what NVML says of the GPUs, or why it cannot be asked. @FACTS@, @PYNVML@ and @HEALTH@ are
# shipped files, @FOLDERS@ and @IMPORT@ words, @TIMEOUT@ seconds, @SMI@ sh that asks nvidia-smi:
# equal for all, they need no variables.
# shellcheck disable=SC2043 # @FOLDERS@ are several words
loaded=
[ -r "$PROC/driver/nvidia/version" ] && loaded=1
library=
for folder in @FOLDERS@; do
  [ -e "$folder/libnvidia-ml.so.1" ] && {
    library=$folder/libnvidia-ml.so.1
    break
  }
done
printf 'loaded=%s\nlibrary=%s\n' "$loaded" "$library"
[ -n "$loaded" ] || {
  if [ -n "$library" ]; then echo error=9; else echo error=12; fi
  exit 0
}
patience=@TIMEOUT@
# Without persistence mode the driver initialises every GPU for each query.
[ -S /run/nvidia-persistenced/socket ] || for folder in "$PROC"/driver/nvidia/gpus/*; do
  patience=$((patience + 5))
done
python=$(command -v python3)
if [ -n "$python" ] && [ -r "@FACTS@" ] && [ -r "@PYNVML@" ]; then
  facts=$(timeout -k 2 $((patience + 10)) "$python" -I -S -c '@IMPORT@' "@FACTS@" "@PYNVML@" \
    $patience "@HEALTH@") && {
    printf 'nvml=%s\n' "$facts"
    exit 0
  }
fi
if command -v nvidia-smi >/dev/null; then
  @SMI@
elif [ -n "$library" ]; then
  echo error=127
else
  echo error=12
fi
