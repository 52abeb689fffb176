"""Nodes from a Slurm cluster: those with GPUs, in the form ``slurm:HOST``; ``slurm:`` asks slurmctld from this host.

Each node has the groups ``slurm`` and ``partition_NAME``, its ``NodeAddr`` as the address, and HOST in the variable
``gpustate_slurm_host``.

Sources:
    SchedMD/slurm, doc/man/man1/scontrol.1 (show nodes, --oneliner); slurm.conf(5), Gres and NodeAddr.
"""

from __future__ import annotations

import re
import shlex
import socket

from gpustate.documents import Json
from gpustate.errors import InventoryError
from gpustate.inventory import executable
from gpustate.inventory.store import Store

NAME = "slurm"
PREFIX = f"{NAME}:"
_COMMAND = "scontrol show nodes --oneliner"
_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeAddr|Gres|Partitions)=(\S*)")
_HOST = "gpustate_slurm_host"


def fill_source(store: Store, source: str) -> None:
    """Read the nodes with GPUs of a cluster into ``store``.

    Raises:
        InventoryError: scontrol fails, or no node has GPUs.
    """
    host = source.removeprefix(NAME).removeprefix(":")
    command = f"ssh -o BatchMode=yes -- {shlex.quote(host)} {_COMMAND}" if host else _COMMAND
    groups: dict[str, list[str]] = {}
    variables: dict[str, Json] = {}
    for line in executable.shell(command).splitlines():
        row = dict(_FIELD.findall(line))
        if not re.search(r"(?:^|,)gpu\b", row.get("Gres", "")):
            continue
        name = row["NodeName"]
        variables[name] = {_HOST: host.rpartition("@")[2] or socket.gethostname()}
        if row.get("NodeAddr", name) != name:
            variables[name]["ansible_host"] = row["NodeAddr"]
        partitions = filter(None, row.get("Partitions", "").split(","))
        for group in (NAME, *(f"partition_{partition}" for partition in partitions)):
            groups.setdefault(group, []).append(name)
    if not groups:
        raise InventoryError(
            "no node of the Slurm cluster has Gres=gpu",
            place=source,
            fix="add Gres=gpu:NUMBER to the nodes' lines in slurm.conf (gpustate plan names the line)",
        )
    executable.fill_from(store, {**groups, "_meta": {"hostvars": variables}}, source, command)
