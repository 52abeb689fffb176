# shellcheck shell=sh
# Defines note_services, stop_services and start_services. Services are recorded before they are stopped, in the order to start them
# in, so that a run after a kill can start them. Reads STOPPED (file) and SERVICES.
note_services() {
  [ -e "$STOPPED" ] || {
    l=; for u in $SERVICES; do systemctl is-active -q "$u" && l="$u
$l"; done
    printf "%s" "$l" >"$STOPPED.new"; sync "$STOPPED.new"; mv -f "$STOPPED.new" "$STOPPED"
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
