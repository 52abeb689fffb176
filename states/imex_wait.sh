# shellcheck shell=sh
# Waits until IMEX reports READY, for at most LIMIT seconds. Reads UNIT.
status=
waited=0
until status=$(timeout 5 nvidia-imex-ctl -q 2>&1) && [ "$status" = "$READY" ]; do
  waited=$((waited + 1))
  [ $waited -lt "$LIMIT" ] || {
    echo "IMEX is not ready after $LIMIT s: it says ${status:-nothing}"
    journalctl -u "$UNIT" -n 8 --no-pager -o cat 2>/dev/null || :
    exit 1
  }
  sleep 1
done
effect ready
