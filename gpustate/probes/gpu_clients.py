"""Who has a GPU open: process, user, unit and pod.

A process is somebody's: a service that may be stopped, a job that must end by itself, a pod that a
scheduler put there. So each is told by name, by whoever is about to take a GPU away.

The pod's name is the host name its containers have; where that cannot be read, the pod's UID of its
cgroup stands for it.

Sources:
    proc(5); Kubernetes: "Pod hostname" of the documentation of Pods and DNS; kubelet's cgroup drivers
    (``kubepods-...-podUID.slice`` of systemd, ``kubepods/.../podUID`` of cgroupfs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import gpu_services
from gpustate.formats.numbers import parse_uint


@dataclass(frozen=True, slots=True)
class GpuProcess:
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
        pod_uid: UID of its pod; empty where it is in none.
    """

    pid: int
    command: str
    user: str
    unit: str
    pod: str = ""
    gpus: tuple[int, ...] = ()
    parts: tuple[tuple[int, int, int], ...] = ()
    pod_uid: str = ""

    @property
    def description(self) -> str:
        """For people."""
        where = f"pod {self.pod}" if self.pod else f"unit {self.unit}" if self.unit else ""
        return f"pid {self.pid} ({', '.join(filter(None, (self.command, f'user {self.user}', where)))})"


_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")

#: Defines ``who PID``: prints ``pid|command|uid|user|hostname|cgroup``, and fails where it has ended.
DEFINE_WHO = shell.load("who", "gpustate.probes")
#: Capabilities first, then processes: what ``who`` prints, and files.
_HOLDERS = DEFINE_WHO + shell.load("gpu_clients", "gpustate.probes")
_CAP = re.compile(r"(\d+) gpu(\d+)/mig/gi(\d+)/(?:ci(\d+)/)?access")


@dataclass(frozen=True, slots=True)
class GpuClientsQuery(Query[tuple[GpuProcess, ...]]):
    """Who has which part of which GPU open, but for gpustate's own validation; only worth asking when something is to be removed."""

    def script(self) -> str:
        return _HOLDERS

    def parse(self, answer: Answer) -> tuple[GpuProcess, ...]:
        caps: dict[int, tuple[int, int, int]] = {}
        processes: list[GpuProcess] = []
        for line in answer.text.splitlines():
            key, _, value = line.partition("=")
            if key == "cap" and (match := _CAP.fullmatch(value)):
                caps[int(match[1])] = (int(match[2]), int(match[3]), int(match[4] or -1))
            elif key == "holder":
                processes += _gpu_process(value, caps)
        processes = [process for process in processes if process.unit != gpu_services.VALIDATION]
        return tuple(sorted(processes, key=lambda process: process.pid))

    def placeholder(self) -> tuple[GpuProcess, ...]:
        return ()


def gpu_process(text: str) -> GpuProcess | None:
    """What ``who`` printed; ``None`` where that is not it."""
    parts = text.split("|")
    number = parse_uint(parts[0])
    if number is None or len(parts) < 6:
        return None
    command, uid, user, host, cgroup = parts[1:6]
    match = _POD.search(cgroup)
    return GpuProcess(
        pid=number,
        command=command,
        user=uid if user == "UNKNOWN" else user,
        # One that was started from outside a container is in no unit of it.
        unit="" if (last := cgroup.rpartition("/")[2]) == ".." else last,
        pod=(host or match[1]) if match else "",
        pod_uid=match[1].replace("_", "-") if match else "",
    )


def _gpu_process(text: str, caps: dict[int, tuple[int, int, int]]) -> Iterator[GpuProcess]:
    process, fields = gpu_process(text), text.split("|")[6:]
    if process is None or not fields:
        return
    files = "|".join(fields).split()
    gpus = {
        parse_uint(name) for file in files if (name := file.removeprefix("/dev/nvidia")) != file
    }
    minors = {
        parse_uint(file.rpartition("nvidia-cap")[2]) for file in files if "/nvidia-caps/" in file
    }
    yield replace(
        process,
        gpus=tuple(sorted(gpu for gpu in gpus if gpu is not None)),
        parts=tuple(sorted(caps[minor] for minor in minors if minor is not None and minor in caps)),
    )
