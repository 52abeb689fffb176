"""The capability devices of MIG instances that /proc names: an sh fragment that probes and node programs share."""

from __future__ import annotations

#: Prints ``cap=PATH NUMBERS 1 MODE NAME`` for each capability of an instance, with the major number of nvidia-caps in ``c``; those of
#: ``mig/config`` and ``mig/monitor``, which only programs that divide GPUs open, where their nodes are there.
CAPS = r"""  [ -z "$c" ] || for g in "$PROC"/driver/nvidia/capabilities/mig/config "$PROC"/driver/nvidia/capabilities/mig/monitor \
    "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
    [ -r "$g" ] || continue
    m=; w=292; u=1; while IFS=': ' read -r n x; do
      case $n in DeviceFileMinor) m=$x ;; DeviceFileMode) w=$x ;; DeviceFileModify) u=$x ;; esac
    done <"$g"
    [ -n "$m" ] && [ "$u" != 0 ] || continue
    case $g in */access) ;; *) [ -e "/dev/nvidia-caps/nvidia-cap$m" ] || continue ;; esac
    g=${g#*/capabilities/}; echo "cap=/dev/nvidia-caps/nvidia-cap$m $c:$m 1 $w ${g%/access}"
  done
"""

__all__ = ["CAPS"]
