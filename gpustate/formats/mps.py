"""The service of the MPS control daemon: its unit, and parsers for its state.

Sources:
    nvidia-cuda-mps-control(1) of 580.65.06; NVIDIA MPS documentation, "Provisioning" and "Tools";
    NVIDIA/k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps/daemon.go: shares of memory and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The server process of each user with clients.
SERVER = "nvidia-cuda-mps-server"
UNIT = "gpustate-mps.service"
#: The variable by which the daemon and its clients find one another.
PIPES = "CUDA_MPS_PIPE_DIRECTORY"


@dataclass(frozen=True, slots=True)
class MpsGpu:
    """A GPU shared by clients."""

    uuid: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Service:
    """The parameters of the unit.

    Args:
        control, smi: paths of nvidia-cuda-mps-control and nvidia-smi.
        gpus: in PCI order; the daemon numbers them so.
        only: whether the daemon sees only these GPUs instead of all.
        exclusive: whether the GPUs are in exclusive mode while it runs.
        clients: number of equal default shares of threads and memory; 0 for no limit.
        pipe_folder, log_folder: folders of the daemon's sockets and logs.
    """

    control: str
    smi: str
    gpus: tuple[MpsGpu, ...]
    only: bool
    exclusive: bool
    clients: int
    pipe_folder: str
    log_folder: str


def thread_percentage(clients: int) -> str:
    """Each client's share of a GPU's threads, in the daemon's format."""
    return f"{100 // clients if clients else 100:.1f}"


def limits(gpus: Sequence[MpsGpu], clients: int) -> list[str]:
    """Commands for the daemon that give each of ``clients`` its share."""
    if not clients:
        return []
    memory = [
        f"set_default_device_pinned_mem_limit {number} {gpu.memory_mib // clients}M"
        for number, gpu in enumerate(gpus)
        if gpu.memory_mib
    ]
    return [*memory, f"set_default_active_thread_percentage {100 // clients}"]


def unit_text(service: Service) -> str:
    """The unit; equal services have equal text."""
    uuids = [gpu.uuid for gpu in service.gpus]

    def mode(word: str) -> list[str]:
        if not service.exclusive:
            return []
        return [f"{service.smi} -i {uuid} -c {word}" for uuid in uuids]

    def send(command: str) -> str:
        return f"/bin/sh -c 'echo {command} | {service.control}'"

    lines = [
        "# Written by gpustate; changes are overwritten.",
        "[Unit]",
        "Description=NVIDIA CUDA Multi Process Service",
        "After=nvidia-persistenced.service nvidia-fabricmanager.service",
        "",
        "[Service]",
        "Type=forking",
        f"Environment={PIPES}={service.pipe_folder}",
        f"Environment=CUDA_MPS_LOG_DIRECTORY={service.log_folder}",
    ]
    if service.only:
        lines.append(f"Environment=CUDA_VISIBLE_DEVICES={','.join(uuids)}")
    lines += [f"ExecStartPre=/bin/mkdir -p {service.pipe_folder} {service.log_folder}"]
    lines += [f"ExecStartPre={command}" for command in mode("EXCLUSIVE_PROCESS")]
    lines += [f"ExecStart={service.control} -d"]
    lines += [f"ExecStartPost={send(command)}" for command in limits(service.gpus, service.clients)]
    lines += [f"ExecStop=-{send('quit')}"]
    lines += [f"ExecStopPost=-{command}" for command in mode("DEFAULT")]
    lines += ["Restart=on-failure", "RestartSec=2", "", "[Install]", "WantedBy=multi-user.target"]
    return "\n".join(lines) + "\n"


def pipe_folder_of(unit_text: str) -> str:
    """The pipe folder that a unit of :func:`unit_text` names; empty without one."""
    return unit_text.partition(f"Environment={PIPES}=")[2].partition("\n")[0]


def parse_modes(text: str) -> dict[str, str]:
    """Read ``nvidia-smi --query-gpu=uuid,compute_mode --format=csv,noheader``."""
    modes: dict[str, str] = {}
    for line in text.splitlines():
        uuid, comma, mode = line.partition(",")
        if comma and uuid.startswith("GPU-"):
            modes[uuid.strip()] = mode.strip()
    return modes


def parse_processes(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader``, without MPS's own servers."""
    rows = (line.partition(",") for line in text.splitlines())
    processes = ((pid.strip(), name.strip()) for pid, _, name in rows)
    return tuple((p, n) for p, n in processes if p.isdigit() and n and SERVER not in n)
