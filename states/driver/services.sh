# shellcheck shell=sh
# Defines running_services, note_services, stop_services and start_services. Services are recorded before they are stopped, in the
# order to start them in, so that a run after a kill can start them: those that systemd stops along with them last. Reads STOPPED (file)
# and SERVICES; calls stopped_with.
running_services() {
  l=; a=; for u in $SERVICES; do if systemctl is-active -q "$u"; then l="$u
$l" a="$a $u"; fi; done
  printf "%s" "$l"
  # shellcheck disable=SC2086 # split into words on purpose
  [ -z "$a" ] || stopped_with $a
}
note_services() {
  [ -e "$STOPPED" ] || {
    running_services >"$STOPPED.new"; sync "$STOPPED.new"; mv -f "$STOPPED.new" "$STOPPED"
  }
}
stop_services() {
  note_services
  for u in $SERVICES; do ! systemctl is-active -q "$u" || systemctl stop "$u"; done
}
start_services() {
  if [ -r "$STOPPED" ]; then
    while read -r u; do systemctl reset-failed "$u" 2>/dev/null || :; systemctl start "$u" || echo "still stopped: $u"; done <"$STOPPED"
    rm -f "$STOPPED"
  fi
}
