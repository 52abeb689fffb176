# shellcheck shell=sh
# Unloads every NVIDIA module and loads the ones on disk. Reads WANT (version and type) and LOAD_ORDER; calls have,
# unload_modules and start_services.
k=$(uname -r); was=; got=$(have "$k")
[ "$got" = "$WANT" ] || fail "the running kernel $k has nvidia module ${got:-none} on disk, expected $WANT; not unloading"
unload_modules
for m in $LOAD_ORDER; do modprobe "$m"; done
for m in $was; do case $m in nvidia|nvidia_uvm|nvidia_modeset) ;; *) modprobe "$m" || echo "$m does not load again";; esac; done
start_services
effect reloaded
