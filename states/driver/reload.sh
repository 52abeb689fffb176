# shellcheck shell=sh
# Unloads every NVIDIA module and loads the ones on disk. Reads WANT (version and type) and
# LOAD_ORDER; calls have, unload_modules and start_services.
kernel=$(uname -r)
was=
got=$(have "$kernel")
[ "$got" = "$WANT" ] ||
  fail "the running kernel $kernel has nvidia module ${got:-none} on disk, expected $WANT;" \
    "not unloading"
unload_modules
for module in $LOAD_ORDER; do modprobe "$module"; done
for module in $was; do
  case $module in
    nvidia | nvidia_uvm | nvidia_modeset) ;;
    *) modprobe "$module" || echo "$module does not load again" ;;
  esac
done
start_services
effect reloaded
