# shellcheck shell=sh
# Defines unload_modules, which stops the services and sets was to the modules that it unloaded.
# Reads IN_USE (file) and UNLOAD_ORDER; calls stop_services and start_services.
holders() {
  for process in $(find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' 2>/dev/null |
    sort -u); do
    process=${process%/fd}
    command=
    { read -r command <"$process/comm"; } 2>/dev/null || continue
    cgroup=
    while read -r line; do cgroup=$line; done <"$process/cgroup"
    printf '%s|%s|%s\n' "${process#/proc/}" "$command" "${cgroup##*/}"
  done
}
# What systemd has lost of a service that may be stopped is in the service's cgroup still.
end_leftovers() {
  polls=0
  for holder in $(holders); do
    holder_unit=${holder##*|}
    case " $SERVICES " in
      *" $holder_unit "*)
        systemctl is-active -q "$holder_unit" || { kill "${holder%%|*}" && polls=20; }
        ;;
    esac
  done
  while [ $polls -gt 0 ] && [ -n "$(holders)" ]; do
    sleep 0.5
    polls=$((polls - 1))
  done
}
busy() {
  mkdir -p /run/gpustate
  echo "$1" >"$IN_USE"
  start_services
  fail "$1"
}
unload_modules() {
  [ ! -d /run/systemd/system ] || {
    stop_services
    end_leftovers
  }
  gpu_holders=$(holders)
  [ -z "$gpu_holders" ] || {
    start_services
    fail "the GPUs are in use by" $gpu_holders
  }
  was=
  for module in $UNLOAD_ORDER; do
    module_loaded "$module" || continue
    was="$was $module"
    rmmod "$module" || busy "$module cannot be unloaded though no process holds a GPU"
  done
}
