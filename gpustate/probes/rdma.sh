# shellcheck shell=sh
# Prints nic=, loaded=, disk=, symbol= and info= of RDMA, and own= of a kernel that has the symbol itself. @SYMBOL@ is the name to look up. Expects ko.
for d in "$SYS"/bus/pci/devices/*; do
  v=; c=; { read -r v <"$d/vendor" && read -r c <"$d/class"; } 2>/dev/null || continue
  case $v$c in 0x15b30x02*) echo "nic=${d##*/}";; esac
done
k=; [ -n "${GPUSTATE_IMAGE-}" ] || k="${KERNEL_RELEASE-$(uname -r)}"
if [ -n "$k" ]; then
  m=$(uname -m)
  for n in mlx_compat mlx5_core ib_core; do
    v=; s=; { read -r v <"$SYS/module/$n/version"; } 2>/dev/null; { read -r s <"$SYS/module/$n/srcversion"; } 2>/dev/null
    [ -d "$SYS/module/$n" ] && echo "loaded=$n $v|$s"
    ko "$k" "$n" || continue
    # shellcheck disable=SC2154 # p: set by ko
    about "$p" '%s\n' | { v=; s=; while read -r a l; do case $a in version:) v=$l ;; srcversion:) s=$l ;; esac; done; echo "disk=$n $v|$s"; }
  done
  for f in "/usr/src/ofa_kernel/$m/$k" "/usr/src/ofa_kernel/$k" /usr/src/ofa_kernel/default; do
    [ -r "$f/Module.symvers" ] || continue
    grep -wm1 @SYMBOL@ "$f/Module.symvers" | while read -r l; do echo "symbol=$l"; done
    break
  done
  f=/lib/modules/$k/build/Module.symvers; [ ! -r "$f" ] || grep -wm1 @SYMBOL@ "$f" | while read -r l; do echo "own=$l"; done
fi
command -v ofed_info >/dev/null && echo "info=$(timeout -k 2 10 ofed_info -s 2>/dev/null | head -n 1)"
:
