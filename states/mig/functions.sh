# shellcheck shell=sh
# Defines the functions of MIG's steps, and waits until the boot's own run of UNIT has ended. Reads
# D, the state's folder. @SPEC@ is the path of the CDI specification, and @GENERATE@ sh that writes
# it.
smi() { timeout -k 5 120 nvidia-smi "$@" 2>&1 </dev/null; }
why() { printf '%s' "$1" | tail -n 1; }
start_again() {
  [ -r "$D/stopped" ] || return 0
  while read -r unit; do
    systemctl reset-failed "$unit" 2>/dev/null || :
    systemctl start "$unit" || echo "$unit does not start"
  done <"$D/stopped"
  rm -f "$D/stopped"
}
# stop_clients UNITS...: those that run, noted in the order they are to start, before any is
# stopped; what systemd stops along comes last
stop_clients() {
  [ -d /run/systemd/system ] || return 0
  [ -e "$D/stopped" ] || {
    running_first=
    running=
    for unit in "$@"; do
      ! systemctl is-active -q "$unit" || {
        running_first="$unit
$running_first"
        running="$running $unit"
      }
    done
    # shellcheck disable=SC2086 # split into words on purpose
    folder "$D"
    {
      printf '%s' "$running_first"
      [ -z "$running" ] || stopped_with $running
    } >"$D/stopped.new"
    sync "$D/stopped.new"
    mv -f "$D/stopped.new" "$D/stopped"
  }
  systemctl stop "$VALIDATION" 2>/dev/null || :
  for unit in "$@"; do ! systemctl is-active -q "$unit" || systemctl stop "$unit"; done
}
refresh_cdi() {
  smi -L >/dev/null || :
  [ -e @SPEC@ ] || return 0
  for unit in nvidia-cdi-refresh.service gpustate-cdi-refresh.service; do
    systemctl is-enabled -q "$unit" 2>/dev/null || continue
    systemctl reset-failed "$unit" 2>/dev/null || :
    systemctl restart "$unit" && return 0
  done
  (
    unset WHY
    @GENERATE@
  ) || echo "the CDI specification could not be written again"
}
# What is there now under a number: "profile start", "name".
instance() {
  smi mig -i "$1" -lgi |
    sed -n \
      "s/^| *[0-9][0-9]* *MIG *[^ ]* *\([0-9][0-9]*\) *$2 *\([0-9][0-9]*\):[0-9][0-9]* *|\$/\1 \2/p"
}
compute() {
  smi mig -i "$1" -lci | sed -n "s/^| *[0-9][0-9]* *$2 *MIG *\([^ ]*\) *[0-9][0-9]* *$3 .*|\$/\1/p"
}
drop_compute() { # gpu instance compute name
  name_now=$(compute "$1" "$2" "$3")
  [ -n "$name_now" ] || return 0
  [ "$name_now" = "$4" ] ||
    fail "GPU $1: compute instance $3 of GPU instance $2 is $name_now, and was $4 when this was" \
      "planned; run again"
  output=$(smi mig -i "$1" -gi "$2" -ci "$3" -dci) ||
    fail "GPU $1: $4 (GPU instance $2) does not go: $(why "$output")"
}
drop() { # gpu instance profile start name
  place_now=$(instance "$1" "$2")
  [ -n "$place_now" ] || return 0
  [ "$place_now" = "$3 $4" ] ||
    fail "GPU $1: GPU instance $2 is not the $5 at $4 that it was when this was planned; run again"
  output=$(smi mig -i "$1" -gi "$2" -dgi) ||
    fail "GPU $1: $5 at $4 (GPU instance $2) does not go: $(why "$output")"
  echo "GPU $1: $5 at $4 (GPU instance $2) is gone"
}
# The boot's own pass over the GPUs is let end first.
booting() { [ "$(systemctl is-active "$UNIT" 2>/dev/null)" = activating ]; }
polls=0
while booting && [ $polls -lt 300 ]; do
  polls=$((polls + 1))
  sleep 1
done
