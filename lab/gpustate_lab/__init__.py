"""Throw-away nodes: real systemd, sshd, apt and containerd, simulated GPUs.

A lab is a set of systemd-nspawn containers on this machine, each on an overlay of a cached Debian
root, each in a network namespace of its own that stays while the node reboots. What NVIDIA would
bring (PCI devices, kernel modules, packages, ``nvidia-smi``, NVML, CUDA) is simulated by
:mod:`gpustate_lab.sim`; ``docs/lab.md`` says what that covers.

:mod:`gpustate_lab.api` is the way in.
"""

__version__ = "0.1.0"
