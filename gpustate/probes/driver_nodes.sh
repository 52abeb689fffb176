# shellcheck shell=sh
# Prints node=PATH NUMBERS OPENED for each device node there should be but those of capabilities. Reads a and v.
# shellcheck disable=SC2154 # a and v: set by device_nodes.sh
y=; for g in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$g" ] || continue
  m=; u=; while IFS=: read -r n x; do
    case $n in 'Device Minor') m=${x##*[!0-9]} ;; 'GPU UUID') u=${x##*[!A-Za-z0-9?-]} ;; esac
  done <"$g"
  case $u in ''|*'?'*) u= ;; *) u=1 y=1 ;; esac
  [ -z "$m" ] || echo "node=/dev/nvidia$m $a:$m $u"
done
echo "node=/dev/nvidiactl $a:255 $y"
if [ -n "$v" ]; then
  u=; if [ -e /dev/nvidia-uvm-tools ]; then u=1; fi
  echo "node=/dev/nvidia-uvm $v:0 $u"
fi
