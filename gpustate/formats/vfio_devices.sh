# shellcheck shell=sh
# Defines what the program at boot and the steps use. Reads D, what is chosen, and SYS, the root of
# sys.
# shellcheck disable=SC2254 # modules.alias holds patterns
sys_root=${SYS:-/sys}
pci_root=$sys_root/bus/pci
chosen() { # addresses of what D names, each with the other functions of its slot
  for device in "$pci_root"/devices/*; do
    vendor=
    device_id=
    class=
    {
      read -r vendor <"$device/vendor" && read -r device_id <"$device/device" &&
        read -r class <"$device/class"
    } 2>/dev/null ||
      continue
    address=${device##*/}
    for choice in $D; do
      case $choice in
        gpus)
          case $vendor$class in
            0x10de0x0300* | 0x10de0x0302* | 0x10de0x0680*) ;;
            *) continue ;;
          esac
          ;;
        *:*:*) [ "$choice" = "$address" ] || continue ;;
        *) [ "0x${choice%:*}|0x${choice#*:}" = "$vendor|$device_id" ] || continue ;;
      esac
      for f in "$pci_root/devices/${address%.*}".*; do
        class=
        { read -r class <"$f/class"; } 2>/dev/null
        case $class in 0x0604*) ;; *) echo "${f##*/}" ;; esac
      done
      break
    done
  done | sort -u
}
driver_of() {
  [ -L "$1/driver" ] && {
    driver_link=$(readlink "$1/driver")
    echo "${driver_link##*/}"
  }
}
best() { # device: the variant driver made for it, else vfio-pci
  modalias=
  { read -r modalias <"$1/modalias"; } 2>/dev/null
  modalias=${modalias#pci:}
  target=vfio-pci
  while read -r _ alias driver; do
    [ "$driver" != vfio_pci ] || continue
    pattern=${alias#vfio_pci:}
    case $modalias in $pattern)
      target=$driver
      break
      ;;
    esac
  done <<X
$(grep '^alias vfio_pci:' "/lib/modules/$(uname -r)/modules.alias" 2>/dev/null)
X
  echo "$target"
}
