# shellcheck shell=sh
# Defines running_services, note_services, stop_services, start_services, leave_services and start_left. Services are recorded before
# they are stopped, in the order to start them in, so that a run after a kill can start them: those that systemd stops along with them
# last. Our validation at boot is stopped for good. Without a driver they stay stopped, and the next installation starts them. Reads STOPPED and LEFT (files), SERVICES and
# OWN_SERVICES; calls stopped_with and module_loaded.
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
  systemctl stop "$VALIDATION" 2>/dev/null || :
  for u in $SERVICES; do ! systemctl is-active -q "$u" || systemctl stop "$u"; done
}
start_service() { systemctl reset-failed "$1" 2>/dev/null || :; systemctl start "$1" || echo "still stopped: $1"; }
start_services() {
  module_loaded nvidia || { leave_services; return 0; }
  if [ -r "$STOPPED" ]; then
    while read -r u; do start_service "$u"; done <"$STOPPED"
    rm -f "$STOPPED"
  fi
}
leave_services() {
  [ -r "$STOPPED" ] || return 0
  l=; [ ! -r "$LEFT" ] || while read -r u; do l="$l $u"; done <"$LEFT"
  while read -r u; do case " $OWN_SERVICES $l " in *" $u "*) ;; *) l="$l $u" ;; esac; done <"$STOPPED"
  # shellcheck disable=SC2086 # split into words on purpose
  [ -z "$l" ] || { printf "%s\n" $l >"$LEFT.new"; sync "$LEFT.new"; mv -f "$LEFT.new" "$LEFT"; }
  rm -f "$STOPPED"
}
start_left() {
  [ -r "$LEFT" ] || return 0
  # Without modules a reboot follows, which starts what is enabled.
  ! module_loaded nvidia || while read -r u; do
    ! systemctl is-enabled -q "$u" 2>/dev/null || start_service "$u"
  done <"$LEFT"
  rm -f "$LEFT"
}
