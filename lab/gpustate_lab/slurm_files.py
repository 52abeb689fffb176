"""Files of a lab's Slurm cluster: key and ``slurm.conf``, created once and copied to every new disk.

A node that is reset gets them again, so it stays a member of the cluster.

Sources:
    Slurm 22.05 and 24.11: slurm.conf(5), gres.conf(5). munged(8): owner and mode of the key.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpustate.errors import LabError
from gpustate.formats import slurm
from gpustate_lab import paths, simulation

if TYPE_CHECKING:
    from gpustate_lab.node import Node

#: Below the lab's folder.
FOLDER = "slurm"
CONFIG, KEY = "slurm.conf", "munge.key"
#: munged(8) accepts 32 to 1024 bytes; this is the size that its own tool generates.
_KEY_BYTES = 128
#: CPUs that slurmd reports, regardless of the controller: two sockets as in an HGX server (``slurmd.sh``).
_PROCESSORS = "CPUs=64 Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1"

_CONFIG = """\
# Written by gpustate lab up. The GPUs of these nodes are simulated.
ClusterName={cluster}
SlurmctldHost={head}({address})
AuthType=auth/munge
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
# Without cgroups: a job sees the GPUs of others too, and only CUDA_VISIBLE_DEVICES names its own.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
# A node that registers with a valid configuration is returned to service, whatever the reason it was down.
ReturnToService=2
RebootProgram=/sbin/reboot
ResumeTimeout=120
SlurmdTimeout=30
"""


def gres_value(gpus: str) -> str:
    """Return ``Gres=`` for the lab's ``gpus``: ``gpu:h100:8`` for ``8xH100``, empty for ``none``."""
    models = simulation.parse_gpus(gpus)
    return slurm.gres_value(
        slurm.SlurmGpu(index, slurm.type_name(model.name)) for index, model in enumerate(models)
    )


def config(cluster: str, head: Node, nodes: Iterable[Node]) -> str:
    """Return ``slurm.conf``, the same on every machine, with the GPUs that the nodes should have."""
    lines = [_CONFIG.format(cluster=cluster, head=head.name, address=head.address)]
    names = []
    for node in nodes:
        value = gres_value(node.gpus)
        gres = f" Gres={value}" if value else ""
        lines.append(f"NodeName={node.name} NodeAddr={node.address} {_PROCESSORS}{gres}\n")
        names.append(node.name)
    lines.append(f"PartitionName=gpu Nodes={','.join(names)} Default=YES\n")
    return "".join(lines)


def write(lab_directory: Path, head: Node, nodes: Iterable[Node]) -> None:
    """Write key and ``slurm.conf`` into the lab's folder, unless they exist."""
    folder = lab_directory / FOLDER
    if (folder / CONFIG).exists():
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    key = folder / KEY
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(_KEY_BYTES))
    paths.write_text(folder / CONFIG, config(lab_directory.name, head, nodes))


def fill(root: Path, lab_directory: Path) -> None:
    """Copy both into the root of a new machine.

    Raises:
        LabError: munge is not installed in the image.
    """
    folder = lab_directory / FOLDER
    target = root / "etc/slurm" / CONFIG
    target.parent.mkdir(exist_ok=True)
    target.write_text((folder / CONFIG).read_text())
    owner, group = _user(root, "munge")
    key = root / "etc/munge" / KEY
    key.touch(0o600)
    key.write_bytes((folder / KEY).read_bytes())
    key.chmod(0o400)
    os.chown(key, owner, group)


def _user(root: Path, name: str) -> tuple[int, int]:
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2]), int(fields[3])
    raise LabError(f"{root} has no user {name}", fix="gpustate lab down, then up again")
