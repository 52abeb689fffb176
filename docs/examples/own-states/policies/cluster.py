"""The stack of a Slurm node, with a custom state."""

from acme_gpu.limits import MemlockLimits

from gpustate import Policy, presets

policy = Policy(*presets.slurm_node(driver={"branch": 580}).states, MemlockLimits())
