"""Fragments of sh that observe a node for the checks of the validation, and their parser.

``KEY_SCRIPT`` is cheap and part of every probe; it shows whether the last validation is still valid.
``CHAIN_SCRIPT`` runs other programs and is used only by validate and explain. Both print
lines ``key=field|field...`` and only read.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    /proc/driver/nvidia/version: its first line names version and "Open Kernel Module";
    CDI specification 0.6 and later: ``devices[].name``, ``hostPath``, ``deviceNodes[].path``.
"""

from __future__ import annotations

import hashlib
import re

from gpustate.diagnosis import chain_data as chain
from gpustate.formats import quarantine, xids
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.probes import cri_status
from gpustate.probes.mig_capabilities import CAPS

KEY_SCRIPT = (
    r"""
b=; read -r b </proc/sys/kernel/random/boot_id; printf 'boot_id=%s\n' "$b"
v=; [ -r "$PROC/driver/nvidia/version" ] && read -r v <"$PROC/driver/nvidia/version"
printf 'version=%s\n' "$v"
set --
for f in /etc/containerd/config.toml /etc/containerd/conf.d/*.toml /etc/nvidia-container-runtime/config.toml \
  /etc/docker/daemon.json /etc/crio/crio.conf /etc/crio/crio.conf.d/* /etc/cdi/nvidia* /var/run/cdi/nvidia*; do
  [ -f "$f" ] && set -- "$@" "$f"
done
d=none; [ $# = 0 ] || { d=$(sha256sum "$@" | sha256sum); d=${d%% *}; }
set --
for f in containerd containerd-shim-runc-v2 dockerd crio podman runc crun nvidia-container-runtime nvidia-cdi-hook nvidia-container-runtime-hook; do
  for g in /usr/bin/$f /usr/sbin/$f /usr/local/bin/$f; do [ -e "$g" ] && set -- "$@" "$g"; done
done
[ $# = 0 ] || { d=$({ echo "$d"; stat -L -c '%n %s %a %Y %i' "$@"; } | sha256sum); d=${d%% *}; }
printf 'runtime_digest=%s\n' "$d"
k=; { read -r k </proc/sys/kernel/osrelease; } 2>/dev/null
set --
for d in /usr/lib/*-linux-gnu /usr/lib/*-linux-gnu/nvidia/current /usr/lib64; do
  for f in "$d"/libcuda.so.* "$d"/libnvidia-ml.so.* "$d"/libnvidia-ptxjitcompiler.so.*; do [ -e "$f" ] && set -- "$@" "$f"; done
done
for f in /lib/modules/"$k"/updates/dkms/nvidia*.ko* /lib/modules/"$k"/extra/nvidia*.ko* \
  /lib/modules/"$k"/kernel/nvidia*/nvidia*.ko* /lib/modules/"$k"/kernel/drivers/video/nvidia*.ko*; do
  # GPUDirect Storage's module is not part of the driver, and comes without it.
  case ${f##*/} in nvidia-fs.*) ;; *) [ -f "$f" ] && set -- "$@" "$f" ;; esac
done
[ $# = 0 ] || stat -c 'driver_file=%n %s %.9Y %.9Z %i' "$@"
f=/run/nvidia-fabricmanager/nv-fabricmanager.pid; fp=
[ -r "$f" ] && read -r fp <"$f"
case $fp in ''|*[!0-9]*) ;; *) [ ! -d "/proc/$fp" ] || echo manager=1 ;; esac
"""
    + quarantine.SCRIPT
)

#: ``L`` are the folders to look for libraries in, ``limit`` the seconds one program may take.
CHAIN_SCRIPT = (
    cri_status.FUNCTION
    + r"""
nl='
'
printf 'kernel=%s\n' "$(uname -r)"
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v <"$d/vendor" || continue
  [ "$v" = 0x10de ] || continue
  read -r i <"$d/device"; read -r c <"$d/class"; k=
  [ -e "$d/driver" ] && { k=$(cd -P "$d/driver" && pwd); k=${k##*/}; }
  printf 'pci=%s|%s|%s|%s\n' "${d##*/}" "${i#0x}" "${c#0x}" "$k"
done
for d in "$PROC"/driver/nvidia/gpus/*; do
  [ -r "$d/information" ] || continue
  m=; u=
  while IFS=: read -r a x; do
    case $a in "Device Minor"*) m=$(echo $x);; "GPU UUID"*) u=$(echo $x);; esac
  done <"$d/information"
  printf 'gpu=%s|%s|%s\n' "${d##*/}" "$m" "$u"
done
m=$(timeout -k 2 ${limit:-15} modinfo -F version nvidia) && printf 'on_disk=%s\n' "$m"
dangling() { printf 'odd=%s|%s leads to %s, which does not exist\n' "$1" "$2" "$(readlink "$2")"; } # name link
for n in libnvidia-ml.so.1 libcuda.so.1; do
  b=; g=
  for d in $L; do
    [ -f "$d/$n" ] && { printf 'library=%s|%s|%s\n' $n "$d/$n" "$(readlink -f "$d/$n")"; b=1
      printf 'elf=%s|%s|%s\n' $n "$(stat -L -c %s "$d/$n")" "$(od -An -v -tx1 -N64 "$d/$n" | tr -d ' \n')"; break; }
    [ -n "$g" ] || { [ ! -e "$d/$n" ] && [ ! -L "$d/$n" ]; } || g=$d/$n
  done
  # A pipe is not opened: nobody may be at its other end.
  if [ -n "$b" ] || [ -z "$g" ]; then :
  elif [ -e "$g" ]; then stat -L -c "odd=$n|$g is a %F, no library" "$g"
  else dangling $n "$g"; fi
done
if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f 'package=${Package}|${Version}|${db:Status-Abbrev}\n' libcuda1 libnvidia-ml1 \
    'libnvidia-compute*' nvidia-kernel-dkms nvidia-kernel-open-dkms 'nvidia-dkms-*'
elif command -v rpm >/dev/null; then
  rpm -qa --qf 'package=%{NAME}|%{VERSION}|ii \n' 'nvidia-driver-cuda*' kmod-nvidia-open-dkms kmod-nvidia-latest-dkms
fi
c=; while read -r a n; do
  [ "$a $n" = "Block devices:" ] && break
  case $n in nvidia*) printf 'major=%s|%s\n' "$n" "$a";; esac
  [ "$n" != nvidia-caps ] || c=$a
done <"$PROC/devices"
"""
    + CAPS
    + r"""set --; for f in /dev/nvidia* /dev/nvidia-caps/nvidia-cap[0-9]*; do
  # Folders belong there too, and not under these names.
  case $f in */nvidia[0-9]*|*/nvidiactl|*/nvidia-uvm*|*/nvidia-cap[0-9]*) ;; *) [ ! -d "$f" ] || continue ;; esac
  [ ! -e "$f" ] || set -- "$@" "$f"
done
[ $# = 0 ] || stat -L -c 'node=%n|%F|%t|%T' "$@"
unusable() { # program
  printf '%s\n' "$PATH" | tr : '\n' | while read -r d; do
    if [ -e "$d/$1" ]; then stat -L -c "odd=$1|$d/$1 is a %F of mode %a, which nobody can run" "$d/$1"; break
    elif [ -L "$d/$1" ]; then dangling "$1" "$d/$1"; break; fi
  done
}
version() { # key program
  p=$(command -v "$2") || { unusable "$2"; return 0; }
  # Where Kubernetes brings a runc of its own, its containerd finds it, and so has this one to.
  o=$(PATH=$PATH:/var/lib/rancher/k3s/data/current/bin:/var/lib/rancher/rke2/bin:/var/lib/k0s/bin:/snap/microk8s/current/bin
    timeout -k 2 ${limit:-15} "$2" --version 2>&1); r=$?
  # One that says its version first and then fails says why at the end.
  case $r:${o%%"$nl"*} in 0:*) ;; *" version "*) o=${o##*"$nl"} ;; esac
  printf '%s=%s|%s|%s\n' "$1" "$p" $r "${o%%"$nl"*}"
}
version ctk nvidia-ctk
version runtime_binary nvidia-container-runtime
for n in crio dockerd k3s podman; do command -v $n >/dev/null && printf 'other=%s\n' $n; done
command -v kubelet >/dev/null && echo kubelet=1
if p=$(command -v containerd); then
  a=0; x=; f=
  if [ -d /run/systemd/system ]; then
    while IFS= read -r l; do
      case $l in ActiveState=active|ActiveState=reloading) a=1 ;; ExecStart=*) x=${l#*argv\[\]=}; x=${x%% ; *} ;; esac
    done <<END
$(systemctl show -p ActiveState,ExecStart containerd)
END
    set -f; set -- $x; set +f
    while [ $# -gt 1 ]; do
      shift; case $1 in -c|--config) f=${2-} ;; -c=*|--config=*) f=${1#*=} ;; esac
    done
    # Of another program -c may mean anything.
    case $f in /etc/containerd/config.toml) f= ;; /*) printf 'containerd_config=%s\n' "$f" ;; *) f= ;; esac
  elif [ -S /run/containerd/containerd.sock ]; then a=1; fi
  o=$(timeout -k 2 ${limit:-15} containerd ${f:+--config "$f"} config dump 2>&1); r=$?; e=; [ $r = 0 ] || e=$(printf '%s' "$o" | tail -n 1)
  printf 'containerd=%s|%s|%s|%s\n' "$p" $a $r "$e"
  [ $r != 0 ] || printf '%s\n' "$o" | awk '
    /^[ \t]*\[/ { s = $0; gsub(/[\047" \t]/, "", s) }
    /^[ \t]*[Bb]inaryName[ \t]*=/ && s ~ /\.runtimes\.[^.]+\.options\]$/ {
      sub(/^[^=]*=[ \t]*/, ""); gsub(/["\047]/, ""); sub(/^.*\.runtimes\./, "", s); sub(/\.options\]$/, "", s)
      if ($0 != "") print s, $0
    }' | while read -r h w; do
    t=0; command -v "$w" >/dev/null && t=1
    printf 'handler=%s|%s|%s\n' "$h" "$w" $t
  done
  [ $r != 0 ] || printf '%s\n' "$o" | sed -n 's/^disabled_plugins *= */containerd_disabled=/p'
  s=$(printf '%s\n' "$o" | sed -n "/^ *\[grpc\]/,/^ *\[[^g]/s/^ *address *= *[\"']\([^\"']*\).*/\1/p" | head -n 1)
  [ -n "$s" ] || s=/run/containerd/containerd.sock
  case $a$r in 10) cri_says "$s" ;; esac
fi
[ ! -S /var/run/crio/crio.sock ] || ! command -v crio >/dev/null || cri_says /var/run/crio/crio.sock | sed 's/^/crio_/'
"""
    + cri_status.BUNDLED_SAYS
    + cri_status.KUBELET
    + r"""
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?,?$' "$f" || continue
  printf 'cdi=%s\n' "$f"
  sed -n 's/^[- ]*"\{0,1\}name"\{0,1\}: *"\{0,1\}\([^", ]*\)"\{0,1\},\{0,1\}$/device=\1/p' "$f"
  sed -n 's/^[- ]*"\{0,1\}\(hostPath\|path\)"\{0,1\}: *"\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\2/p' "$f" | sort -u |
    while read -r p; do [ -e "$p" ] || printf 'missing=%s\n' "$p"; done
done
"""
    + xids.SCRIPT
    + ":\n"
)

_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)*)\b")


def loaded_version(line: str) -> str:
    """Version in the first line of /proc/driver/nvidia/version; empty when there is none.

    The word before it differs between the open and the proprietary module.
    """
    match = _VERSION.search(line.partition("Kernel Module")[2])
    return match[1] if match else ""


def _upstream(version: str) -> str:
    """Without Debian's epoch and revision."""
    version = version.partition(":")[2] or version
    return version.rpartition("-")[0] or version


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return -1


def pairs(text: str) -> list[tuple[str, str]]:
    """The lines ``key=value`` of a fragment's output, in order; others are left out."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found.append((key, value))
    return found


def quarantine_of(text: str) -> quarantine.Quarantine:
    """Parse the quarantined GPUs in the output of ``KEY_SCRIPT``."""
    fields = dict(reversed(pairs(text)))
    now = fields.get("now", "")
    return quarantine.read(fields.get("quarantine", ""), int(now) if now.isdigit() else 0)


def key_fields(text: str) -> dict[str, str]:
    """Read ``KEY_SCRIPT``: boot_id, version (the whole line), runtime_digest, files_digest, manager."""
    rows = pairs(text)
    fields = dict(rows)
    found = {name: fields.get(name, "") for name in ("boot_id", "version", "runtime_digest")}
    return {**found, "files_digest": _files_digest(rows), "manager": fields.get("manager", "")}


def _files_digest(rows: list[tuple[str, str]]) -> str:
    """Digest of size, times and inode of the driver's libraries and modules; empty if there are none."""
    files = "\n".join(sorted(value for name, value in rows if name == "driver_file"))
    return hashlib.sha256(files.encode()).hexdigest()[:16] if files else ""


def is_whole(size: int, header: str) -> bool:
    """A library starts like ELF and is as long as its header says.

    The table of sections is the last thing in a file that a linker wrote: offset, size and number of its
    rows stand in the header (elf(5): e_shoff, e_shentsize, e_shnum).
    """
    try:
        head = bytes.fromhex(header)
    except ValueError:
        return True
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    if head[4:6] != b"\x02\x01":  # not of 64 bits, or not little-endian
        return True
    offset, rows = int.from_bytes(head[40:48], "little"), int.from_bytes(head[60:62], "little")
    return size >= offset + rows * int.from_bytes(head[58:60], "little")


class _Lines:
    """The fragment's lines by key, each split at its bars into a fixed number of fields."""

    def __init__(self, text: str) -> None:
        self.pairs = pairs(text)

    def all(self, key: str, fields: int) -> list[list[str]]:
        rows = [value.split("|", fields - 1) for name, value in self.pairs if name == key]
        return [row for row in rows if len(row) == fields]

    def values(self, key: str) -> list[str]:
        return [value for name, value in self.pairs if name == key]

    def one(self, key: str) -> str:
        return next(iter(self.values(key)), "")

    def program(self, key: str) -> chain.Program | None:
        rows = self.all(key, 3)
        return chain.Program(rows[0][0], _number(rows[0][1]), rows[0][2]) if rows else None

    def cdi(self) -> tuple[chain.CdiSpec, ...]:
        specs: list[tuple[str, list[str], list[str]]] = []
        for name, value in self.pairs:
            if name == "cdi":
                specs.append((value, [], []))
            elif name == "device" and specs:
                specs[-1][1].append(value)
            elif name == "missing" and specs:
                specs[-1][2].append(value)
        return tuple(
            chain.CdiSpec(path, tuple(devices), tuple(missing)) for path, devices, missing in specs
        )


def _containerd(lines: _Lines) -> chain.Containerd | None:
    rows = lines.all("containerd", 4)
    if not rows:
        return None
    path, active, status, error = rows[0]
    handlers = tuple(
        (name, binary, there == "1") for name, binary, there in lines.all("handler", 3)
    )
    return chain.Containerd(
        *(path, active == "1", _number(status), error, handlers),
        config=lines.one("containerd_config"),
        disabled=_disabled(lines.one("containerd_disabled")),
        cri=_cri(lines),
    )


def _disabled(names: str) -> str:
    """The entry of containerd's ``disabled_plugins`` that switches CRI off."""
    found = re.findall(
        r"""["'](cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.runtime)["']""", names
    )
    return str(found[0]) if found else ""


def _cri(lines: _Lines, prefix: str = "") -> cri_status.CriStatus | None:
    keys: dict[str, list[str]] = {"kubelet_cgroup": lines.values("kubelet_cgroup")}
    for key in ("cri_socket", "cri", "cri_false", "cri_handler"):
        keys[key] = lines.values(prefix + key)
    return cri_status.read(keys)


def parse(
    text: str, nvml: NvmlFacts, cuda: tuple[chain.CudaResult, ...] | None = None
) -> chain.ChainObservation:
    """Parse the output of ``KEY_SCRIPT`` followed by that of ``CHAIN_SCRIPT``."""
    lines = _Lines(text)
    torn = {name for name, size, head in lines.all("elf", 3) if not is_whole(_number(size), head)}
    libraries = {
        name: chain.Library(path, target, name not in torn)
        for name, path, target in lines.all("library", 3)
    }
    return chain.ChainObservation(
        boot_id=lines.one("boot_id"),
        kernel=lines.one("kernel"),
        pci=tuple(chain.PciSeen(*row) for row in lines.all("pci", 4)),
        loaded=loaded_version(lines.one("version")),
        open_module="Open Kernel Module" in lines.one("version"),
        module_gpus=tuple(
            chain.ModuleGpu(address, _number(minor), uuid)
            for address, minor, uuid in lines.all("gpu", 3)
        ),
        on_disk=lines.one("on_disk"),
        nvml_library=libraries.get("libnvidia-ml.so.1"),
        cuda_library=libraries.get("libcuda.so.1"),
        packages=tuple(
            (name, _upstream(version))
            for name, version, status in lines.all("package", 3)
            if status[1:2] == "i"
        ),
        majors=tuple((name, _number(major)) for name, major in lines.all("major", 2)),
        nodes=tuple(
            (
                path,
                chain.DeviceNode(
                    kind == "character special file", _number(major, 16), _number(minor, 16), kind
                ),
            )
            for path, kind, major, minor in lines.all("node", 4)
        ),
        capabilities=tuple(
            (row[0], _number(row[1].rpartition(":")[2]), row[4])
            for row in (value.split(" ") for value in lines.values("cap"))
            if len(row) == 5
        ),
        odd=tuple((name, what) for name, what in lines.all("odd", 2)),
        nvml=nvml,
        ctk=lines.program("ctk"),
        runtime_binary=lines.program("runtime_binary"),
        containerd=_containerd(lines),
        crio=_cri(lines, "crio_"),
        bundled=_cri(lines, "bundled_"),
        other_runtimes=tuple(lines.values("other")),
        kubelet=lines.one("kubelet") == "1",
        cdi=lines.cdi(),
        cuda=cuda,
        runtime_digest=lines.one("runtime_digest"),
        files_digest=_files_digest(lines.pairs),
        manager=lines.one("manager") == "1",
        log=xids.parse(lines.values("xid")),
        quarantine=quarantine_of(text),
    )
