# shellcheck shell=sh
# Applies the MIG layout of this machine, and installs the unit that applies it at every boot.
# Reads R, SYS, D; HEAD (head of a layout), NAME (of the layout), CLIENTS (units), RESTORE (program
# in base64), UNIT, UNIT_PATH and UNIT_TEXT; calls layout_of NUMBER.DEVICE-ID, which sets gpu_layout
# to a GPU's part of the layout, with @ for its address.
lines() { # number, address, device id
  gpu_layout=
  layout_of "$1.$3" || return 1
  [ -z "$gpu_layout" ] || printf '%s' "$gpu_layout" | sed "s/@/$2/"
}
number() { # address: sets n; a lost GPU, which nvidia-smi does not list, keeps its number
  number=0
  for d in "$SYS"/bus/pci/devices/*; do
    [ "${d##*/}" != "$1" ] || break
    case $(readlink "$d/driver") in */nvidia) number=$((number + 1)) ;; esac
  done
}
number=0
until gpus=$(smi --query-gpu=pci.bus_id,mig.mode.current --format=csv,noheader); do
  number=$((number + 1))
  [ $number -lt 30 ] || fail "no GPU answers: $(why "$gpus")"
  sleep 1
done
printf '%s' "$HEAD" >"$R/layout"
printf '%s' "$HEAD" >"$R/before"
printf '%s\n' "$gpus" | sort >"$R/gpus"
while IFS=', ' read -r bus mode; do
  address=$(printf '%s' "${bus#0000}" | tr A-F a-f)
  number "$address"
  device_id=
  { read -r device_id <"$SYS/bus/pci/devices/$address/device"; } 2>/dev/null || :
  case $mode in
    Enabled | Disabled)
      lines $number "$bus" "${device_id#0x}" >>"$R/layout" ||
        fail "GPU $bus (${device_id:-unknown}) cannot be divided as $NAME says by the tables" \
          "of this image: gpustate apply"
      if [ "$mode" = Enabled ]; then mode=on; else mode=off; fi
      ! grep -q "^gpu $bus " "$R/layout" || echo "gpu $bus $mode" >>"$R/before"
      ;;
  esac
done <"$R/gpus"
printf '%s' "$RESTORE" | base64 -d >"$R/restore"
grep -q '^gpu ' "$R/layout" || exit 0
trap 'start_again' EXIT
stop_clients $CLIENTS
if grep -q '^gpu .* on$' "$R/layout"; then
  [ -e "$D/before" ] || put "$D/before" 0644 own <"$R/before"
  put "$D/restore" 0755 own <"$R/restore"
  put "$D/layout" 0644 own <"$R/layout"
  printf '%s' "$UNIT_TEXT" | put "$UNIT_PATH" 0644 own
  systemctl --no-reload enable "$UNIT" || fail "$UNIT cannot be enabled"
fi
sh "$R/restore" "$R/layout" || fail "the GPUs are not divided yet: gpustate explain"
effect divided
