# shellcheck shell=sh
# Defines unload_modules, which stops the services and sets was to the modules that it unloaded.
# Reads IN_USE (file) and UNLOAD_ORDER; calls stop_services and start_services.
holders() {
  for p in $(find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' 2>/dev/null | sort -u); do
    p=${p%/fd}; c=; { read -r c <"$p/comm"; } 2>/dev/null || continue
    g=; while read -r l; do g=$l; done <"$p/cgroup"
    printf '%s|%s|%s\n' "${p#/proc/}" "$c" "${g##*/}"
  done
}
# What systemd has lost of a service that may be stopped is in the service's cgroup still.
end_leftovers() {
  n=0; for h in $(holders); do
    u=${h##*|}; case " $SERVICES " in *" $u "*) systemctl is-active -q "$u" || { kill "${h%%|*}" && n=20; } ;; esac
  done
  while [ $n -gt 0 ] && [ -n "$(holders)" ]; do sleep 0.5; n=$((n - 1)); done
}
busy() { mkdir -p /run/gpustate; echo "$1" >"$IN_USE"; start_services; fail "$1"; }
unload_modules() {
  [ ! -d /run/systemd/system ] || { stop_services; end_leftovers; }
  h=$(holders); [ -z "$h" ] || { start_services; fail "the GPUs are in use by" $h; }
  was=; for m in $UNLOAD_ORDER; do
    module_loaded "$m" || continue; was="$was $m"
    rmmod "$m" || busy "$m cannot be unloaded though no process holds a GPU"
  done
}
