"""Disposable test nodes: real systemd, sshd, apt and containerd, simulated GPUs.

A lab is a set of systemd-nspawn containers on this machine. Each has an overlay on a cached Debian root and
its own network namespace, which stays while the node reboots. Hardware and software of NVIDIA (PCI devices,
kernel modules, packages, ``nvidia-smi``, NVML, CUDA) are simulated by :mod:`gpustate_lab.sim`; see
``docs/lab.md``.

The public functions are in :mod:`gpustate_lab.api`.
"""

__version__ = "0.1.0"
