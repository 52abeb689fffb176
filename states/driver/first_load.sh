# shellcheck shell=sh
# Loads the modules that were built for an image, where GPUs are. Reads SYS; WANT (version and type)
# and LOAD_ORDER.
gpu=
for d in "$SYS"/bus/pci/devices/*; do
  vendor=
  class=
  { read -r vendor <"$d/vendor" && read -r class <"$d/class"; } 2>/dev/null || continue
  case $vendor$class in 0x10de0x0300* | 0x10de0x0302*)
    gpu=1
    break
    ;;
  esac
done
[ -n "$gpu" ] || {
  echo "no NVIDIA GPU on PCI: nothing to load"
  effect same
  exit 0
}
for module in $LOAD_ORDER; do module_loaded "$(echo "$module" | tr - _)" || modprobe "$module"; done
loaded=
read -r loaded <"$SYS/module/nvidia/version"
[ "$loaded" = "${WANT%% *}" ] || fail "driver $loaded is loaded, and $WANT is installed"
effect loaded
