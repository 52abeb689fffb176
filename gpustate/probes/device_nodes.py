"""Device nodes of the driver below /dev: which there should be, what is wrong with them, how they are made.

A module that is loaded says nothing of the nodes below /dev: containers and NVML itself see only the GPUs that
have one. A GPU instance and a compute instance of MIG have one more each, their capability, below
/dev/nvidia-caps; who may open both may use the MIG device.

Surprising: device nodes are made by whoever first opens a GPU, not by the module, so one that is missing is
damage only where its GPU has been opened: until then /proc shows its UUID with question marks. The major number
of ``nvidia-caps`` is given anew at each load of the module, so nodes of an earlier one can stay behind.

Sources:
    NVIDIA driver README, "Using the Device Files": ModifyDeviceFiles, DeviceFileUID, -GID, -Mode; 195 is
    the major number, 255 the minor of nvidiactl. NVIDIA/nvidia-modprobe, nvidia-modprobe-utils.c: -u makes
    nvidia-uvm and nvidia-uvm-tools; ``nvidia_cap_mknod``: DeviceFileMinor of a file below
    /proc/driver/nvidia/capabilities is that of /dev/nvidia-caps/nvidia-capN, DeviceFileMode its mode,
    DeviceFileModify 0 leaves it to the administrator. MIG User Guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate.formats.numbers import hexadecimal
from gpustate.probes.mig_capabilities import CAPS

#: Sets ``a``, ``v`` and ``c``: major numbers of nvidia, nvidia-uvm and nvidia-caps; empty where there is none.
_MAJORS = r"""a=195; v=; c=; while read -r n m; do
    case "$n $m" in
      'Block devices:') break ;;
      *' nvidia'|*' nvidia-frontend') a=$n ;; *' nvidia-uvm') v=$n ;; *' nvidia-caps') c=$n ;;
    esac
  done <"$PROC/devices"
"""
_FOUND = """for n in @GLOBS@; do if [ -e "$n" ]; then set -- "$@" "$n"; fi; done
  [ $# = 0 ] || stat -L -c 'found=%n|%F|%t|%T' "$@"
"""
_LOADED = (
    '[ -z "${GPUSTATE_IMAGE-}" ] && [ -r "$PROC/driver/nvidia/version" ] && [ -r "$PROC/devices" ]'
)

#: Prints ``node=PATH NUMBERS OPENED`` for each device node there should be, and ``found=`` for those there are.
NODES = (
    f"\nif {_LOADED}; then\n  {_MAJORS}"
    r"""  y=; for g in "$PROC"/driver/nvidia/gpus/*/information; do
    [ -r "$g" ] || continue
    m=; u=; while IFS=: read -r n x; do
      case $n in 'Device Minor') m=${x##*[!0-9]} ;; 'GPU UUID') u=${x##*[!A-Za-z0-9?-]} ;; esac
    done <"$g"
    case $u in ''|*'?'*) u= ;; *) u=1 y=1 ;; esac
    [ -z "$m" ] || echo "node=/dev/nvidia$m $a:$m $u"
  done
  echo "node=/dev/nvidiactl $a:255 $y"
  if [ -n "$v" ]; then
    u=; if [ -e /dev/nvidia-uvm-tools ]; then u=1; fi
    echo "node=/dev/nvidia-uvm $v:0 $u"
  fi
"""
    f"{CAPS}  set --; "
    + _FOUND.replace(
        "@GLOBS@",
        "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]* /dev/nvidia-caps/nvidia-cap[0-9]*",
    )
    + "fi\n"
)
#: The same of capabilities alone.
CAPABILITIES = (
    f"\nif {_LOADED}; then\n  {_MAJORS}{CAPS}  set --; "
    + _FOUND.replace("@GLOBS@", "/dev/nvidia-caps/nvidia-cap[0-9]*")
    + "fi\n"
)


def make(nodes: str) -> str:
    """Make what ``NODES`` or ``CAPABILITIES`` finds wrong, with the owner and mode that the driver's files in /proc say."""
    return (
        f"nodes() {{\n{nodes}}}\n"
        'o=0 g=0 w=438; while IFS=" :" read -r n x; do case $n in DeviceFileUID) o=$x ;; DeviceFileGID) g=$x ;; DeviceFileMode) w=$x ;; esac\n'
        'done <"$PROC/driver/nvidia/params"\n'
        "nodes | while read -r k d _ m _; do\n"
        "  case $k in node=*|cap=*) p=${k#*=} ;; *) continue ;; esac\n"
        "  set -- $(stat -L -c '%t %T %F' \"$p\" 2>/dev/null)\n"
        '  if [ "${3-}" = character ] && [ "$((0x$1)):$((0x$2))" = "$d" ]; then continue; fi\n'
        '  [ ! -d "$p" ] || [ -L "$p" ] || rmdir "$p"\n'
        # Files of capabilities say their mode themselves, and no owner.
        '  case $p in */nvidia-caps/*) mkdir -p -m 0755 "${p%/*}"; i=0:0 ;; *) i=$o:$g m=$w ;; esac\n'
        '  t=${p%/*}/.gpustate-node; rm -f "$t"; mknod "$t" c "${d%:*}" "${d#*:}"\n'
        '  chown "$i" "$t"; chmod "$(printf %o "$m")" "$t"; mv -fT "$t" "$p"; echo "$p $d"\n'
        "done\neffect made"
    )


def wrong(wanted: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    """What is wrong with device nodes, from the rows ``node=`` and ``cap=``, and ``found=``, of :data:`NODES`."""
    there: dict[str, str] = {}
    for row in found:
        path, kind, major, minor = (*row.split("|"), "", "", "")[:4]
        numbers = f"{hexadecimal(major)}:{hexadecimal(minor)}"
        there[path] = numbers if kind == "character special file" else f"a {kind}"
    told: list[str] = []
    for row in wanted:
        path, numbers, opened, _, name = (*row.split(" "), "", "", "", "")[:5]
        has, whose = there.get(path), f" ({name})" if name else ""
        if has is None and opened:
            told.append(f"{path} is missing{whose}")
        elif has is not None and has != numbers:
            told.append(f"{path} is {has}, not {numbers}{whose}")
    return tuple(sorted(told))


__all__ = ["CAPABILITIES", "NODES", "make", "wrong"]
