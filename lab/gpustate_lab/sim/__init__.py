"""Simulate a GPU node on plain Debian, for tests and demonstrations.

It neither contains nor needs software of NVIDIA. It is used in three steps:

- :func:`repository.build` builds packages and signed apt repositories on the controller;
- the image of a node installs ``gpustate-lab-node`` and two kernels from them;
- :func:`hardware.write` sets the GPUs and faults of a node.

Simulated files of /proc and /sys that cannot be mounted over the kernel's are in ``/run/gpustate-lab``, see
``docs/lab.md``.
"""
