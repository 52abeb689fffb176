# shellcheck shell=sh
# Defines what steps do with services and modules. Expects library.sh and gpu_scopes.
systemd_reload() { # never where containers would lose their GPUs by it
  [ -d /run/systemd/system ] || return 0
  gl=$(gpu_scopes | tr '\n' ' ')
  [ -z "$gl" ] || fail "a daemon-reload would take the GPUs from running containers: ${gl}- end them first, or recreate them with CDI (state dev-char)"
  systemctl daemon-reload; effect daemon-reload
}
wait_for() { # seconds command...
  n=$(( $1 * 5 )); shift
  while ! "$@" >/dev/null 2>&1; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 0.2; done
}
module_loaded() { while read -r m _; do [ "$m" = "$1" ] && return 0; done <"$PROC/modules"; return 1; }
