# shellcheck shell=sh
# Defines what steps do with services and modules. Expects library.sh and gpu_scopes.
systemd_reload() { # never where containers would lose their GPUs by it
  [ -d /run/systemd/system ] || return 0
  losing_containers=$(gpu_scopes | tr '\n' ' ')
  [ -z "$losing_containers" ] ||
    fail "a daemon-reload would take the GPUs from running containers: ${losing_containers}- end" \
      "them first, or recreate them with CDI (state dev-char)"
  systemctl daemon-reload
  effect daemon-reload
}
wait_for() { # seconds command...
  wait_polls=$(($1 * 5))
  shift
  while ! "$@" >/dev/null 2>&1; do
    wait_polls=$((wait_polls - 1))
    [ $wait_polls -gt 0 ] || return 1
    sleep 0.2
  done
}
module_loaded() {
  while read -r loaded_name _; do [ "$loaded_name" = "$1" ] && return 0; done <"$PROC/modules"
  return 1
}
