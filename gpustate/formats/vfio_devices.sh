# shellcheck shell=sh
# Defines what the program at boot and the steps use. Reads D, what is chosen, and SYS, the root of sys.
# shellcheck disable=SC2254 # modules.alias holds patterns
S=${SYS:-/sys}; B=$S/bus/pci
chosen() { # addresses of what D names, each with the other functions of its slot
  for d in "$B"/devices/*; do
    v=; i=; c=; { read -r v <"$d/vendor" && read -r i <"$d/device" && read -r c <"$d/class"; } 2>/dev/null || continue
    a=${d##*/}
    for w in $D; do
      case $w in
        gpus) case $v$c in 0x10de0x0300*|0x10de0x0302*|0x10de0x0680*) ;; *) continue;; esac ;;
        *:*:*) [ "$w" = "$a" ] || continue ;;
        *) [ "0x${w%:*}|0x${w#*:}" = "$v|$i" ] || continue ;;
      esac
      for f in "$B/devices/${a%.*}".*; do c=; { read -r c <"$f/class"; } 2>/dev/null; case $c in 0x0604*) ;; *) echo "${f##*/}";; esac; done; break
    done
  done | sort -u
}
driver_of() { [ -L "$1/driver" ] && { r=$(readlink "$1/driver"); echo "${r##*/}"; }; }
best() { # device: the variant driver made for it, else vfio-pci
  m=; { read -r m <"$1/modalias"; } 2>/dev/null; m=${m#pci:}; t=vfio-pci
  while read -r _ a n; do
    [ "$n" != vfio_pci ] || continue; p=${a#vfio_pci:}; case $m in $p) t=$n; break;; esac
  done <<X
$(grep '^alias vfio_pci:' "/lib/modules/$(uname -r)/modules.alias" 2>/dev/null)
X
  echo "$t"
}
