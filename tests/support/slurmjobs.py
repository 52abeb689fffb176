"""Jobs and states of a lab's Slurm cluster, for tests."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpustate_lab.api import Lab
from gpustate_lab.slurm import NodeState, Slurm

#: What turns a bare node into one that Slurm accepts.
APPLIED = """
from gpustate import Policy, registry

policy = Policy(
    registry.get("driver-repository")(),
    registry.get("driver")(version="580.65.06"),
    registry.get("fabric-manager")(),
    registry.get("slurm-gres")(),
)
"""
#: Prints how many GPUs CUDA offers, in double quotes that fit into ``sh -c '...'``.
CUDA_COUNT = (
    'python3 -c "import ctypes; c = ctypes.CDLL(\\"libcuda.so.1\\"); n = ctypes.c_int(); '
    'assert c.cuInit(0) == 0; assert c.cuDeviceGetCount(ctypes.byref(n)) == 0; print(n.value)"'
)


@dataclass
class Cluster:
    """A lab with Slurm, and what people type at its head."""

    lab: Lab
    slurm: Slurm
    policy: Path = Path()

    @classmethod
    def of(cls, lab: Lab) -> Cluster:
        """The cluster of a lab that is up."""
        assert lab.head is not None
        return cls(lab, Slurm(lab, lab.head))

    def head(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the head as the user ``op``."""
        words = ["su", "op", "-c", f"cd /tmp; {command}"]
        return self.slurm.head.run(words, timeout_s=120, check=check)

    def job(self, words: str) -> str:
        """Run ``srun`` to its end and return what the job prints."""
        return self.head(f"srun {words}").stdout

    def submit(self, words: str) -> None:
        """Submit a batch job without an output file."""
        self.head(f"sbatch -o /dev/null {words}")

    def state(self, node: str) -> NodeState:
        """What slurmctld says of one node."""
        return self.slurm.states()[node]

    def resume(self) -> None:
        """Resume every drained node and wait until jobs may run there."""
        for name, state in self.slurm.states().items():
            if "DRAIN" in state.flags:
                self.slurm.scontrol("update", f"nodename={shlex.quote(name)}", "state=resume")
        self.until(lambda: all(one.flags == {"IDLE"} for one in self.slurm.states().values()))

    def until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait for a condition.

        Raises:
            AssertionError: it does not come true; the message has every node's state.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.slurm.states()
            time.sleep(0.2)
