# shellcheck shell=sh
# Defines wait_for_fabric and fix_fabric. Reads UNIT.
look() {
  report=$(timeout 60 nvidia-smi -q 2>&1) || {
    printf '%s\n' "nvidia-smi -q fails: $report" | tail -n 3
    exit 1
  }
  # State and status follow each other in the section Fabric of each GPU; N/A is a GPU without one.
  incomplete=$(printf '%s\n' "$report" | awk '
    /^ *Fabric *$/ { inside = 1; next }
    inside && /^ *State *:/ { sub(/^[^:]*: */, ""); sub(/ *$/, ""); state = $0; next }
    inside && /^ *Status *:/ { sub(/^[^:]*: */, ""); sub(/ *$/, ""); inside = 0
      if (state == "Completed" && $0 == "Success") next
      if (state == "N/A" || state == "Not Supported") next
      print (state == "Completed" ? "Completed, " $0 : state) }' | sort | uniq -c | tr -s ' \n' ' ')
}
wait_for_fabric() { # seconds: until the fabric is complete on every GPU that has one
  waited=0
  while
    look
    [ -n "$incomplete" ]
  do
    waited=$((waited + 1))
    [ $waited -lt "$1" ] || {
      echo "the fabric is not complete after $1 s:$incomplete"
      journalctl -u "$UNIT" -n 8 --no-pager -o cat 2>/dev/null || :
      exit 1
    }
    sleep 1
  done
  effect complete
}
# fix_fabric SECONDS: the same, but a fabric that does not come up by itself within ten gets a new
# manager
fix_fabric() {
  waited=0
  while
    look
    [ -n "$incomplete" ] && [ $waited -lt 10 ]
  do
    waited=$((waited + 1))
    sleep 1
  done
  [ -n "$incomplete" ] || {
    effect same
    exit 0
  }
  systemctl reset-failed "$UNIT" 2>/dev/null || :
  systemctl restart "$UNIT"
  wait_for_fabric "$1"
}
