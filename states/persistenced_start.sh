# shellcheck shell=sh
# Starts the daemon and waits until every GPU is in persistence mode. Reads UNIT and QUERY; without
# a GPU the daemon ends at once, and there is nothing to keep.
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no GPU answers"
  effect same
  exit 0
fi
systemctl is-active --quiet "$UNIT" || systemctl restart "$UNIT"
off() { $QUERY | grep -q 'Disabled$'; }
persistent() { systemctl is-active --quiet "$UNIT" && ! off; }
wait_for 60 persistent ||
  fail "$UNIT runs, or not, and a GPU is not in persistence mode: $($QUERY | tr '\n' ';')"
effect started
