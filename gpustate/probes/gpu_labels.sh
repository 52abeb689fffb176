# shellcheck shell=sh
# Prints machine=PRODUCT, devices=COUNT, and the configuration space of NVIDIA's devices in hexadecimal digits.
m=; [ -r "$SYS/class/dmi/id/product_name" ] && { read -r m <"$SYS/class/dmi/id/product_name" || :; printf 'machine=%s\n' "$m"; }
set --; for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v 2>/dev/null <"$d/vendor" || continue
  [ "$v" != 0x10de ] || set -- "$@" "$d/config"
done
echo "devices=$#"; [ $# = 0 ] || head -q -c 256 -- "$@" 2>/dev/null | od -An -v -tx1 -w256
:
