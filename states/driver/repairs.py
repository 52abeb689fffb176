"""Files of the driver that are damaged though its packages are right, and device nodes that are.

A package of the right version says nothing of its files, and a module that is loaded nothing of the nodes
below /dev: containers and NVML itself see only the GPUs that have one.

Surprising: device nodes are made by whoever first opens a GPU, not by the module, so one that is missing is
damage only where its GPU has been opened: until then /proc shows its UUID with question marks.

Sources:
    NVIDIA driver README, "Using the Device Files": ModifyDeviceFiles, DeviceFileUID, -GID, -Mode; 195 is
    the major number, 255 the minor of nvidiactl. NVIDIA/nvidia-modprobe: -u makes nvidia-uvm and nvidia-uvm-tools.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate import ops
from gpustate.model.package_files import PackageFiles, packages_of
from gpustate.text.numbers import hexadecimal

_LIBRARIES = tuple(
    f"/usr/lib/*-linux-gnu/{folder}{name}.so.*"
    for folder in ("", "nvidia/current/")
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
)
#: The files of the driver without which no program reaches a GPU.
FILES = PackageFiles(
    "driver-files",
    (
        *("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-compute"),
        *("libnvidia-compute-[0-9]*", "nvidia-smi", "nvidia-modprobe", "nvidia-persistenced"),
        *("nvidia-utils-[0-9]*", "nvidia-compute-utils-[0-9]*"),
    ),
    (
        *_LIBRARIES,
        *("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/nvidia-persistenced"),
    ),
)

#: Prints ``node=PATH NUMBERS OPENED`` for each device node there should be, and ``found=`` for those there are.
NODES = r"""
if [ -z "${GPUSTATE_IMAGE-}" ] && [ -r "$PROC/driver/nvidia/version" ] && [ -r "$PROC/devices" ]; then
  a=195; v=; while read -r n m; do
    case "$n $m" in 'Block devices:') break ;; *' nvidia'|*' nvidia-frontend') a=$n ;; *' nvidia-uvm') v=$n ;; esac
  done <"$PROC/devices"
  y=; for g in "$PROC"/driver/nvidia/gpus/*/information; do
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
  set --; for n in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia[0-9]*; do if [ -e "$n" ]; then set -- "$@" "$n"; fi; done
  [ $# = 0 ] || stat -L -c 'found=%n|%F|%t|%T' "$@"
fi
"""


def wrong_nodes(wanted: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    """What is wrong with device nodes, from the rows ``node=`` and ``found=`` of :data:`NODES`."""
    there: dict[str, str] = {}
    for row in found:
        path, kind, major, minor = (*row.split("|"), "", "", "")[:4]
        numbers = f"{hexadecimal(major)}:{hexadecimal(minor)}"
        there[path] = numbers if kind == "character special file" else f"a {kind}"
    wrong: list[str] = []
    for row in wanted:
        path, numbers, opened = (*row.split(" "), "", "")[:3]
        has = there.get(path)
        if has is None and opened:
            wrong.append(f"{path} is missing")
        elif has is not None and has != numbers:
            wrong.append(f"{path} is {has}, not {numbers}")
    return tuple(sorted(wrong))


def explain(library: str | None, damaged: tuple[str, ...]) -> bool:
    """NVML's library cannot be found because a file or a link is damaged, not because it is another."""
    return library is None and any("/libnvidia-ml.so." in row for row in damaged)


def files(damaged: tuple[str, ...]) -> ops.Run:
    """Make the links anew; where that is not enough, unpack the packages again at their own versions."""
    return ops.Run(
        f"{FILES.checked()}"
        'ldconfig; s=$(checked); [ -n "$s" ] || { effect linked; exit 0; }\n'
        "set --; for p in $(printf '%s\\n' \"$s\" | sed 's/: .*//' | sort -u); do\n"
        '  set -- "$@" "$(dpkg-query -W -f \'${binary:Package}=${Version}\' "$p")"; done\n'
        'apt_ready && apt_fetch --reinstall "$@" && apt_swap --reinstall "$@" || exit 1\nldconfig\n'
        's=$(checked); [ -z "$s" ] || fail "$s; the repositories did not bring back" "$@" "(apt-cache policy says what they offer)"\n'
        "effect reinstalled",
        f"put back files of {', '.join(packages_of(damaged))}",
        timeout=3600,
    )


def nodes() -> ops.Run:
    """Make device nodes as the driver would, with the owner and mode that its parameters say."""
    return ops.Run(
        f"nodes() {{\n{NODES}}}\n"
        'o=0 g=0 w=438; while IFS=" :" read -r n x; do case $n in DeviceFileUID) o=$x ;; DeviceFileGID) g=$x ;; DeviceFileMode) w=$x ;; esac\n'
        'done <"$PROC/driver/nvidia/params"\n'
        'nodes | while IFS="= " read -r k p d _; do\n'
        '  [ "$k" = node ] || continue\n'
        "  set -- $(stat -L -c '%t %T %F' \"$p\" 2>/dev/null)\n"
        '  if [ "${3-}" = character ] && [ "$((0x$1)):$((0x$2))" = "$d" ]; then continue; fi\n'
        '  [ ! -d "$p" ] || [ -L "$p" ] || rmdir "$p"\n'
        '  t=${p%/*}/.gpustate-node; rm -f "$t"; mknod "$t" c "${d%:*}" "${d#*:}"\n'
        '  chown "$o:$g" "$t"; chmod "$(printf %o "$w")" "$t"; mv -fT "$t" "$p"; echo "$p $d"\n'
        "done\neffect made",
        "make NVIDIA's device nodes",
        timeout=60,
        running=True,
    )


__all__ = ["FILES", "NODES", "explain", "files", "nodes", "wrong_nodes"]
