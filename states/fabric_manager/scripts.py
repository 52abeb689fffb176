"""What the steps of Fabric Manager run on a node, as sh."""

from __future__ import annotations

from gpustate.probes.fabric import COUNT_BRIDGES

UNIT = "nvidia-fabricmanager.service"

#: The driver that an image has; nothing is loaded there.
INSTALLED = r"""for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] && { f=$(readlink -f "$f"); echo "${f##*.so.}"; break; }
done; :"""

#: The subnet manager runs, and is the one that is installed. Fabric Manager's start script writes its
#: pid; other ways of starting it write it elsewhere, or not.
SUBNET_MANAGER = r"""[ -e /opt/nvidia/nvlsm/sbin/nvlsm ] || exit 0
runs() { kill -0 "$1" 2>/dev/null || return 1; case $(readlink "/proc/$1/exe") in *' (deleted)') return 1;; esac; echo running; exit 0; }
for p in /run/nvidia-fabricmanager/nvlsm.pid /run/nvlsm.pid; do i=; { read -r i <"$p"; } 2>/dev/null && runs "$i"; done
for f in /proc/[0-9]*/comm; do
  c=; { read -r c <"$f"; } 2>/dev/null; [ "$c" != nvlsm ] || { f=${f#/proc/}; runs "${f%/comm}"; }
done; :"""

# State and status follow each other in the section Fabric of each GPU; N/A is a GPU without one.
_LOOK = r"""look() {
  s=$(timeout 60 nvidia-smi -q 2>&1) || { printf '%s\n' "nvidia-smi -q fails: $s" | tail -n 3; exit 1; }
  f=$(printf '%s\n' "$s" | awk '
    /^ *Fabric *$/ { inside = 1; next }
    inside && /^ *State *:/ { sub(/^[^:]*: */, ""); sub(/ *$/, ""); state = $0; next }
    inside && /^ *Status *:/ { sub(/^[^:]*: */, ""); sub(/ *$/, ""); inside = 0
      if (state == "Completed" && $0 == "Success") next
      if (state == "N/A" || state == "Not Supported") next
      print (state == "Completed" ? "Completed, " $0 : state) }' | sort | uniq -c | tr -s ' \n' ' ')
}
"""


def wait(seconds: int) -> str:
    """Until the fabric is complete on every GPU that has one."""
    return (
        _LOOK + 'n=0\nwhile look; [ -n "$f" ]; do\n'
        f'  n=$((n + 1)); [ $n -lt {seconds} ] || {{ echo "the fabric is not complete after {seconds} s:$f"; '
        f"journalctl -u {UNIT} -n 8 --no-pager -o cat 2>/dev/null || :; exit 1; }}\n"
        "  sleep 1\ndone\neffect complete\n"
    )


def fix(seconds: int) -> str:
    """The same, but a fabric that does not come up by itself within seconds gets a new manager."""
    return (
        _LOOK + 'n=0; while look; [ -n "$f" ] && [ $n -lt 10 ]; do n=$((n + 1)); sleep 1; done\n'
        '[ -n "$f" ] || { effect same; exit 0; }\n'
        f"systemctl reset-failed {UNIT} 2>/dev/null || :; systemctl restart {UNIT}\n"
        + wait(seconds)
    )


def first_boot(seconds: int) -> str:
    """A machine that boots the image finds out for itself whether it has switches."""
    return (
        COUNT_BRIDGES
        + f"""for d in "$SYS"/bus/pci/devices/*; do
  v=; c=; {{ read -r v <"$d/vendor" && read -r c <"$d/class"; }} 2>/dev/null || continue
  case $v$c in 0x10de0x0680*) n=1; break;; esac
done
[ "$n" != 0 ] || {{ echo "no NVSwitch on PCI: nothing to start"; effect same; exit 0; }}
systemctl cat {UNIT} >/dev/null 2>&1 || fail "NVSwitches are there, and the image has no {UNIT}: bake it without --gpu, or for these GPUs"
systemctl --no-reload enable {UNIT}
systemctl start {UNIT} || {{ journalctl -u {UNIT} -n 15 --no-pager -o cat; fail "{UNIT} does not start"; }}
"""
        + wait(seconds)
    )
