# shellcheck shell=sh
# Defines running_services, note_services, stop_services, start_services, leave_services and
# start_left. Services are recorded before they are stopped, in the order to start them in, so that
# a run after a kill can start them: those that systemd stops along with them last. Our validation
# at boot is stopped for good. Without a driver they stay stopped, and the next installation starts
# them. Reads STOPPED and LEFT (files), SERVICES and OWN_SERVICES; calls stopped_with and
# module_loaded.
running_services() {
  service_list=
  running_list=
  for service in $SERVICES; do
    if systemctl is-active -q "$service"; then
      service_list="$service
$service_list" running_list="$running_list $service"
    fi
  done
  printf "%s" "$service_list"
  # shellcheck disable=SC2086 # split into words on purpose
  [ -z "$running_list" ] || stopped_with $running_list
}
note_services() {
  [ -e "$STOPPED" ] || {
    running_services >"$STOPPED.new"
    sync "$STOPPED.new"
    mv -f "$STOPPED.new" "$STOPPED"
  }
}
stop_services() {
  note_services
  systemctl stop "$VALIDATION" 2>/dev/null || :
  for service in $SERVICES; do
    ! systemctl is-active -q "$service" || systemctl stop "$service"
  done
}
start_service() {
  systemctl reset-failed "$1" 2>/dev/null || :
  systemctl start "$1" || echo "still stopped: $1"
}
start_services() {
  module_loaded nvidia || {
    leave_services
    return 0
  }
  if [ -r "$STOPPED" ]; then
    while read -r service; do start_service "$service"; done <"$STOPPED"
    rm -f "$STOPPED"
  fi
}
leave_services() {
  [ -r "$STOPPED" ] || return 0
  service_list=
  [ ! -r "$LEFT" ] || while read -r service; do service_list="$service_list $service"; done <"$LEFT"
  while read -r service; do
    case " $OWN_SERVICES $service_list " in
      *" $service "*) ;;
      *) service_list="$service_list $service" ;;
    esac
  done <"$STOPPED"
  # shellcheck disable=SC2086 # split into words on purpose
  [ -z "$service_list" ] || {
    printf "%s\n" $service_list >"$LEFT.new"
    sync "$LEFT.new"
    mv -f "$LEFT.new" "$LEFT"
  }
  rm -f "$STOPPED"
}
start_left() {
  [ -r "$LEFT" ] || return 0
  # Without modules a reboot follows, which starts what is enabled.
  ! module_loaded nvidia || while read -r service; do
    ! systemctl is-enabled -q "$service" 2>/dev/null || start_service "$service"
  done <"$LEFT"
  rm -f "$LEFT"
}
