# shellcheck shell=sh
# Prints nic=, loaded=, disk=, symbol= and info= of RDMA, and own= of a kernel that has the symbol
# itself. @SYMBOL@ is the name to look up. Expects ko.
for device in "$SYS"/bus/pci/devices/*; do
  version=
  class=
  { read -r version <"$device/vendor" && read -r class <"$device/class"; } 2>/dev/null || continue
  case $version$class in 0x15b30x02*) echo "nic=${device##*/}" ;; esac
done
kernel=
[ -n "${GPUSTATE_IMAGE-}" ] || kernel="${KERNEL_RELEASE-$(uname -r)}"
if [ -n "$kernel" ]; then
  machine=$(uname -m)
  for module in mlx_compat mlx5_core ib_core; do
    version=
    source_version=
    { read -r version <"$SYS/module/$module/version"; } 2>/dev/null
    { read -r source_version <"$SYS/module/$module/srcversion"; } 2>/dev/null
    [ -d "$SYS/module/$module" ] && echo "loaded=$module $version|$source_version"
    ko "$kernel" "$module" || continue
    # shellcheck disable=SC2154 # module_file: set by ko
    about "$module_file" '%s\n' | {
      version=
      source_version=
      while read -r key line; do
        case $key in version:) version=$line ;; srcversion:) source_version=$line ;; esac
      done
      echo "disk=$module $version|$source_version"
    }
  done
  for f in "/usr/src/ofa_kernel/$machine/$kernel" "/usr/src/ofa_kernel/$kernel" \
    /usr/src/ofa_kernel/default; do
    [ -r "$f/Module.symvers" ] || continue
    grep -wm1 @SYMBOL@ "$f/Module.symvers" | while read -r line; do echo "symbol=$line"; done
    break
  done
  f=/lib/modules/$kernel/build/Module.symvers
  [ ! -r "$f" ] || grep -wm1 @SYMBOL@ "$f" | while read -r line; do echo "own=$line"; done
fi
command -v ofed_info >/dev/null &&
  echo "info=$(timeout -k 2 10 ofed_info -s 2>/dev/null | head -n 1)"
:
