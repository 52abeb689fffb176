# shellcheck shell=sh
# Waits until IMEX reports READY, for at most LIMIT seconds. Reads UNIT.
s=
n=0
until s=$(timeout 5 nvidia-imex-ctl -q 2>&1) && [ "$s" = "$READY" ]; do
  n=$((n + 1))
  [ $n -lt "$LIMIT" ] || {
    echo "IMEX is not ready after $LIMIT s: it says ${s:-nothing}"
    journalctl -u "$UNIT" -n 8 --no-pager -o cat 2>/dev/null || :
    exit 1
  }
  sleep 1
done
effect ready
