# shellcheck shell=sh
# Prints driver=VERSION of an image and ends there; on a running node, prints the rows of
# process_words.
if [ -n "${GPUSTATE_IMAGE-}" ]; then
  for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
    [ -e "$f" ] && {
      f=$(readlink -f "$f")
      printf 'driver=%s\n' "${f##*.so.}"
      break
    }
  done
  exit 0
fi
process_words
