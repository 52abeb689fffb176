# shellcheck shell=sh
# Prints what there is of the specification of CDI, what it names that does not exist, and what is
# there instead; leaves the specifications in specs. One stat and one grep, whatever the number of
# GPUs; only of missing files the package is asked for. Reads G, PROC; SPEC (path) and UNITS; calls
# odd and owners.
for unit in $UNITS; do
  for folder in /etc/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
    [ ! -e "$folder/$unit" ] || {
      echo "unit=$unit"
      break
    }
  done
done
[ -x /usr/bin/nvidia-ctk ] && echo ctk=1
[ -L "$SPEC" ] || odd "$SPEC"
echo "proc=$PROC"
[ -s "$G/quarantine.json" ] && python3 -I -S -c 'import json, subprocess, tempfile' 2>/dev/null &&
  echo python=1
for information in "$PROC"/driver/nvidia/gpus/*/information; do
  [ -r "$information" ] || continue
  minor=
  uuid=
  while IFS=':' read -r key value; do
    case $key in
      'Device Minor'*) minor=${value##*[!0-9]} ;;
      'GPU UUID'*) uuid=${value##*[!A-Za-z0-9?-]} ;;
    esac
  done <"$information"
  gpu_folder=${information%/information}
  echo "gpu=$minor $uuid ${gpu_folder##*/}"
done
for capability in "$PROC"/driver/nvidia/capabilities/gpu*/mig; do
  [ -d "$capability" ] || continue
  address=${capability%/mig}
  address=${address##*/gpu}
  echo "mig=$address"
  for compute in "$capability"/gi*/ci*/access; do
    [ -r "$compute" ] || continue
    for access in "${compute%/ci*}/access" "$compute"; do
      while IFS=': ' read -r key value; do
        [ "$key" = DeviceFileMinor ] && echo "mig=$address $value"
      done <"$access"
    done
  done
done
set --
for f in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/*; do [ -c "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || stat -c 'node=%n %t %T' "$@"
set --
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && set -- "$@" "$f"
done
[ $# = 0 ] && exit 0
specs=$(grep -lE 'nvidia\.com/gpu' "$@")
[ -n "$specs" ] || exit 0
missing=$(grep -hoE '"?(hostPath|path)"?: *"?/[^",]+' $specs | while IFS= read -r path; do
  path=${path#*/}
  path=/${path%% }
  [ -e "$path" ] || echo "$path"
done)
[ -z "$missing" ] || {
  printf '%s\n' "$missing" | sed 's/^/missing=/'
  owners $missing | sed 's/^/owned=/'
}
