# shellcheck shell=sh
# Prints what there is of the specification of CDI, what it names that does not exist, and what is there instead; leaves
# the specifications in l. One stat and one grep, whatever the number of GPUs; only of missing files the package is asked for.
# Reads G, PROC; SPEC (path) and UNITS; calls odd and owners.
for u in $UNITS; do
  for d in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    [ ! -e "$d/$u" ] || { echo "unit=$u"; break; }
  done
done
[ -x /usr/bin/nvidia-ctk ] && echo ctk=1
[ -L "$SPEC" ] || odd "$SPEC"
echo "proc=$PROC"
[ -s "$G/quarantine.json" ] && python3 -I -S -c 'import json, subprocess, tempfile' 2>/dev/null && echo python=1
for g in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$g" ] || continue
  m=; i=; while IFS=':' read -r k v; do
    case $k in 'Device Minor'*) m=${v##*[!0-9]} ;; 'GPU UUID'*) i=${v##*[!A-Za-z0-9?-]} ;; esac
  done <"$g"
  p=${g%/information}; echo "gpu=$m $i ${p##*/}"
done
for g in "$PROC"/driver/nvidia/capabilities/gpu*/mig; do
  [ -d "$g" ] || continue
  n=${g%/mig}; n=${n##*/gpu}; echo "mig=$n"
  for c in "$g"/gi*/ci*/access; do
    [ -r "$c" ] || continue
    for a in "${c%/ci*}/access" "$c"; do
      while IFS=': ' read -r k v; do [ "$k" = DeviceFileMinor ] && echo "mig=$n $v"; done <"$a"
    done
  done
done
set --; for f in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/*; do [ -c "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || stat -c 'node=%n %t %T' "$@"
set --; for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] && exit 0
l=$(grep -lE 'nvidia\.com/gpu' "$@"); [ -n "$l" ] || exit 0
m=$(grep -hoE '"?(hostPath|path)"?: *"?/[^",]+' $l | while IFS= read -r p; do p=${p#*/}; p=/${p%% }; [ -e "$p" ] || echo "$p"; done)
[ -z "$m" ] || { printf '%s\n' "$m" | sed 's/^/missing=/'; owners $m | sed 's/^/owned=/'; }
