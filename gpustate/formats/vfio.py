"""Select PCI functions for virtual machines, and the program that binds them to vfio at boot.

A device is named by its address (0000:1b:00.0), by vendor and device (10de:2330: every board of that
kind), or as ``gpus``: every NVIDIA GPU and NVSwitch. The other functions of a GPU's slot (sound, USB) go with it,
for they lie in its IOMMU group.

The program writes ``driver_override``, like driverctl, and not ``options vfio-pci ids=``, which would bind
every board of a model.

Sources:
    Linux, Documentation/ABI/testing/sysfs-bus-pci (driver_override, drivers_probe); driverctl(8);
    NVIDIA/k8s-driver-manager, vfio-manage (variant drivers by the vfio_pci: aliases, functions of the slot).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
IDENTIFIER = r"[0-9a-f]{4}:[0-9a-f]{4}"
GPUS = "gpus"
DEVICE = re.compile(f"({ADDRESS}|{IDENTIFIER}|{GPUS})")

# Functions that both the program at boot and the steps use. D: what is chosen; SYS: root of sys.
_COMMON = r"""
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
"""

_BIND = r"""
bad=
for a in $(chosen); do
  d=$B/devices/$a; t=$(best "$d"); modprobe -q "$t" || :
  printf '%s\n' "$t" >"$d/driver_override"
  w=$(driver_of "$d" | tr _ -); [ "$w" != "$(echo "$t" | tr _ -)" ] || continue
  [ -z "$w" ] || printf '%s\n' "$a" >"$d/driver/unbind"
  printf '%s\n' "$a" >"$B/drivers_probe"
  n=0; while [ "$(driver_of "$d" | tr _ -)" != "$(echo "$t" | tr _ -)" ] && [ $n -lt 25 ]; do n=$((n + 1)); sleep 0.2; done
  [ $n -lt 25 ] || bad="$bad $a"
done
[ -z "$bad" ] || { echo "not bound to a vfio driver:$bad (is the IOMMU on? see dmesg)" >&2; exit 1; }
"""

_RELEASE = r"""
for a in $(chosen); do
  d=$B/devices/$a; o=; { read -r o <"$d/driver_override"; } 2>/dev/null
  case $o in *vfio*) ;; *) continue;; esac
  printf '\n' >"$d/driver_override"
  case $(driver_of "$d") in *vfio*) printf '%s\n' "$a" >"$d/driver/unbind"; printf '%s\n' "$a" >"$B/drivers_probe" ;; esac
done
"""


def is_device(text: str) -> bool:
    """Whether the text names devices in one of the three ways."""
    return DEVICE.fullmatch(text) is not None


def _chosen(devices: Iterable[str]) -> str:
    # Checked by is_device: they contain no characters special to sh.
    return f"D='{' '.join(devices)}'\n"


def boot_program(devices: Iterable[str]) -> str:
    """The program that binds them, at boot and now."""
    head = "#!/bin/sh\n# Written by gpustate (state vfio); changes are undone by the next apply.\nset -e\n"
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH\n"
    return head + path + _chosen(devices) + _COMMON.lstrip("\n") + _BIND.lstrip("\n")


def release_program(devices: Iterable[str]) -> str:
    """sh that restores them to their own drivers."""
    return _chosen(devices) + _COMMON + _RELEASE


def query_program(devices: Iterable[str]) -> str:
    """sh that prints of each: address, driver, override, best driver, IOMMU group, and members of that group."""
    # In an image build the devices would be those of the build machine.
    return (
        '[ -z "${GPUSTATE_IMAGE-}" ] || exit 0\n'
        + _chosen(devices)
        + _COMMON
        + r"""
for a in $(chosen); do
  d=$B/devices/$a; o=; { read -r o <"$d/driver_override"; } 2>/dev/null; g=; [ -L "$d/iommu_group" ] && g=$(readlink "$d/iommu_group")
  k=$(driver_of "$d"); v=0; { read -r v <"$d/boot_vga"; } 2>/dev/null
  printf 'device=%s|%s|%s|%s|%s|%s\n' "$a" "$k" "$o" "$(best "$d")" "${g##*/}" "$v"
  [ -z "$g" ] || for m in "$S/kernel/iommu_groups/${g##*/}/devices"/*; do
    [ -e "$m" ] || [ -L "$m" ] || continue; c=; { read -r c <"$B/devices/${m##*/}/class"; } 2>/dev/null
    case $c in 0x0604*|0x0600*) ;; *) printf 'member=%s|%s|%s\n' "${g##*/}" "${m##*/}" "$(driver_of "$B/devices/${m##*/}")";; esac
  done
done
k="${KERNEL_RELEASE-$(uname -r)}"; grep -qE '/vfio[-_]pci\.ko' "/lib/modules/$k/modules.dep" "/lib/modules/$k/modules.builtin" 2>/dev/null && echo module=1
[ -n "$(find /proc/[0-9]*/fd -lname '/dev/vfio/[0-9]*' -print -quit 2>/dev/null)" ] && echo used=1
:"""
    )
