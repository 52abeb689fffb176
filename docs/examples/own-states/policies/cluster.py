"""The stack of a Slurm node, and a state of our own."""

from acme_gpu.limits import MemlockLimits

from gpustate import Policy, presets

policy = Policy(*presets.slurm_node(driver={"branch": 580}).states, MemlockLimits())
