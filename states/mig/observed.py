"""What the state ``mig`` looks at on a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpustate.mig.live import Use
from gpustate.model.asks import Answer, Ask
from gpustate.text import gpu_services
from gpustate.text.numbers import whole
from gpustate.text.nvml_report import Gpu

UNIT = "gpustate-mig.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
#: systemd keeps what it once read of a unit that is active; the link is what the next boot sees.
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
#: Units that divide GPUs on their own.
MANAGER = "nvidia-mig-manager.service"
#: A reset that was tried and did not work; gone after a reboot.
NO_RESET_PATH = "/run/gpustate/mig-no-reset"

#: Services that keep GPUs or MIG devices open, or list them once at their start. They are stopped for a
#: change and started again; in this order, back in reverse. The kubelet is none of them, and never will be.
CLIENTS = gpu_services.MONITORS
#: In the way of a GPU reset only.
RESET_CLIENTS = ("nvidia-persistenced.service",)
#: Opens GPUs and is needed for their reset where there are NVSwitches.
NEVER_IN_THE_WAY = ("nvidia-fabricmanager.service",)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has GPUs or MIG capabilities open.

    Args:
        pid: its number.
        command: its name.
        user: who runs it.
        unit: last part of its cgroup: a systemd unit, or a container's scope.
        pod: name of its pod, or the pod's UID; empty where it is in none.
        gpus: minor numbers of the GPUs it has open.
        parts: ``(minor, GPU instance, compute instance)`` of capabilities it has open; the last is
            -1 for a GPU instance.
    """

    pid: int
    command: str
    user: str
    unit: str
    pod: str = ""
    gpus: tuple[int, ...] = ()
    parts: tuple[tuple[int, int, int], ...] = ()

    @property
    def who(self) -> str:
        """For people."""
        where = f"pod {self.pod}" if self.pod else f"unit {self.unit}" if self.unit else ""
        return f"pid {self.pid} ({', '.join(filter(None, (self.command, f'user {self.user}', where)))})"

    def uses(self) -> Iterator[Use]:
        """What it has open, part by part."""
        for minor, instance, compute in self.parts:
            yield Use(minor, instance, None if compute < 0 else compute, self.who)


@dataclass(frozen=True, slots=True)
class Observed:
    """The MIG side of a node.

    What is changed comes first; what only decides, after it.
    """

    modes: dict[str, str]  # by number of the GPU: on, off, or what it waits for
    instances: dict[str, tuple[str, ...]]
    saved: str | None = None  # the layout that is given at boot
    before: str | None = None  # what was there before gpustate changed anything
    program: str | None = None  # text of what gives it
    unit: str | None = None
    enabled: bool = False
    stopped: tuple[str, ...] = ()  # services an interrupted run has not started again
    gpus: tuple[Gpu, ...] = ()  # in PCI order, as NVML has them
    problem: str = ""  # why NVML says nothing
    holders: tuple[Holder, ...] | None = None  # None: nobody looked
    clients: tuple[str, ...] = ()  # known services that run
    no_reset: dict[str, str] | None = None  # why a GPU cannot be reset, by its number
    manager: bool = False  # nvidia-mig-manager is enabled
    folder: str = "/var/lib/gpustate/mig"
    image: bool = False
    systemd: bool = True


_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")

#: Capabilities first, then processes: ``pid|command|uid|user|hostname|cgroup|files...``.
_HOLDERS = r"""
for f in "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/access "$PROC"/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$f" ] || continue
  while IFS=': ' read -r k v; do [ "$k" = DeviceFileMinor ] && echo "cap=$v ${f#*/capabilities/}"; done <"$f"
done
find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h %l\n' 2>/dev/null | sort -u | {
  p=; l=
  told() {
    [ -n "$p" ] || return 0
    c=; { read -r c <"/proc/$p/comm"; } 2>/dev/null || return 0
    g=; while read -r x; do g=$x; done <"/proc/$p/cgroup"
    u=$(stat -c '%u|%U' "/proc/$p"); h=
    case $g in *pod*) { read -r h <"/proc/$p/root/etc/hostname"; } 2>/dev/null;; esac
    echo "holder=$p|$c|$u|$h|$g|$l"
  }
  while read -r d f; do
    d=${d%/fd}; d=${d#/proc/}
    [ "$d" = "$p" ] || { told; p=$d l=; }
    l="$l $f"
  done
  told
}
:"""
_CAP = re.compile(r"(\d+) gpu(\d+)/mig/gi(\d+)/(?:ci(\d+)/)?access")


@dataclass(frozen=True, slots=True)
class AskMigHolders(Ask[tuple[Holder, ...]]):
    """Who has which part of which GPU open; only worth asking when something is to change."""

    def script(self) -> str:
        return _HOLDERS

    def parse(self, answer: Answer) -> tuple[Holder, ...]:
        caps: dict[int, tuple[int, int, int]] = {}
        found: list[Holder] = []
        for line in answer.text.splitlines():
            key, _, value = line.partition("=")
            if key == "cap" and (match := _CAP.fullmatch(value)):
                caps[int(match[1])] = (int(match[2]), int(match[3]), int(match[4] or -1))
            elif key == "holder":
                found += _holder(value, caps)
        return tuple(sorted(found, key=lambda holder: holder.pid))

    def stand_in(self) -> tuple[Holder, ...]:
        return ()


def _holder(text: str, caps: dict[int, tuple[int, int, int]]) -> Iterator[Holder]:
    parts = text.split("|")
    number = whole(parts[0])
    if number is None or len(parts) < 7:
        return
    command, uid, user, host, cgroup = parts[1:6]
    files = "|".join(parts[6:]).split()
    gpus = {whole(name) for file in files if (name := file.removeprefix("/dev/nvidia")) != file}
    minors = {whole(file.rpartition("nvidia-cap")[2]) for file in files if "/nvidia-caps/" in file}
    match = _POD.search(cgroup)
    yield Holder(
        pid=number,
        command=command,
        user=uid if user == "UNKNOWN" else user,
        unit=cgroup.rpartition("/")[2],
        pod=(host or match[1]) if match else "",
        gpus=tuple(sorted(gpu for gpu in gpus if gpu is not None)),
        parts=tuple(sorted(caps[one] for one in minors if one is not None and one in caps)),
    )
