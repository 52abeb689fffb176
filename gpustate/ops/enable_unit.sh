# shellcheck shell=sh
# Enables the unit UNIT. Where somebody has asked for an alias that was not there yet, systemd has a
# unit of that name. At its next reload it joins both, and may keep the state of that one: so it is
# to reload before the unit runs.
systemctl --no-reload enable "$UNIT"
if ! systemctl is-active --quiet "$UNIT"; then
  for alias in $(sed -n 's/^Alias=//p' \
    "$(systemctl show -p FragmentPath --value "$UNIT")" 2>/dev/null); do
    [ "$(systemctl show -p Id --value "$alias")" = "$UNIT" ] || {
      systemctl daemon-reload
      break
    }
  done
fi
