"""Everything that makes a plain Debian node look like a GPU node, for tests and demonstrations.

All of it is simulated; no NVIDIA software is contained or needed. Three moments:

- :func:`repository.build` makes packages and signed apt repositories on the controller;
- the image of a node installs ``gpustate-lab-node`` and two kernels from there;
- :func:`hardware.write` says which GPUs and which faults a node has.

What a booted node then shows, on paths of its own (``/run/gpustate-lab/proc`` and ``.../sys``)
where the kernel's cannot be covered, is described in ``docs/lab.md``.
"""
