# shellcheck shell=sh
# Loads the modules that were built for an image, where GPUs are. Reads SYS; WANT (version and type) and LOAD_ORDER.
n=; for d in "$SYS"/bus/pci/devices/*; do v=; c=; { read -r v <"$d/vendor" && read -r c <"$d/class"; } 2>/dev/null || continue
  case $v$c in 0x10de0x0300*|0x10de0x0302*) n=1; break;; esac; done
[ -n "$n" ] || { echo "no NVIDIA GPU on PCI: nothing to load"; effect same; exit 0; }
for o in $LOAD_ORDER; do module_loaded "$(echo "$o" | tr - _)" || modprobe "$o"; done
v=; read -r v <"$SYS/module/nvidia/version"; [ "$v" = "${WANT%% *}" ] || fail "driver $v is loaded, and $WANT is installed"
effect loaded
