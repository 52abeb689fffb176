# shellcheck shell=sh
# Prints the version of the driver that an image has; nothing is loaded there.
for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] && {
    f=$(readlink -f "$f")
    echo "${f##*.so.}"
    break
  }
done
:
