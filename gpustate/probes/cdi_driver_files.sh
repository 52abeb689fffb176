# shellcheck shell=sh
# Prints there=PATH of each driver file that is there, of the version that is loaded, and of each control device.
# Builtins only.
v=; x=; [ -r "$PROC/driver/nvidia/version" ] && read -r x <"$PROC/driver/nvidia/version"
for w in $x; do case $w in [0-9]*.[0-9]*) v=$w; break ;; esac; done
[ -z "$v" ] || for p in /usr/bin/nvidia-smi /usr/bin/nvidia-debugdump /usr/bin/nvidia-persistenced \
  /usr/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-server \
  /usr/lib/[ax]*-linux-gnu/lib[cn]*.so.$v /usr/lib/[ax]*-linux-gnu/nvidia/current/lib[cn]*.so.$v /usr/lib64/lib[cn]*.so.$v \
  /lib/firmware/nvidia/$v/gsp*.bin
do
  [ -f "$p" ] || continue
  case $p in /usr/bin/*) [ -x "$p" ] ;; *) [ ! -L "$p" ] ;; esac && echo "there=$p"
done
[ -z "$v" ] || for p in /dev/nvidiactl /dev/nvidia-modeset /dev/nvidia-uvm /dev/nvidia-uvm-tools; do [ ! -c "$p" ] || echo "there=$p"; done
