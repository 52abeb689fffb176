"""Container runtimes: registering NVIDIA's runtime as a handler, and removing it again.

:class:`gpustate.runtimes.state.RuntimeState` holds what containerd, CRI-O, docker, k0s and MicroK8s have in common. A
state in :mod:`gpustate.states` adds what is its runtime's own: its files, the editor for them, and how it is asked
what it makes of them.
"""
