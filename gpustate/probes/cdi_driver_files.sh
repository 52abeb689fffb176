# shellcheck shell=sh
# Prints there=PATH of each driver file that is there, of the version that is loaded, and of each
# control device. Builtins only.
version=
line=
[ -r "$PROC/driver/nvidia/version" ] && read -r line <"$PROC/driver/nvidia/version"
for word in $line; do
  case $word in [0-9]*.[0-9]*)
    version=$word
    break
    ;;
  esac
done
[ -z "$version" ] ||
  for path in /usr/bin/nvidia-smi /usr/bin/nvidia-debugdump /usr/bin/nvidia-persistenced \
    /usr/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-server \
    /usr/lib/[ax]*-linux-gnu/lib[cn]*.so.$version \
    /usr/lib/[ax]*-linux-gnu/nvidia/current/lib[cn]*.so.$version \
    /usr/lib64/lib[cn]*.so.$version \
    /lib/firmware/nvidia/$version/gsp*.bin; do
    [ -f "$path" ] || continue
    case $path in /usr/bin/*) [ -x "$path" ] ;; *) [ ! -L "$path" ] ;; esac && echo "there=$path"
  done
[ -z "$version" ] ||
  for path in /dev/nvidiactl /dev/nvidia-modeset /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
    [ ! -c "$path" ] || echo "there=$path"
  done
