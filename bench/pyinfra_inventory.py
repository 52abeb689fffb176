"""The nodes as pyinfra has them; ``BENCH_*`` in the environment say which and where."""

import os
from pathlib import Path

from bench import workload

_WORK = Path(os.environ["BENCH_WORK"])

nodes = (
    [
        (host, {"root": str(workload.root(_WORK, host))})
        for host in workload.hosts(int(os.environ["BENCH_NODES"]))
    ],
    {
        "ssh_user": "root",
        "ssh_port": int(os.environ["BENCH_PORT"]),
        "ssh_key": str(_WORK / "bed/user"),
        "ssh_known_hosts_file": str(_WORK / "bed/known_hosts"),
        "ssh_strict_host_key_checking": "yes",
    },
)
